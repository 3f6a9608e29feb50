"""What the modules of symmetric memory answer alike: the form of an explanation, sentences that several use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tracehook.nccl.paths import PLAIN, Path

if TYPE_CHECKING:
    from torch import Tensor, dtype

ENDED = "it was aborted, or is being destroyed, or waits to be configured"


class _Symmetry(NamedTuple):
    symmetric: bool
    reason: str
    text: str


class Explanation(_Symmetry):
    """Answer of :func:`tracehook.explain`: whether the tensor is symmetric, a constant reason code, and a sentence.

    If the program named an operation, it also has the path that NCCL takes: `path` (``symmetric``, ``copy_engine``,
    ``plain``, or ``depends`` where only NCCL knows), `path_reason` (a code), and `path_text` (a sentence). Of a tensor
    in memory of a device, `registration` says whether its segment is registered locally, and for which calls that takes
    effect. These are attributes, not items of the tuple, which has three items.
    """

    path: str | None = None
    path_reason: str | None = None
    path_text: str | None = None
    registration: str | None = None

    def with_path(self, found: Path) -> Explanation:
        """Return the same answer with that path."""
        made = Explanation(*self)
        made.path, made.path_reason, made.path_text = found
        made.registration = self.registration
        return made

    def __repr__(self) -> str:
        """Show the path where there is one."""
        shown = super().__repr__()
        path = f", path={self.path!r}, path_reason={self.path_reason!r}, path_text={self.path_text!r})"
        return shown if self.path is None else shown[:-1] + path


class Asked(NamedTuple):
    """The collective whose path is asked for: see :func:`tracehook.explain`."""

    operation: str
    dtype: dtype | None
    reduction: str
    other: Tensor | None


def path_without_windows(answer: Explanation) -> Path:
    """Return the path where nothing can lie in a window, for the reason of the answer."""
    return Path(PLAIN, answer.reason, answer.text)


def local(tensor: Any) -> Any:
    """Return the local tensor of a DTensor, and any other tensor as it is.

    Raises:
        TypeError: it is no tensor.

    """
    if not hasattr(tensor, "data_ptr"):
        raise TypeError(f"tracehook: expected a tensor, got {tensor!r}")
    return getattr(tensor, "_local_tensor", tensor)


def is_bytes(given: Any) -> bool:
    """Whether it is a number of bytes, for which no program means True."""
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 1 << 63


def place(tensor: Tensor) -> tuple[int, int] | None:
    """Return where a tensor lies: the address of its first element, and the bytes from there to the end of its last.

    None: it has no such place. It is sparse or nested, or only stands for a tensor, as a fake one does.
    """
    try:
        if tensor.is_nested or tensor.untyped_storage().device != tensor.device:
            return None
        return tensor.data_ptr(), span(tensor)
    except RuntimeError:
        return None


def span(tensor: Tensor) -> int:
    """Bytes from the first to the last element."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((last + 1) * tensor.element_size())
