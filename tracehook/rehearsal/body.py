"""One rank of a test with ``@pytest.mark.rehearse``: imports the test's file, and calls its function.

Arguments: the file, the function's name, and its arguments as the plug-in pickled them. The default group is there when
the function is called, on ``cuda:LOCAL_RANK``, and ends after it.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import traceback
from pathlib import Path


def main(file: str, name: str, pickled: str) -> None:
    """Run the test's body on this rank; the exit status is 1 if it raised."""
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    sys.path.insert(0, str(Path(file).parent))
    function = getattr(importlib.import_module(Path(file).stem), name)
    arguments = {key: pickle.loads(value) for key, value in pickle.loads(bytes.fromhex(pickled)).items()}
    dist.init_process_group("nccl", device_id=device)
    try:
        function(**arguments)
        torch.cuda.synchronize()
    except BaseException:
        # One write: ranks share a stderr.
        text = "".join(f"rank {os.environ['RANK']}: {line}\n" for line in traceback.format_exc().splitlines())
        sys.stderr.write(text)
        sys.stderr.flush()
        os._exit(1)  # the group's end would wait for the other ranks
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
