"""What `make demo` runs: the tour on emulated devices; with a torch without CUDA, the reading of a recorded job."""

import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "tests" / "audit" / "golden" / "placement-differs"


def main() -> None:
    if torch.version.cuda is not None:
        tour = ["torchrun", "--standalone", "--nproc-per-node", "4", str(ROOT / "examples" / "tour.py")]
        raise SystemExit(
            subprocess.call(["tracehook", "rehearse", "--devices", "4", "--log", sys.argv[1], "--", *tour])
        )
    print(f"torch {torch.__version__} is a build without CUDA: no hook here, and no rehearsal. What reads logs works.")
    print("Two ranks of a recorded job had allocated two equal tensors in opposite order:")
    found = subprocess.call(["tracehook", "audit", str(RECORDED)])
    raise SystemExit(0 if found == 1 else 1)  # the audit's status for a job with findings


if __name__ == "__main__":
    main()
