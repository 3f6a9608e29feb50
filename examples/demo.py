"""What `make demo` runs: the tour on emulated devices, and the audit of its logs.

With a torch without CUDA: a job that goes on untouched, and the reading of a recorded one.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "tests" / "audit" / "golden" / "placement-differs"


def torchrun(example: str) -> list[str]:
    return ["torchrun", "--standalone", "--nproc-per-node", "4", str(ROOT / "examples" / example)]


def main() -> None:
    if torch.version.cuda is not None:
        rehearse = ["tracehook", "rehearse", "--devices", "4", "--log", sys.argv[1], "--"]
        memory = {"SYMM_REGISTER_MEMORY": "vmm"}  # so that NCCL can use registrations inside the host
        status = subprocess.call([*rehearse, *torchrun("tour.py")], env=os.environ | memory)
        audit = subprocess.run(["tracehook", "audit", sys.argv[1]], stdout=subprocess.PIPE, text=True, check=False)
        print(*audit.stdout.splitlines()[-1:])
        raise SystemExit(status or audit.returncode)
    print(f"torch {torch.__version__} is a build without CUDA: no hook here, and no rehearsal. Jobs run as they would:")
    changes = {"SYMM_REGISTER_HOOK": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run(torchrun("without_cuda.py"), check=True, env=os.environ | changes)
    print("What reads logs works. Two ranks of a recorded job had allocated two equal tensors in opposite order:")
    audit = subprocess.run(["tracehook", "audit", str(RECORDED)], stdout=subprocess.PIPE, text=True, check=False)
    print(audit.stdout)
    raise SystemExit(0 if audit.returncode == 1 and "(placement-differs)" in audit.stdout else 1)  # 1: findings


if __name__ == "__main__":
    main()
