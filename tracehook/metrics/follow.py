"""The metrics of this process: what follows the service, which must not import this room, and asks it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tracehook.hook.extension import Extension, Host
from tracehook.hook.once import Once
from tracehook.hook.service import extend, service
from tracehook.log import clock
from tracehook.log.event_counts import EventCounts
from tracehook.log.file_name import file_stem
from tracehook.log.journal import SCHEMA, Journal
from tracehook.metrics.readings import Sources, by_communicator, by_path, readings
from tracehook.metrics.series import Bounded, Series, text
from tracehook.metrics.writer import Writer
from tracehook.nccl.counts import path_counts
from tracehook.settings import Settings


class Followed(Extension):
    """What is known of the service of this process, which calls the methods of an extension."""

    def __init__(self) -> None:
        self._journal: Journal | None = None
        self._settings: Settings | None = None
        self._tally = EventCounts()
        self._ended_at = 0.0  # Unix time
        self._bounded = Bounded()
        self._log_bytes = 0  # a log that cannot be written any more keeps its length
        self._writer: Writer | None = None

    def begun(self, host: Host, journal: Journal) -> None:
        """Count the events of this log, and write the file if the settings ask for one. Never raises."""
        self._journal, self._settings = journal, host.settings
        self._tally = journal.tally = EventCounts()
        if host.settings.metrics is None:
            return
        name = f"tracehook.{file_stem(journal.facts.get('job'))}.prom"
        self._writer = Writer(host.settings.metrics / name, lambda: text(self.series()))
        self._writer.start()

    def ended(self) -> None:
        """Write the last file, in which the process has ended."""
        self._ended_at = clock.time()
        if self._writer is not None:
            self._writer.finish()

    def abandon(self) -> None:
        """In a forked child: thread and files are the parent's."""
        self._journal = self._writer = None
        self._tally, self._bounded, self._log_bytes = EventCounts(), Bounded(), 0

    def series(self) -> Series:
        """Return what there is now. Any thread; waits for no other thread's file, and calls neither CUDA nor NCCL."""
        facts = dict(self._journal.facts) if self._journal is not None else {"pid": os.getpid()}
        common = ("job", "rank", "host", "pid")
        labels = ["" if facts.get(name) is None else str(facts[name]) for name in common]
        return self._bounded.of(readings(self._sources(facts)), labels)

    def _sources(self, facts: Mapping[str, Any]) -> Sources:
        journal, settings = self._journal, self._settings
        if journal is not None:
            written = journal.written()
            self._log_bytes = written if written is not None else self._log_bytes
        counts = path_counts()
        wants_log = settings is not None and settings.log is not None and journal is not None
        return Sources(
            status=service().status(flush=False),
            facts=facts,
            tally=self._tally,
            collectives=by_path(counts),
            called=by_communicator(counts),
            schema=SCHEMA,
            log_bytes=self._log_bytes,
            log_stopped=wants_log and journal is not None and (journal.path is None or journal.failed is not None),
            pool_limit=(settings.pool_limit or 0) if settings is not None else 0,
            time=clock.time(),
            monotonic_ns=clock.monotonic_ns(),
            ended=self._ended_at,
        )


@Once
def follow() -> Followed:
    """Return what follows the service; it does so from the first call on."""
    followed = Followed()
    extend(followed)
    return followed
