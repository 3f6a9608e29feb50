"""One rank's part in one round of an agreement, step by step: no thread, no clock, no connection.

Every rank posts its wish under its own key. Rank 0, the leader, waits for all posts, judges them and writes the
verdict. The others wait for the verdict. A rank whose time is up writes a verdict as well: time-out. Each
writes onto an absent key, so the first verdict stands, and *every rank obeys the one that stands*, never its own
proposal. That is why no rank goes on while another one raises:

* leader late or dead: the first rank whose time is up writes the time-out, which the leader finds when it comes;
* other rank late: it finds the time-out that the others wrote;
* rank at the very deadline: the leader has seen its post or has not; either way there is one verdict;
* rank dead after its post: it raises nothing any more; the others go on and meet its end in the collective call;
* rank that cannot go on, such as one whose allocation failed: it writes the verdict at once (:func:`decline`);
* rank that was interrupted while it waited: it writes a time-out at once (:func:`leave`).

A round that failed is over for everybody, and the next one has the next number. Each rank says its *position* in the
program. A rank that is further than the position at which a round failed was never at that call, so it goes on to the
next round, up to the newest; every other rank raises what the verdict says. Ranks that meet at different positions part
again: those who are further skipped what the others came to, and wait for them in the next round.

Ranks of one host meet at a mailbox in shared memory (`mailbox.py`), once they know who shares one. The first rank of a
host, its *speaker*, gathers their posts there. It takes all of them to the store under its own key, and shows the
verdict in the mailbox. So a store serves one rank for each host. The mailbox decides nothing: a rank that does not find
there soon that its speaker has spoken does all in the store, as if there were no mailbox. Once the speaker has spoken,
the others wait at the mailbox for as long as their time lasts, and look into the store now and then, because the
speaker may have died.

A rank cannot agree with the others if it loses the store, or is interrupted, between its post and the verdict: it
raises, and cannot know whether the others go on.

The steps are generators that yield operations of a store and receive their results. `store_worker.py` carries them out
on a store of torch; a test carries them out in every order that two and three ranks can have.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tracehook.agreement import handshake
from tracehook.agreement.topology import LEADER, RoundTopology, numbered
from tracehook.agreement.verdicts import Post, RoundVerdict, is_further, judge


class Operation(NamedTuple):
    """What a step wants of the store, or of the mailbox.

    Of the store: ``set`` (key, value), ``check`` (keys) -> bool, ``wait`` (keys) -> bool, false when the time is up;
    ``wait`` (keys, verdict key) ends with false too when there is a verdict. ``multi_get`` (keys that exist) -> list of
    bytes, ``claim`` (key, value) -> bytes that stand there, ``peek`` (keys) -> list of bytes, empty where none stand.
    Of the mailbox: ``post`` (number, text), ``gather`` (number) -> texts by rank, empty if not all came at once,
    ``speak`` (number), ``has_spoken`` (number) -> bool, ``publish`` (number, text), ``published`` (number) -> text,
    empty if there is none.
    Of both: ``listen`` (number, key) -> the text that is published, empty if the store has the key first, or the time
    is up.
    """

    name: str
    given: tuple[Any, ...] = ()


Steps = Generator[Operation, Any, RoundVerdict]
Proposed = Generator[Operation, Any, RoundVerdict | None]  # None: there is a verdict already


def attend(topology: RoundTopology, number: int, post: Post) -> Steps:
    """Take part in round `number`: post, wait, propose a verdict if there is none, and return the one that stands."""
    text = post.written()
    if topology.has_neighbours:
        yield Operation("post", (number, text))
    if topology.rank == LEADER:
        proposal = yield from _lead(topology, number, post)
    elif topology.is_speaker:
        gathered = yield from _gather(topology, number)
        key = topology.post_key(number, topology.rank)
        yield Operation("set", (key, _bundle(gathered) if gathered else text))
        if gathered:
            yield Operation("speak", (number,))
        proposal = yield from _follow(topology, number, post)
    else:
        shown = yield Operation("published", (number,))
        if not shown and (yield Operation("has_spoken", (number,))):
            shown = yield Operation("listen", (number, topology.verdict_key(number)))
            if not shown:
                proposal = yield from _give_up(topology, number, post)
        elif not shown:
            yield Operation("set", (topology.post_key(number, topology.rank), text))
            proposal = yield from _follow(topology, number, post)
        if shown:
            return RoundVerdict.read(shown)
    return (yield from _claim(topology, number, proposal))


def decline(topology: RoundTopology, number: int, post: Post, why: str) -> Steps:
    """End round `number` at once, because this rank cannot go on; return the verdict that stands."""
    text = f"{topology.about}: {topology.who} could not go on: {why}; {post.consequence}"
    data = {str(topology.rank): why}
    stands = yield from _claim(
        topology, number, RoundVerdict("declined", text, data=data, position=post.position, topic=post.topic)
    )
    if topology.rank != LEADER:  # the leader may wait for it
        if topology.has_neighbours:
            yield Operation("post", (number, post.written()))
        yield Operation("set", (topology.post_key(number, topology.rank), post.written()))
    return stands


def leave(topology: RoundTopology, number: int, post: Post, why: str) -> Steps:
    """End round `number`, to which this rank has come, because it waits no longer; return the verdict that stands."""
    text = f"{topology.about}: {topology.who} ended its wait at {post.topic!r} by {why}; {post.consequence}"
    proposal = RoundVerdict("timeout", text, [topology.rank], position=post.position)
    return (yield from _claim(topology, number, proposal))


def _claim(topology: RoundTopology, number: int, proposal: RoundVerdict | None) -> Steps:
    """Return the verdict that stands, perhaps the proposal. None: there is one already."""
    key = topology.verdict_key(number)
    if proposal is None:
        [stands] = yield Operation("peek", ([key],))
    else:
        stands = yield Operation("claim", (key, proposal.written()))
    if topology.has_neighbours and topology.is_speaker:
        yield Operation("publish", (number, stands.decode()))
    return RoundVerdict.read(stands)


def is_for(verdict: RoundVerdict, post: Post) -> bool:
    """Whether a verdict is about the call that this rank makes; if not, that round is over and the next one counts."""
    if verdict.kind == "skipped":
        return is_further(verdict.position, post.position)  # those who are furthest meet in the next round
    if verdict.kind == "declined" and verdict.topic not in ("", post.topic):
        return False
    return not verdict.position or not is_further(post.position, verdict.position)


def _lead(topology: RoundTopology, number: int, post: Post) -> Proposed:
    gathered = yield from _gather(topology, number)
    texts = {LEADER: post.written(), **gathered}
    if len(texts) < topology.ranks:
        yield Operation("set", (topology.post_key(number, LEADER), _bundle(gathered) if gathered else texts[LEADER]))
        if gathered:
            yield Operation("speak", (number,))
    # First those that speak for others, then whoever had to post alone.
    for asked in (topology.hosts.speakers, range(topology.ranks)):
        wanted = [rank for rank in asked if rank not in texts]
        if not wanted:
            continue
        keys = [topology.post_key(number, rank) for rank in wanted]
        verdict_key = topology.verdict_key(number)
        if not (yield Operation("check", (keys,))):
            # Who comes late must not wait for posts: their ranks may have gone on to the next round.
            if (yield Operation("check", ([verdict_key],))):
                return None
            if not (yield Operation("wait", (keys, verdict_key))):
                if (yield Operation("check", ([verdict_key],))):
                    return None
                late = yield from missing(topology, number)
                if late:  # else the last one came just now
                    return _timed_out(topology, post, late)
        texts |= _unbundled(wanted, (yield Operation("multi_get", (keys,))))
    return _judged(topology, texts)


def _judged(topology: RoundTopology, texts: Mapping[int, str]) -> RoundVerdict:
    # Most often all are equal: parse each different one once.
    known = {text: Post.read(text) for text in set(texts.values())}
    posts = [known[texts[rank]] for rank in range(topology.ranks)]
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
    return verdict._replace(
        shaken={
            "hosts": numbered([one["host"] for one in greetings]),
            "guard": handshake.guard(greetings),
            "differences": handshake.differences(topology.about, greetings, topology.names),
        }
    )


def _follow(topology: RoundTopology, number: int, post: Post) -> Proposed:
    if (yield Operation("wait", ([topology.verdict_key(number)],))):
        return None
    return (yield from _give_up(topology, number, post))


def _give_up(topology: RoundTopology, number: int, post: Post) -> Proposed:
    """Return a time-out when the time is up; None if there is a verdict."""
    if (yield Operation("check", ([topology.verdict_key(number)],))):
        return None
    return _timed_out(topology, post, (yield from missing(topology, number)))


def _timed_out(topology: RoundTopology, post: Post, late: Sequence[int]) -> RoundVerdict:
    named = topology.names.named
    what = f"{named(late)} did not come" if late else f"{named([LEADER])} came, but gave no verdict"
    waited = f"within the {topology.timeout:g} s that {topology.who} waited at {post.topic!r}"
    text = f"{topology.about}: {what} {waited}; {post.consequence}"
    return RoundVerdict("timeout", text, late or [LEADER], position=post.position)


def missing(topology: RoundTopology, number: int) -> Generator[Operation, Any, list[int]]:
    """Return the ranks that have not come to a round in which this rank waits."""
    found = yield Operation("peek", ([topology.post_key(number, rank) for rank in range(topology.ranks)],))
    posted = {rank: text for rank, text in enumerate(found) if text}
    came = {topology.rank, *_unbundled(posted, posted.values())}
    return [rank for rank in range(topology.ranks) if rank not in came]


def _gather(topology: RoundTopology, number: int) -> Generator[Operation, Any, Mapping[int, str]]:
    """Return the posts of this host by rank; empty if not all came at once, or this rank is alone there."""
    if not topology.has_neighbours:
        return {}
    texts: Mapping[int, str] = yield Operation("gather", (number,))
    return texts


def _bundle(texts: Mapping[int, str]) -> str:
    """Put the posts of several ranks into one value: equal ones once."""
    ranks: dict[str, list[int]] = {}
    for rank, text in texts.items():
        ranks.setdefault(text, []).append(rank)
    return json.dumps(list(ranks.items()))


def _unbundled(ranks: Iterable[int], values: Iterable[bytes]) -> dict[int, str]:
    """Return the posts by rank from what stands under the keys of `ranks`: a post, or a bundle of posts."""
    texts: dict[int, str] = {}
    for rank, value in zip(ranks, values, strict=True):
        text = value.decode()
        found = dict(json.loads(text)) if text.startswith("[[") else {text: [rank]}
        texts |= {other: post for post, others in found.items() for other in others}
    return texts
