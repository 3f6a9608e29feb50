"""What a rank comes with to a round of an agreement, and what the round ends with."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from tracehook.agreement import handshake
from tracehook.agreement.rank_names import NOBODY, RankNames

UNKNOWN = -1  # in a position: other threads work on the communicator too, so the number of calls says nothing
MOST_GROUPS = 8  # different wishes that a message shows


class Post(NamedTuple):
    """What one rank came with."""

    act: str
    topic: str
    entries: list[str]
    position: Sequence[int] = ()  # where the rank is in its program: grows; see rounds.py
    greeting: Mapping[str, Any] = {}  # said until all ranks have heard it; see handshake.py

    def written(self) -> str:
        """Return the text that other ranks read."""
        return json.dumps({"format": handshake.FORMAT} | self._asdict())

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the post in a text. Of another format, or none, only the greeting counts."""
        told = json.loads(text)
        if told.get("format") != handshake.FORMAT:
            return cls("", "", [], greeting={"format": told.get("format", 1)} | told.get("greeting", {}))
        return cls(**{name: told[name] for name in cls._fields if name in told})

    @property
    def consequence(self) -> str:
        """What follows for the ranks if the round does not end well."""
        return "no rank uses what it is about" if self.act == "confirm" else "nothing was registered or called"


class RoundVerdict(NamedTuple):
    """What a round ended with, equal on all ranks.

    `kind` is ``ok``, ``mismatch``, ``failed``, ``timeout``, ``declined``, ``skipped``, ``diverged`` or ``differed``.
    `data`: the reasons by rank (failed, declined), or what the ranks share (ok); of ``differed`` how many calls ranks
    have made, and the call at which they hang in NCCL, or None. `position`: where the rank was that wrote the verdict
    before all had come, or that an alarm is about; of ``skipped`` the newest one. `shaken`: what the ranks share from
    now on, once all have said their greeting; see handshake.py.
    """

    kind: str
    text: str = ""
    missing: Sequence[int] = ()
    data: Any = None
    position: Sequence[int] = ()
    topic: str = ""  # of "declined": what that rank does not come to
    shaken: Mapping[str, Any] | None = None

    def written(self) -> str:
        """Return the text that all ranks read."""
        return json.dumps({name: value for name, value in self._asdict().items() if value not in (None, "", ())})

    @classmethod
    def read(cls, text: str | bytes) -> Self:
        """Return the verdict in a text."""
        told = json.loads(text)
        return cls(**{name: told[name] for name in cls._fields if name in told})


def is_same(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two positions are one place in the program, as far as both ranks know it."""
    return all(mine == theirs or UNKNOWN in (mine, theirs) for mine, theirs in zip(one, other, strict=True))


def is_further(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether the first position comes later in the program than the other, as far as both ranks know it."""
    known = [(mine, theirs) for mine, theirs in zip(one, other, strict=True) if UNKNOWN not in (mine, theirs)]
    return [mine for mine, _ in known] > [theirs for _, theirs in known]


def judge(about: str, posts: Sequence[Post], names: RankNames = NOBODY) -> RoundVerdict:
    """Compare the posts of all ranks, in the order of the ranks."""
    first = posts[0]
    act, topic, entries = first[:3]
    if any(post[:2] != first[:2] for post in posts):
        wishes = [f"to {post.act} {post.topic!r}" for post in posts]
        return RoundVerdict(
            "mismatch", f"{about}: the ranks are not at the same point: {_told(wishes, names)}; no rank goes on"
        )
    if not all(is_same(post.position, first.position) for post in posts):
        return _apart(about, posts, names)
    if act in ("confirm", "level"):
        failed = {reason: ranks for reason, ranks in _grouped([post.entries[0] for post in posts]).items() if reason}
        told = "; ".join(f"on {names.named(ranks)}: {reason}" for reason, ranks in failed.items())
        text = f"{about}: {topic!r} failed {told}; {first.consequence}"
        reasons = {rank: reason for reason, ranks in failed.items() for rank in ranks}
        if failed:
            return RoundVerdict("failed", text, data=reasons)
        calls = [int(post.entries[1]) for post in posts]
        return RoundVerdict("ok", data=max(calls) if act == "confirm" else _levels(posts, calls))
    if act == "exchange":
        return RoundVerdict("ok", data=[post.entries for post in posts])
    if act == "share":
        everywhere = set(entries).intersection(*(post.entries for post in posts))
        return RoundVerdict("ok", data=[entry for entry in entries if entry in everywhere])
    if all(post.entries == entries for post in posts):
        return RoundVerdict("ok", data=any(UNKNOWN in post.position for post in posts))
    # Padded with None, so that a list which ends earlier differs there.
    columns = enumerate(itertools.zip_longest(*(post.entries for post in posts)), start=1)
    position, column = next((position, column) for position, column in columns if len(set(column)) > 1)
    told = _told(["nothing" if entry is None else repr(entry) for entry in column], names)
    text = f"{about}: the ranks differ at {topic!r}, entry {position}: {told}; {first.consequence}"
    return RoundVerdict("mismatch", text, data=topic)


def _apart(about: str, posts: Sequence[Post], names: RankNames) -> RoundVerdict:
    """Judge ranks that do the same at different places of the program."""
    places = range(len(posts[0].position))
    shared = [place for place in places if all(post.position[place] != UNKNOWN for post in posts)]
    newest = max((post.position for post in posts), key=lambda position: [position[place] for place in shared])
    behind = [rank for rank, post in enumerate(posts) if not is_same(post.position, newest)]
    ahead = [rank for rank, post in enumerate(posts) if is_same(post.position, newest)]
    first, further, others = posts[0], names.named(ahead), names.named(behind)
    if first.act == "use":
        text = (
            f"{about}: the ranks are not at the same call: {further} came to {first.topic!r} as call {newest[0]}, "
            f"{others} as an earlier one. A call may wait inside NCCL: abort the group"
        )
        return RoundVerdict("diverged", text)
    text = (
        f"{about}: {further} did not come to {first.topic!r} where {others} did, and went on in the program; "
        f"{first.consequence}"
    )
    return RoundVerdict("skipped", text, position=newest)


def _levels(posts: Sequence[Post], calls: Sequence[int]) -> tuple[int, bool]:
    """Return the most calls that a rank made, if all can say, and whether all are level; see fence.py."""
    most = UNKNOWN if UNKNOWN in calls else max(calls)
    return most, not any(post.entries[2] for post in posts) and (most == UNKNOWN or min(calls) == most)


def _told(wishes: Sequence[str], names: RankNames) -> str:
    """Say who wants what: the majority first, then the odd ones."""
    groups = sorted(_grouped(wishes).items(), key=lambda group: -len(group[1]))
    parts = [f"{names.named(ranks)} want{'s' * (len(ranks) == 1)} {wish}" for wish, ranks in groups[:MOST_GROUPS]]
    if len(groups) > MOST_GROUPS:
        parts.append(f"and {len(groups) - MOST_GROUPS} more wishes")
    if len(groups[0][1]) > len(groups[1][1]):
        parts[1] = f"the odd one{'s' * (len(parts) > 2)} out: {parts[1]}"
    return "; ".join(parts)


def _grouped(values: Sequence[str]) -> dict[str, list[int]]:
    return {value: [rank for rank, own in enumerate(values) if own == value] for value in dict.fromkeys(values)}
