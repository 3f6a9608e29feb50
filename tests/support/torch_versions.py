"""What the installed torch has, for tests of what only some versions have."""

import pytest
import torch
from torch.distributed import distributed_c10d

from tracehook import versions

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))  # (2, 11)
# That of 2.14 hands out no communicator, and its groups have no symmetric memory.
BY_ITSELF = hasattr(getattr(distributed_c10d, "ProcessGroupNCCL2", None), "_comm_ptr")
LEGACY = "nccl-legacy" if BY_ITSELF else "nccl"  # the stock group
needs_nccl2 = pytest.mark.skipif(
    not BY_ITSELF, reason="this torch has no group that registers by itself and gives its communicator"
)
needs_any_nccl2 = pytest.mark.skipif(
    not hasattr(distributed_c10d, "ProcessGroupNCCL2"), reason="this torch has no group that registers by itself"
)
ENDS_WRAPPED = hasattr(distributed_c10d, "ProcessGroupNCCL2")  # dist.destroy_process_group() with DETAIL
# Such a torch also looks there which streams are done with memory.
FREES_BESIDE_POOLS = versions.frees_beside_pools(torch.__version__)
