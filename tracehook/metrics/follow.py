"""How metrics follow the service, which must not import this room."""

from __future__ import annotations

import functools
import time

from tracehook.hook.extension import Extension, Host
from tracehook.hook.service import extend
from tracehook.log.event_counts import EventCounts
from tracehook.log.file_name import file_stem
from tracehook.log.journal import Journal
from tracehook.metrics.own import Own, ServiceSeen
from tracehook.metrics.series import text
from tracehook.metrics.writer import Writer


class Followed(Extension):
    """What is known of the service of this process, which calls the methods (hook/extension.py)."""

    def __init__(self) -> None:
        self.seen = ServiceSeen()
        self._writer: Writer | None = None

    def begun(self, host: Host, journal: Journal) -> None:
        """Count the events of this log, and write the file if the settings ask for one. Never raises."""
        self.seen.journal, self.seen.settings = journal, host.settings
        self.seen.tally = journal.tally = EventCounts()
        if host.settings.metrics is None:
            return
        own = Own(self.seen)
        name = f"tracehook.{file_stem(journal.facts.get('job'))}.prom"
        self._writer = Writer(host.settings.metrics / name, lambda: text(own.series()))
        self._writer.start()

    def ended(self) -> None:
        """Write the last file, in which the process has ended."""
        self.seen.ended_at = time.time()
        if self._writer is not None:
            self._writer.finish()

    def abandon(self) -> None:
        """In a forked child: thread and files are the parent's."""
        self.seen.journal = self._writer = None
        self.seen.tally = EventCounts()


@functools.cache
def follow() -> Followed:
    """Return what follows the service; it does so from the first call on."""
    followed = Followed()
    extend(followed)
    return followed
