"""What a process took part in, as far as its events tell: what parts ranks from launchers, and one job from another."""

from __future__ import annotations

from dataclasses import dataclass, field

from tracehook.log.lines import Event, whole_number


@dataclass
class Participation:
    """Whether it used a device, its communicators of several ranks, and its rank if it learned that late.

    `tells_of_ranks`: it says what happened to others, as a rehearsal does.
    """

    used_device: bool = False
    communicators: set[str] = field(default_factory=set)  # keys, which no other job has
    rank: int | None = None
    tells_of_ranks: bool = False

    def add(self, event: Event) -> None:
        """Take an event into account."""
        self.used_device = self.used_device or event.get("device") is not None
        match event["event"]:
            # The key of an adopted one is made of the group's name, which other jobs have too.
            case "communicator.pending" if (whole_number(event.get("ranks")) or 0) > 1 and not event.get("adopted"):
                self.communicators.add(str(event.get("comm")))
            case "rank.known":
                self.rank = whole_number(event.get("rank"), 1 << 31)
            case "rehearsal.violation" | "rehearsal.hang":
                self.tells_of_ranks = True
            case _:
                pass
