"""``tracehook.rendezvous``: torch's own rendezvous of a symmetric tensor, after the ranks compared what they bring.

torch pairs whatever tensors the ranks pass at one call, and waits for a rank that does not come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracehook.symmetric_memory.answers import local
from tracehook.symmetric_memory.state import existing

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


def rendezvous(tensor: Tensor, group: ProcessGroup | None = None, *, name: str = "") -> Any:
    """Make a tensor of ``torch.distributed._symmetric_memory.empty`` known to all ranks of a group, if they agree.

    It is collective: all ranks of the group call it at the same point, outside a capture. It works with each backend of
    torch's symmetric memory (CUDA, NCCL, NVSHMEM). The ranks compare the name, the shape, the type, the bytes of the
    storage and the place in it, and only then call torch. Two tensors alike that one rank passes in the other order
    differ in nothing but their names: so give each tensor a name.

    While tracehook is off, or with ``SYMM_REGISTER_GUARD=off``, it only calls torch.

    Args:
        tensor: what ``symm_mem.empty`` returned, or a view of it.
        group: a process group with an NCCL backend; the default group if None.
        name: what the tensor is to the program, the same on all ranks.

    Returns:
        torch's handle (``_SymmetricMemory``).

    Raises:
        RegistrationMismatch: the ranks bring different tensors, or another rank makes another call. torch was not
            called.
        RegistrationTimeout: some ranks did not come within the time-out of the group. torch was not called.
        RuntimeError: a capture of the current stream is under way, or torch refused the tensor.

    """
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symm_mem

    local(tensor)
    memory = existing()
    if memory is not None:
        storage = tensor.untyped_storage()
        brought = [
            f"tensor {name!r}",
            f"shape {list(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}",
            f"{storage.nbytes()} bytes, from byte {tensor.storage_offset() * tensor.element_size()} on",
        ]
        for found in memory.chosen(group, None):
            memory.meet(found, "rendezvous", brought)
    return symm_mem.rendezvous(tensor, dist.group.WORLD if group is None else group)
