"""One bit between two ranks, ordered on their streams, that can be captured into graphs and replayed.

Each rank has two words for every (peer, channel). *Full*: the peer has signalled, and this rank did not wait yet.
*Credit*: the last signal of this rank was waited for, so it may signal again. To signal is to wait for the own credit,
take it, and set the peer's full; to wait is to wait for the own full, take it, and set the peer's credit. A stream
only ever waits for words of its own device, and writes are what crosses over. No counter is kept on the host: a
captured signal is the same at every replay, and a second signal cannot overwrite a first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import torch

from tracehook._core import ipc as native
from tracehook.ipc.counts import CallCounts
from tracehook.ipc.imports import ImportedLoan

CHANNELS = 64
_BYTES = 4
_FULL, _CREDIT = 0, 1


class Semaphores:
    """This rank's words, for all peers of a group, and where those of the peers are (`of_peers`: offset in a loan)."""

    def __init__(
        self,
        ranks: int,
        rank: int,
        device: int,
        of_peers: Mapping[int, tuple[ImportedLoan, int]],
        calls: CallCounts | None = None,
    ) -> None:
        words = torch.zeros((ranks, 2, CHANNELS), dtype=torch.int32)
        words[:, _CREDIT] = 1
        # Of its own, and urgent: the streams of the program may all be waiting, perhaps for a peer that waits for this.
        self._stream = native.make_stream(device)
        with torch.cuda.stream(torch.cuda.ExternalStream(self._stream, device)):
            self.words = words.to(torch.device("cuda", device))
            torch.cuda.current_stream(device).synchronize()  # a peer may write as soon as it has the handle
        self._rank = rank
        self._device = device
        self._base = self.words.data_ptr()
        self._of_peers = of_peers
        self._calls = calls

    def signal(self, peer: int, channel: int) -> None:
        """Let the peer's next wait go on, once the work that is on the current stream now is done."""
        given = self._pass(peer, channel, _CREDIT, _FULL)
        if self._calls is not None:
            self._calls.signalled(peer, channel, *given)

    def wait(self, peer: int, channel: int) -> None:
        """Let what comes on the current stream wait for the peer's next signal."""
        given = self._pass(peer, channel, _FULL, _CREDIT)
        if self._calls is not None:
            self._calls.waited(peer, channel, *given)

    def _pass(self, peer: int, channel: int, take: int, give: int) -> tuple[int, bool]:
        """Return the stream, and whether a graph got this."""
        if not 0 <= channel < CHANNELS:
            raise ValueError(f"channel {channel}: there are {CHANNELS}, from 0")
        loan, offset = self._of_peers[peer]
        here = self._base + self._place(peer, take, channel)
        there = loan.address(offset) + self._place(self._rank, give, channel)
        stream: int = torch.cuda.current_stream(self._device).cuda_stream
        return stream, native.pass_semaphore(stream, here, there, self._device)

    @staticmethod
    def _place(rank: int, word: int, channel: int) -> int:
        return ((rank * 2 + word) * CHANNELS + channel) * _BYTES

    def set_all(self, peer: int) -> None:
        """Set every word of this dead peer, so that no stream waits for it. Any thread; again and again."""
        places = (self._place(peer, *each) for each in product((_FULL, _CREDIT), range(CHANNELS)))
        native.write_words(self._stream, [self._base + place for place in places], 1, self._device)
