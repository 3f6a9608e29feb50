"""One rank's part in one round of an agreement, step by step: no thread, no clock, no connection.

Every rank posts its wish under its own key, and counts itself. The rank that counts last judges all posts and writes
the verdict. The others wait for it. A rank whose time is up writes a verdict as well: which ranks are missing. Each
writes onto an absent key, so the first verdict stands, and *every rank obeys the one that stands*, never its own
proposal. That is why no rank goes on while another one raises:

* rank late: it finds the time-out that the others wrote, although it may count last;
* rank at the very deadline: it counts last or it does not; either way there is one verdict;
* rank dead after its post: it raises nothing any more. If it was the one to judge, a rank whose time is up finds that
  nobody is missing, and judges. The others go on and meet its end in the collective call;
* rank that cannot go on (:func:`decline`), or was interrupted (:func:`leave`): it writes the verdict at once.

A rank cannot agree with the others if it loses the store, or is interrupted, between its post and the verdict: it
raises, and cannot know whether the others go on.

The steps are generators that yield operations of a store and receive their results. `store_worker.py` carries them out.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from tracehook.agreement import handshake
from tracehook.agreement.rank_names import NOBODY, RankNames
from tracehook.agreement.verdicts import Post, RoundVerdict, is_further, judge

LEADER = 0  # removes what a round leaves in the store, and compares what ranks say in the background


class RoundTopology(NamedTuple):
    """Who takes part, in which sequence of rounds."""

    prefix: str
    rank: int
    ranks: int
    about: str  # what messages call the communicator
    timeout: float  # seconds, for messages
    names: RankNames = NOBODY

    @property
    def who(self) -> str:
        """What messages call this rank."""
        return self.names.named([self.rank])

    @property
    def others(self) -> list[int]:
        """The ranks besides this one."""
        return [rank for rank in range(self.ranks) if rank != self.rank]

    def verdict_key(self, number: int) -> str:
        """Where the verdict of a round stands."""
        return f"{self.prefix}/{number}/verdict"

    def count_key(self, number: int) -> str:
        """Where the ranks that have come to a round are counted."""
        return f"{self.prefix}/{number}/came"

    def post_key(self, number: int, rank: int) -> str:
        """Where a rank posts."""
        return f"{self.prefix}/{number}/{rank}"


class Operation(NamedTuple):
    """What a step wants of the store.

    ``set`` (key, value), ``count`` (key) -> how often it was counted, with this time, ``wait`` (key) -> bool, false
    when the time is up, ``claim`` (key, value) -> bytes that stand there, ``peek`` (keys) -> list of bytes, empty where
    none stand, ``read`` (keys) -> the same, but no list if one is missing. Each may be made twice.
    """

    name: str
    given: tuple[Any, ...] = ()


Steps = Generator[Operation, Any, RoundVerdict]


def attend(topology: RoundTopology, number: int, post: Post) -> Steps:
    """Take part in round `number`: post, judge or wait, and return the verdict that stands."""
    own, key = post.written(), topology.verdict_key(number)
    yield Operation("set", (topology.post_key(number, topology.rank), own))
    came = yield Operation("count", (topology.count_key(number),))
    keys = [topology.post_key(number, rank) for rank in topology.others]
    found: Sequence[bytes] = []
    if came >= topology.ranks:  # but a rank that lost its connection may have counted itself twice
        found = yield Operation("read", (keys,))
    if not found:
        if (yield Operation("wait", (key,))):
            [stands] = yield Operation("peek", ([key],))
            return RoundVerdict.read(stands)
        found = yield Operation("peek", (keys,))
    posts = dict(zip(topology.others, found, strict=True)) | {topology.rank: own.encode()}
    late = [rank for rank, text in posts.items() if not text]
    proposal = _timed_out(topology, post, late) if late else _judged(topology, [posts[rank] for rank in sorted(posts)])
    return (yield from claim(key, proposal))


def decline(topology: RoundTopology, number: int, post: Post, why: str) -> Steps:
    """End round `number` at once, because this rank cannot go on; return the verdict that stands."""
    text = f"{topology.about}: {topology.who} could not go on: {why}; {post.consequence}"
    data = {str(topology.rank): why}
    proposal = RoundVerdict("declined", text, data=data, position=post.position, topic=post.topic)
    return (yield from claim(topology.verdict_key(number), proposal))


def leave(topology: RoundTopology, number: int, post: Post, why: str) -> Steps:
    """End round `number`, to which this rank has come, because it waits no longer; return the verdict that stands."""
    text = f"{topology.about}: {topology.who} ended its wait at {post.topic!r} by {why}; {post.consequence}"
    proposal = RoundVerdict("timeout", text, [topology.rank], position=post.position)
    return (yield from claim(topology.verdict_key(number), proposal))


def missing(topology: RoundTopology, number: int) -> Generator[Operation, Any, list[int]]:
    """Return the ranks that have not come to a round in which this rank waits."""
    found = yield Operation("peek", ([topology.post_key(number, rank) for rank in topology.others],))
    return [rank for rank, text in zip(topology.others, found, strict=True) if not text]


def is_for(verdict: RoundVerdict, post: Post) -> bool:
    """Whether a verdict is about the call that this rank makes; if not, that round is over and the next one counts."""
    if verdict.kind == "skipped":
        return is_further(verdict.position, post.position)  # those who are furthest meet in the next round
    if verdict.kind == "declined" and verdict.topic not in ("", post.topic):
        return False
    return not verdict.position or not is_further(post.position, verdict.position)


def claim(verdict_key: str, proposal: RoundVerdict) -> Steps:
    """Return the verdict that stands, perhaps the proposal."""
    return RoundVerdict.read((yield Operation("claim", (verdict_key, proposal.written()))))


def counted(key: str) -> Generator[Operation, Any, int]:
    """Add one to a counter that only this rank writes, and return it."""
    [found] = yield Operation("peek", ([key],))
    number = int(found or 0) + 1
    yield Operation("set", (key, str(number)))  # which may be made twice, unlike an addition
    return number


def _judged(topology: RoundTopology, texts: Sequence[bytes]) -> RoundVerdict:
    # Most often all are equal: parse each different one once.
    known = {text: Post.read(text.decode()) for text in set(texts)}
    posts = [known[text] for text in texts]
    if len(known) == 1 and not posts[0].greeting and posts[0].act != "exchange":
        verdict = judge(topology.about, posts[:1], topology.names)
        if verdict.kind == "ok":
            return verdict  # of many ranks it would be the same
    greetings = [post.greeting for post in posts]
    refusal = handshake.refusal(topology.about, greetings, topology.names)
    if refusal:
        return RoundVerdict("mismatch", refusal)
    verdict = judge(topology.about, posts, topology.names)
    if verdict.kind != "ok" or not all(greetings):
        return verdict
    return verdict._replace(shaken=handshake.shaken(topology.about, greetings, topology.names))


def _timed_out(topology: RoundTopology, post: Post, late: Sequence[int]) -> RoundVerdict:
    waited = f"within the {topology.timeout:g} s that {topology.who} waited at {post.topic!r}"
    text = f"{topology.about}: {topology.names.named(late)} did not come {waited}; {post.consequence}"
    return RoundVerdict("timeout", text, late, position=post.position)
