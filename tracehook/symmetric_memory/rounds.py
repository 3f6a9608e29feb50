"""One rank's part in one round of an agreement, step by step: no thread, no clock, no connection.

Every rank posts what it wants under a key of its own. Rank 0, the leader, waits for the posts of all, judges them and
writes the verdict. The others wait for the verdict. A rank whose time is up writes a verdict as well: time-out. Each
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

Ranks of one host meet on a board in shared memory (`hosts.py`), once they know who shares one. The first rank of a
host, its *speaker*, gathers their posts there. It takes all of them to the store under its own key, and shows the
verdict on the board. So a store serves one rank for each host. The board decides nothing: a rank that does not find
there soon that its speaker has spoken does all in the store, as if there were no board. Once the speaker has spoken,
the others wait on the board for as long as their time lasts, and look into the store now and then, because the speaker
may have died.

Where all ranks share one host the board also decides, without the store. If all posts are there and agree, the leader
settles the round on the board. Any rank that wants another verdict, or no longer waits, closes the board first, and
then does all in the store. Whichever comes first holds: nothing is settled on a closed board, and who finds the round
settled obeys that. A closed board stays closed. After that round the ranks name their hosts again, and meet on a new
board.

Where more ranks speak than one key shall have readers, they are cut into shards (`levels.py`). The *collector* of a
shard gathers in the store what its shard came with, takes that to the leader under one key, waits for the verdict, and
copies it to a key of the shard, where the others wait. A copy says what stands, so it may come twice, from anybody, or
never: a rank whose time is up looks where the verdict itself stands. Who ends a round before all have come copies to
all shards, because their collectors may be what is missing.

A rank cannot agree with the others if it loses the store, or is interrupted, between its post and the verdict: it
raises, and cannot know whether the others go on.

The steps are generators that yield operations of a store and receive their results. `lines.py` carries them out on a
store of torch; a test carries them out in every order that two and three ranks can have.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tracehook.symmetric_memory.hosts import numbered, packed
from tracehook.symmetric_memory.part import LEADER, Part
from tracehook.symmetric_memory.verdicts import Post, RoundVerdict, is_further, judge

EARLY = ("timeout", "declined")  # verdicts of ranks that do not wait for all to come


class Operation(NamedTuple):
    """What a step wants of the store, or of the board.

    Of the store: ``set`` (key, value), ``check`` (keys) -> bool, ``wait`` (keys) -> bool, false when the time is up;
    ``wait`` (keys, verdict key) ends with false too when there is a verdict. ``read`` (keys that exist) -> list of
    bytes, ``claim`` (key, value) -> bytes that stand there, ``peek`` (key) -> bytes, empty if it is absent, ``keys`` ()
    -> all keys.
    Of the board: ``post`` (number, text), ``gather`` (number) -> texts by rank, empty if not all came at once,
    ``speak`` (number), ``spoken`` (number) -> bool, ``publish`` (number, text), ``published`` (number) -> text, empty
    if there is none. Of one that all ranks share: ``settle`` (number, text) -> bool, ``settled`` (number) -> text,
    empty if there is none, ``close`` (number) -> None, or the text if the round was settled before.
    Of both: ``listen`` (number, key) -> the text that is published, empty if the store has the key first, or the time
    is up.
    """

    name: str
    given: tuple[Any, ...] = ()


Steps = Generator[Operation, Any, RoundVerdict]


def attend(part: Part, number: int, post: Post) -> Steps:
    """Take part in round `number`: post, wait, propose a verdict if there is none, and return the one that stands."""
    text = json.dumps(post)
    if part.has_neighbours:
        yield Operation("post", (number, text))
    if part.rank == LEADER:
        proposal = yield from _lead(part, number, post)
    elif part.is_speaker:
        gathered = yield from _gather(part, number)
        yield Operation("set", (part.post_key(number, part.rank), _bundle(gathered) if gathered else text))
        if gathered and not part.is_on_one_host:
            yield Operation("speak", (number,))
        instead = None
        if part.collects:
            instead = yield from _take_on(part, number, post, {part.rank: text, **gathered})
        proposal = (yield from _follow(part, number, post)) if instead is None else instead
    else:
        shown = yield Operation("settled" if part.is_on_one_host else "published", (number,))
        if not shown and part.is_on_one_host:
            shown = yield Operation("close", (number,))
        if shown:
            return RoundVerdict(*json.loads(shown))
        if not part.is_on_one_host and (yield Operation("spoken", (number,))):
            shown = yield Operation("listen", (number, part.heard_key(number)))
            if shown:
                return RoundVerdict(*json.loads(shown))
            proposal = yield from _give_up(part, number, post)
        else:
            yield Operation("set", (part.post_key(number, part.rank), text))
            proposal = yield from _follow(part, number, post)
    return (yield from _claim(part, number, proposal))


def decline(part: Part, number: int, post: Post, why: str) -> Steps:
    """End round `number` at once, because this rank cannot go on; return the verdict that stands."""
    text = f"{part.about}: {part.who} could not go on: {why}; {post.consequence}"
    proposal = RoundVerdict("declined", text, data={str(part.rank): why}, position=post.position, topic=post.topic)
    stands = yield from _claim(part, number, proposal)
    if part.rank != LEADER:  # the leader may wait for it
        if part.has_neighbours:
            yield Operation("post", (number, json.dumps(post)))
        yield Operation("set", (part.post_key(number, part.rank), json.dumps(post)))
    return stands


def leave(part: Part, number: int, post: Post, why: str) -> Steps:
    """End round `number`, to which this rank has come, because it waits no longer; return the verdict that stands."""
    text = f"{part.about}: {part.who} ended its wait at {post.topic!r} by {why}; {post.consequence}"
    return (yield from _claim(part, number, RoundVerdict("timeout", text, [part.rank], position=post.position)))


def _claim(part: Part, number: int, proposal: RoundVerdict | str) -> Steps:
    """Return the verdict that stands, perhaps the proposal. A text is the key at which the verdict was seen."""
    text = json.dumps(proposal)
    if part.is_on_one_host:
        if part.rank == LEADER and isinstance(proposal, RoundVerdict) and proposal.kind == "ok":
            if (yield Operation("settle", (number, text))):
                return proposal
        else:
            shown = yield Operation("close", (number,))
            if shown:
                return RoundVerdict(*json.loads(shown))
    seen = isinstance(proposal, str) and proposal != part.verdict_key(number)
    if seen:
        stands = yield Operation("peek", (proposal,))
    else:
        stands = yield Operation("claim", (part.verdict_key(number), text))
        is_early = isinstance(proposal, RoundVerdict) and proposal.kind in EARLY and stands.decode() == text
        for key in _to_copy(part, number, to_all=is_early):
            yield Operation("set", (key, stands.decode()))
    if part.has_neighbours and part.is_speaker and not part.is_on_one_host:
        yield Operation("publish", (number, stands.decode()))
    return RoundVerdict(*json.loads(stands))


def _to_copy(part: Part, number: int, to_all: bool) -> list[str]:
    """Return where a rank copies the verdict that it found where the verdict itself stands."""
    own = part.rank if part.collects else part.shard.collector
    return part.copy_keys(number) if to_all else [part.copy_key(number, own)] * (own != LEADER)


def is_for(verdict: RoundVerdict, post: Post) -> bool:
    """Whether a verdict is about the call that this rank makes; if not, that round is over and the next one counts."""
    if verdict.kind == "skipped":
        return is_further(verdict.position, post.position)  # those who are furthest meet in the next round
    if verdict.kind == "declined" and verdict.topic != post.topic:
        return False
    return not verdict.position or not is_further(post.position, verdict.position)


def _lead(part: Part, number: int, post: Post) -> Generator[Operation, Any, RoundVerdict | str]:
    gathered = yield from _gather(part, number)
    texts = {LEADER: json.dumps(post), **gathered}
    if len(texts) < part.ranks:
        with_it = f" {json.dumps(list(gathered))}" if gathered else ""
        yield Operation("set", (part.leader_key, f"{number}{with_it}"))
        if gathered:
            yield Operation("speak", (number,))
    instead = yield from _collect(part, number, post, texts)
    if instead is not None:
        return instead
    # Most often all are equal: parse each different one once.
    known = {text: Post(*json.loads(text)) for text in set(texts.values())}
    posts = list(known.values())
    if len(posts) == 1 and not posts[0].host:
        verdict = judge(part.about, posts, part.members)
        if verdict.kind == "ok":
            return verdict  # of many ranks it would be the same
    verdict = judge(part.about, [known[texts[rank]] for rank in range(part.ranks)], part.members)
    if verdict.kind == "ok":
        hosts = numbered([known[texts[rank]].host for rank in range(part.ranks)])
        verdict = verdict._replace(hosts=packed(hosts))
    return verdict


def _take_on(
    part: Part, number: int, post: Post, texts: dict[int, str]
) -> Generator[Operation, Any, RoundVerdict | str | None]:
    """Take to the leader what this rank's shard came with; return what to go by if that does not come together."""
    instead = yield from _collect(part, number, post, texts)
    if instead is None:
        yield Operation("set", (part.shard_key(number, part.rank), _bundle(texts)))
    return instead


def _collect(
    part: Part, number: int, post: Post, texts: dict[int, str]
) -> Generator[Operation, Any, RoundVerdict | str | None]:
    """Add the posts of all for whom this rank collects; return what to go by if they do not come together."""
    shards = part.shard.collectors[1:] if part.rank == LEADER else ()
    # First those that speak for others, then whoever had to post alone.
    for asked in ([*part.shard.speakers, *shards], part.shard.ranks):
        wanted = [rank for rank in asked if rank not in texts]
        if not wanted:
            continue
        keys = [part.shard_key(number, rank) if rank in shards else part.post_key(number, rank) for rank in wanted]
        if not (yield Operation("check", (keys,))):
            # Who comes late must not wait for posts: their ranks may have gone on to the next round.
            if (yield Operation("check", ([part.verdict_key(number)],))):
                return part.verdict_key(number)
            if not (yield Operation("wait", (keys, part.verdict_key(number)))):
                if (yield Operation("check", ([part.verdict_key(number)],))):
                    return part.verdict_key(number)
                missing, silent = yield from _missing(part, number)
                if missing or (shards and silent):  # else the last one came just now
                    return _timed_out(part, post, missing, silent)
        texts |= _unbundled(wanted, (yield Operation("read", (keys,))))
    return None


def _follow(part: Part, number: int, post: Post) -> Generator[Operation, Any, RoundVerdict | str]:
    if (yield Operation("wait", ([part.heard_key(number)],))):
        return part.heard_key(number)
    return (yield from _give_up(part, number, post))


def _give_up(part: Part, number: int, post: Post) -> Generator[Operation, Any, RoundVerdict | str]:
    """Return what to go by when the time is up: the verdict if it stands, or a time-out."""
    if (yield Operation("check", ([part.verdict_key(number)],))):
        return part.verdict_key(number)
    return _timed_out(part, post, *(yield from _missing(part, number)))


def _timed_out(part: Part, post: Post, missing: Sequence[int], silent: Sequence[int]) -> RoundVerdict:
    named = part.members.named
    what = f"{named(missing)} did not come" if missing else f"{named(silent or [LEADER])} came, but gave no verdict"
    waited = f"within the {part.timeout:g} s that {part.who} waited at {post.topic!r}"
    text = f"{part.about}: {what} {waited}; {post.consequence}"
    return RoundVerdict("timeout", text, missing or silent or [LEADER], position=post.position)


def _missing(part: Part, number: int) -> Generator[Operation, Any, tuple[list[int], list[int]]]:
    """Return the ranks that have not come to this round, and the other collectors that took nothing to the leader."""
    keys = yield Operation("keys")
    came = {rank for rank in range(part.ranks) if part.post_key(number, rank) in keys}
    speakers = [rank for rank in part.hosts.speakers if rank in came]
    if speakers:
        values = yield Operation("read", ([part.post_key(number, rank) for rank in speakers],))
        came.update(_unbundled(speakers, values))
    newest, _, with_it = (yield Operation("peek", (part.leader_key,))).decode().partition(" ")
    if newest == str(number):
        came.update([LEADER, *json.loads(with_it or "[]")])
    silent = [rank for rank in part.shard.collectors[1:] if part.shard_key(number, rank) not in keys]
    return [rank for rank in range(part.ranks) if rank not in came], [rank for rank in silent if rank != part.rank]


def _gather(part: Part, number: int) -> Generator[Operation, Any, Mapping[int, str]]:
    """Return the posts of this host by rank; empty if not all came at once, or this rank is alone there."""
    if not part.has_neighbours:
        return {}
    texts: Mapping[int, str] = yield Operation("gather", (number,))
    return texts


def _bundle(texts: Mapping[int, str]) -> str:
    """Put the posts of several ranks into one value: equal ones once."""
    ranks: dict[str, list[int]] = {}
    for rank, text in texts.items():
        ranks.setdefault(text, []).append(rank)
    return json.dumps(ranks)


def _unbundled(ranks: Iterable[int], values: Iterable[bytes]) -> dict[int, str]:
    """Return the posts by rank from what stands under the keys of `ranks`: a post, or a bundle of posts."""
    texts: dict[int, str] = {}
    for rank, value in zip(ranks, values, strict=True):
        text = value.decode()
        found = {text: [rank]} if text.startswith("[") else json.loads(text)
        texts |= {other: post for post, others in found.items() for other in others}
    return texts
