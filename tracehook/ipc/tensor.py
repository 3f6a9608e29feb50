"""A tensor on a peer's memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from tracehook.errors import PeerError
from tracehook.ipc import wire
from tracehook.ipc.counts import CallCounts
from tracehook.ipc.imports import ImportedLoan


class PeerTensor:
    """A tensor of a peer, on memory that this process has mapped. Kernels that use it run here.

    It raises :class:`tracehook.ipc.PeerTensorGone` when its owner has dropped the tensor or asked for it, and
    :class:`tracehook.ipc.PeerLost` when the owner's process has ended. It does not order the two sides' work: see
    :meth:`PeerGroup.signal <tracehook.ipc.PeerGroup.signal>`.

    Attributes:
        peer: the owner's rank in the group.
        shape, dtype, nbytes: of the tensor; ``nbytes`` is the bytes of its elements.
        device: the CUDA device of this rank, which reads or writes it.

    """

    __slots__ = (
        *("__weakref__", "_calls", "_loan", "_offer", "_raw", "_read_only", "device", "dtype", "nbytes", "peer"),
        "shape",
    )

    def __init__(
        self,
        peer: int,
        offer: wire.Offer,
        loan: ImportedLoan | None,
        device: torch.device,
        calls: CallCounts | None = None,
    ) -> None:
        name = wire.DTYPES[offer.dtype]
        if not hasattr(torch, name):
            text = f"rank {peer} shares a tensor of torch.{name}, which this torch does not have"
            raise PeerError(text, advice="Install one version of torch on all ranks")
        self.peer = peer
        self.shape = torch.Size(offer.shape)
        self.dtype: torch.dtype = getattr(torch, name)
        self.device = device
        self.nbytes = self.shape.numel() * self.dtype.itemsize
        self._calls = calls
        self._offer = offer
        self._loan = loan  # None: no elements, so no memory
        self._raw: Tensor | None = None
        self._read_only: Tensor | None = None
        if loan is not None:
            loan.when_gone(self._drop_cached)

    @property
    def writable(self) -> bool:
        """Whether its owner lets this rank write."""
        return bool(self._offer.flags & wire.Flag.WRITABLE)

    @property
    def tensor(self) -> Tensor:
        """The torch tensor on the peer's memory. If it is not writable, it refuses operations that would change it.

        While it or a view of it lives, the memory stays mapped here, and its owner cannot free it.
        """
        raw = self._usable()
        if self.writable:
            return raw
        read_only = self._read_only
        if read_only is None:
            read_only = self._read_only = raw.as_subclass(ReadOnlyTensor)
        return read_only

    def get(self, out: Tensor | None = None) -> Tensor:
        """Copy it here, on the current stream, into `out` or a new tensor of the same shape; return that tensor.

        This waits for no signal of the owner, and sends it none. An owner that signals before, or waits after, wants
        :meth:`PeerGroup.get(tensor) <tracehook.ipc.PeerGroup.get>`. If it waits for a signal that this rank does not
        send, the audit and ``tracehook watch`` name this call.
        """
        target, source = self.for_reading(out)
        if self._calls is not None:
            self._calls.read(self.peer)
        return target.copy_(source)

    def for_reading(self, out: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return what :meth:`get` copies into, and what it copies: raises what is wrong before anything happens."""
        raw = self._usable()
        if out is None:
            out = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        _refuse("get", out)
        return _fitting(out, raw)

    def put(self, source: Tensor) -> None:
        """Copy `source` there, on the current stream. Raises PeerError if the peer does not let this rank write.

        It neither waits for a signal nor sends one: :meth:`PeerGroup.put <tracehook.ipc.PeerGroup.put>` does both.
        """
        target, source = self.for_writing(source)
        target.copy_(source)

    def for_writing(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Return what :meth:`put` copies into, and what it copies: raises what is wrong before anything happens."""
        if not self.writable:
            text = f"rank {self.peer} shares it for reading only: exchange it with writable=True there"
            raise PeerError(text, advice="")
        return _fitting(self._usable(), source)

    def _drop_cached(self) -> None:
        """Drop the torch tensors that are kept here for their next use."""
        self._raw = self._read_only = None

    def _usable(self) -> Tensor:
        loan = self._loan
        if loan is not None:
            if loan.gone is not None:
                raise loan.error()
            if loan.link.ended is not None:
                raise loan.link.lost_error()
        raw = self._raw  # another thread that sees the peer end drops what is kept
        if raw is None:
            raw = self._raw = self._make(loan)
            if loan is not None and loan.gone is not None:
                self._drop_cached()
                raise loan.error()
        return raw

    def _make(self, loan: ImportedLoan | None) -> Tensor:
        if loan is None:
            return torch.empty(self.shape, dtype=self.dtype, device=self.device)
        offer = self._offer
        # As bytes, so that every type of torch can go: DLPack does not know them all.
        flat: Any = from_dlpack(loan.lease(offer.offset, offer.nbytes))
        made: Tensor = flat.view(self.dtype).as_strided(offer.shape, offer.strides)
        return made

    def __repr__(self) -> str:
        """Without the values: those are the peer's, and may be changing."""
        kind = "writable" if self.writable else "read-only"
        return f"PeerTensor(peer={self.peer}, shape={tuple(self.shape)}, dtype={self.dtype}, {kind})"


def expect(kind: Any, given: object) -> None:
    """Raise TypeError if an argument is of another kind."""
    if not isinstance(given, kind):
        raise TypeError(f"tracehook: expected a {kind.__name__}, got {type(given).__name__}")


def _fitting(target: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    """Return both, of one shape, if ``Tensor.copy_`` takes them."""
    for given in (target, source):
        expect(Tensor, given)
    return target, source if source.shape == target.shape else source.expand(target.shape)


class ReadOnlyTensor(torch.Tensor):  # type: ignore[misc]
    """A tensor that refuses operations which would change it, also through views. Results of others are ordinary.

    ``.data`` and ``.data_ptr()`` are ways around it.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation of torch."""
        kwargs = kwargs or {}
        schema = func._schema
        if schema.is_mutable:
            for position, argument in enumerate(schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    value = args[position] if position < len(args) else kwargs.get(argument.name)
                    _refuse(func, value)
        with torch._C._DisableTorchDispatch():
            result = func(*args, **kwargs)
        views = any(returned.alias_info is not None for returned in schema.returns) and not schema.is_mutable
        return _as_read_only(result) if views else result

    def tolist(self) -> Any:
        """Return the values, as those of an ordinary tensor."""
        return self.clone().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"ReadOnlyTensor({self.clone()!r})"


def _refuse(func: Any, value: Any) -> None:
    for one in value if isinstance(value, list | tuple) else (value,):
        if isinstance(one, ReadOnlyTensor):
            raise PeerError(
                f"{func}: this tensor is a peer's, shared for reading only; copy it (.get()), or exchange it with "
                "writable=True on its owner's side",
                advice="",
            )


def _as_read_only(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result if isinstance(result, ReadOnlyTensor) else result.as_subclass(ReadOnlyTensor)
    if isinstance(result, list | tuple):
        return type(result)(_as_read_only(one) for one in result)
    return result
