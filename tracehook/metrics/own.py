"""The metrics of this process."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tracehook.hook.service import service
from tracehook.log.event_counts import EventCounts
from tracehook.log.journal import SCHEMA, Journal
from tracehook.metrics.collectives import by_communicator, by_path
from tracehook.metrics.readings import Sources, readings
from tracehook.metrics.series import Bounded, Series
from tracehook.nccl.counts import path_counts
from tracehook.settings import Settings


@dataclass
class ServiceSeen:
    """What the service has told of itself."""

    journal: Journal | None = None
    settings: Settings | None = None
    tally: EventCounts = field(default_factory=EventCounts)
    ended_at: float = 0.0  # Unix time


class Own:
    """Asks the service. Any thread; waits for no other thread's file, and calls neither CUDA nor NCCL."""

    def __init__(self, seen: ServiceSeen) -> None:
        self._seen = seen
        self._bounded = Bounded()
        self._log_bytes = 0  # a log that cannot be written any more keeps its length

    def series(self) -> Series:
        """Return what there is now."""
        seen = self._seen
        facts = dict(seen.journal.facts) if seen.journal is not None else {"pid": os.getpid()}
        common = ("job", "rank", "host", "pid")
        labels = ["" if facts.get(name) is None else str(facts[name]) for name in common]
        return self._bounded.of(readings(self._sources(facts)), labels)

    def _sources(self, facts: Mapping[str, Any]) -> Sources:
        seen, journal = self._seen, self._seen.journal
        settings = seen.settings
        if journal is not None:
            written = journal.written()
            self._log_bytes = written if written is not None else self._log_bytes
        counts = path_counts()
        wants_log = settings is not None and settings.log is not None and journal is not None
        return Sources(
            status=service().status(flush=False),
            facts=facts,
            tally=seen.tally,
            collectives=by_path(counts),
            called=by_communicator(counts),
            schema=SCHEMA,
            log_bytes=self._log_bytes,
            log_stopped=wants_log and journal is not None and (journal.path is None or journal.failed is not None),
            pool_limit=(settings.pool_limit or 0) if settings is not None else 0,
            time=time.time(),
            monotonic_ns=time.monotonic_ns(),
            ended=seen.ended_at,
        )
