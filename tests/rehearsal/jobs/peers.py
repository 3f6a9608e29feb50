"""Peers that map each other's memory; each argument is one case, in their order."""

import contextlib
import ctypes
import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import tracehook
from tracehook._core import ipc as native
from tracehook.ipc import PeerGroup, PeerTensor
from tracehook.ipc.tables import EXPORTS, IMPORTS

from common import MB, RANK, WORLD, filled, must, settle, start, tell

OTHERS = [rank for rank in range(WORLD) if rank != RANK]
RIGHT, LEFT = (RANK + 1) % WORLD, (RANK - 1) % WORLD
NEIGHBOURS = len({RIGHT, LEFT})


def value(tensor: torch.Tensor | PeerTensor) -> float:
    """Return the one value that a tensor is filled with."""
    copied = tensor.get() if isinstance(tensor, PeerTensor) else tensor
    low, high = (float(end) for end in copied.cpu().aminmax())
    return low if low == high else float("nan")


def ready(value: float, size_mb: float) -> torch.Tensor:
    """Return a tensor that peers may read: it is filled."""
    tensor = filled(value, size_mb, device)
    torch.cuda.synchronize()
    return tensor


@contextlib.contextmanager
def peers(**given: Any) -> Iterator[PeerGroup]:
    """Make a group, which ends when all work of all ranks is over."""
    with PeerGroup(**given) as group:
        yield group
        settle()


def until(condition: Callable[[], bool], group: PeerGroup | None = None) -> bool:
    """Wait for a condition, calling the group; whether it came true."""
    deadline = time.monotonic() + 10
    while not condition():
        if time.monotonic() > deadline:
            return False
        if group is not None:
            group.poll()
        time.sleep(0.002)
    return True


def all_returned(group: PeerGroup, mapped: int, held: int = 1) -> bool:
    """Call the group until this rank has only so much of its peers, and they of it; whether that came true.

    Both, because a rank whose own memory is back still has to unmap what its peers want back. It waits for its device
    first, which a barrier would keep busy until the peers come.
    """
    return until(lambda: (EXPORTS.held()[0], IMPORTS.mapped()) == (held, mapped), group)


def said(attempt: Callable[[], object]) -> list[str]:
    """Return the exception of a call: its name and its line."""
    try:
        attempt()
    except (RuntimeError, TypeError, ValueError) as problem:
        return [type(problem).__name__, str(problem)]
    return []


def one_of(found: object) -> PeerTensor:
    assert isinstance(found, PeerTensor)
    return found


def all_of(found: object) -> list[PeerTensor]:
    assert isinstance(found, list)
    return found


def repetitions() -> None:
    """Tensors at an offset, new ones each time: all peers get them, and put into them."""
    got, put = [], []
    with peers() as group:
        for turn in range(6):
            mine = filled(100 * turn + RANK, 4, device)[1000 + turn :]
            box = filled(0, 1 + turn, device)[77 : 77 + 1000 * WORLD]
            settle()
            given = {peer: [mine, box] for peer in OTHERS}
            theirs = group.exchange(given, writable=True)
            got.append([value(all_of(theirs[peer])[0]) - 100 * turn for peer in OTHERS])
            source = filled(1000 * turn + RANK, 1, device)[:1000]
            for peer in OTHERS:
                all_of(theirs[peer])[1].tensor[1000 * RANK : 1000 * (RANK + 1)].copy_(source)
            settle()
            put.append([value(box[1000 * peer : 1000 * (peer + 1)]) - 1000 * turn for peer in OTHERS])
            if RANK == 0 and turn == 3:
                torch.cuda.empty_cache()
        tell(got=got, put=put, mapped=IMPORTS.mapped())


def same_address() -> None:
    """A tensor is freed while peers have it, and a new one gets its address: another segment."""
    places, values = [], []
    with PeerGroup() as group:
        for turn in range(3):
            mine = ready(10 * turn + RANK, 32)
            place = native.segment_of(mine.data_ptr())
            assert place is not None
            places.append((mine.data_ptr(), place[1]))
            theirs = group.exchange(dict.fromkeys(OTHERS, mine))
            values.append([value(theirs[peer]) - 10 * turn for peer in OTHERS])
            address = mine.data_ptr()
            del mine, theirs
            tell(released=all_returned(group, len(OTHERS)))
            torch.cuda.empty_cache()
            tell(freed=native.segment_of(address) is None)
            settle()
        tell(addresses=len({address for address, _ in places}), segments=len({segment for _, segment in places}))
        tell(values=values, mapped=IMPORTS.mapped())


def one_hits() -> None:
    """Rank 0 gives the same tensor again and again, the others a new one each time."""
    values = []
    mine = filled(RANK, 2, device)
    with PeerGroup() as group:
        for turn in range(4):
            if RANK:
                mine = filled(RANK + turn, 2, device)
            torch.cuda.synchronize()
            theirs = group.exchange(dict.fromkeys(OTHERS, mine))
            values.append([value(theirs[peer]) - (turn if peer else 0) for peer in OTHERS])
            settle()
    tell(values=values)


def batch() -> None:
    """Two tensors for one peer in a batch, of equal content; some without elements, some with strides; all types."""
    with peers() as group:
        first, second = filled(7, 1, device), filled(7, 1, device)
        grid = torch.arange(12.0).view(3, 4).to(device)
        others = [torch.empty(0, 3, device=device), grid.t(), grid[1:, 1:3], torch.tensor(5.0).to(device)]
        narrow = torch.ones(6, dtype=torch.bfloat16).to(device).view(2, 3)
        bits = torch.tensor([True, False]).to(device)
        torch.cuda.synchronize()
        theirs = group.exchange({RIGHT: [first, second, *others, narrow, bits]})
        one, two, empty, turned, part, scalar, half, flags = all_of(theirs[LEFT])
        tell(values=[value(one), value(two)], same=one.tensor.data_ptr() == two.tensor.data_ptr())
        tell(empty=list(empty.tensor.shape), scalar=scalar.get().item(), strides=turned.tensor.stride())
        tell(turned=turned.tensor.t().clone().tolist(), part=[part.tensor[row].clone().tolist() for row in (0, 1)])
        tell(half=half.get().cpu().float().sum().item() if half.dtype == torch.bfloat16 else None)
        tell(flags=flags.get().cpu().tolist(), nbytes=[one.nbytes, empty.nbytes, half.nbytes])
        settle()
        tell(again=[value(one) for one in all_of(group.exchange({RIGHT: [second, first]})[LEFT])])


def nothing_back() -> None:
    """Rank 0 gives, the others give nothing; a ring of gifts."""
    with peers() as group:
        mine = ready(RANK, 1)
        theirs = group.exchange(dict.fromkeys(OTHERS, mine if RANK == 0 else None))
        tell(from_zero=[None if theirs[peer] is None else value(theirs[peer]) for peer in OTHERS])
        tell(from_left=value(group.exchange({RIGHT: mine, LEFT: None})[LEFT]))


def split() -> None:
    """A part of the default group, which torch calls otherwise on a rank that is in one group more."""
    alone = dist.new_group([0])
    part = dist.split_group(split_ranks=[list(range(WORLD))])
    names: list[Any] = [None] * WORLD
    dist.all_gather_object(names, part.group_name)
    with peers(group=part) as group:
        mine = ready(RANK, 1)
        theirs = group.exchange({RIGHT: mine, LEFT: None} if RIGHT != LEFT else {RIGHT: mine})
        tell(names=len(set(names)), from_left=value(one_of(theirs[LEFT])))
    del alone


def orders() -> None:
    """Three ranks, whose calls name different ranks and come in different orders."""
    mine = ready(RANK, 1)
    pairs, again = [[[1, 2]], [[0], [2]], [[1], [0]]], [[[1, 2], [2]], [[0, 2]], [[0], [0], [1]]]
    with PeerGroup(timeout=20.0) as group:
        group.exchange(dict.fromkeys(OTHERS))  # all are connected from then on
        for name, calls_of_rank in {"pairs": pairs, "again": again}.items():
            got = [group.exchange(dict.fromkeys(peers, mine)) for peers in calls_of_rank[RANK]]
            tell(**{name: [[peer, value(one)] for results in got for peer, one in results.items()]})
            settle()


def refusals() -> None:
    """What cannot be shared: one line here, and the peer is told at once."""
    texts = {}
    with peers() as group:
        good = filled(1, 1, device)
        bad: dict[str, Any] = {
            "cpu": torch.zeros(4),
            "text": "tensor",
            "sparse": torch.eye(3).to_sparse().to(device),
            "dimensions": torch.zeros([1] * 9).to(device),
        }
        for name, tensor in bad.items():
            given = good if RANK else tensor
            texts[name] = said(functools.partial(group.exchange, {RIGHT: given, LEFT: given}))
        theirs = one_of(group.exchange({RIGHT: good, LEFT: good})[LEFT])
        given = good if RANK else theirs.tensor
        texts["of_peer"] = said(lambda: group.exchange({RIGHT: given, LEFT: given}))
        texts["self"] = said(lambda: group.exchange({RANK: good}))
        texts["rank"] = said(lambda: group.exchange({WORLD: good}))
        texts["put"] = said(lambda: theirs.put(good))
        texts["add"] = said(lambda: theirs.tensor.add_(1))
        texts["item"] = said(lambda: theirs.tensor.view(2, -1)[0].__setitem__(0, 5.0))
        texts["out"] = said(lambda: torch.add(good, 1, out=theirs.tensor))
        tell(after=value(group.exchange({RIGHT: good, LEFT: good})[LEFT]), kind=type(theirs.tensor[1:]).__name__)
    texts["closed"] = said(lambda: group.exchange({RIGHT: good, LEFT: good}))
    texts["gone"] = said(theirs.get)
    tell(texts=texts)


def pools() -> None:
    """Memory of a symmetric pool goes as file descriptors, and keeps its segment when torch gives it back."""
    values = []
    with PeerGroup() as group:
        for turn in range(3):
            with tracehook.symmetric():
                mine = torch.empty(4 * MB, dtype=torch.float32, device=device)
            mine.copy_(filled(RANK + turn, 16, device))
            torch.cuda.synchronize()
            place = native.segment_of(mine.data_ptr())
            theirs = group.exchange(dict.fromkeys(OTHERS, mine[5:]))
            values.append([value(theirs[peer]) - turn for peer in OTHERS])
            settle()
            del mine, theirs
            if turn == 1:
                tell(returned=all_returned(group, len(OTHERS)))
                settle()
    tell(values=values, kind=place and place[0])


def allocations() -> None:
    """Tensors of an expandable segment: over several of its allocations, and two in one of them."""
    with peers() as group:
        wide = torch.empty(50 * MB, dtype=torch.uint8, device=device)
        small = [filled(10 * RANK + number, 3, device) for number in (1, 2)]
        wide.view(torch.float32).copy_(filled(RANK, 50, device).view(-1))
        torch.cuda.synchronize()
        place, base = native.segment_of(wide.data_ptr()), wide.data_ptr()
        given = [wide[4096:].view(torch.float32), *small]
        theirs = all_of(group.exchange({RIGHT: given, LEFT: given}, writable=True)[LEFT])
        mapped = IMPORTS.mapped()
        tell(place=place, got=[value(one) for one in theirs], mapped=mapped)
        settle()
        theirs[0].put(filled(100 + RANK, 50, device).view(-1)[1024:])
        settle()
        tell(put=value(wide[4096:].view(torch.float32)), before=value(wide[:4096].view(torch.float32)))
        given.clear()
        del wide
        group.poll()
        settle()
        group.poll()  # hears what the peers want back
        gone = said(theirs[0].get)
        tell(gone=gone, beside=[value(one) for one in theirs[1:]])
        tell(freed=all_returned(group, mapped - NEIGHBOURS, 1 + len(small)))
        settle()
        torch.cuda.empty_cache()
        again = torch.empty(50 * MB, dtype=torch.uint8, device=device)
        again.view(torch.float32).copy_(filled(200 + RANK, 50, device).view(-1))
        torch.cuda.synchronize()
        new = one_of(group.exchange({RIGHT: again, LEFT: again})[LEFT])
        tell(address=again.data_ptr() == base, new=value(new.tensor.view(torch.float32)))


def many_allocations() -> None:
    """A tensor with more allocations than one message has handles of."""
    with PeerGroup() as group:
        wide = torch.empty(1500 * MB, dtype=torch.uint8, device=device)
        ends = [wide[:MB].view(torch.float32), wide[-MB:].view(torch.float32)]
        for number, end in enumerate(ends):
            end.fill_(0).copy_(filled(10 * RANK + number, 1, device))
        torch.cuda.synchronize()
        theirs = one_of(group.exchange({RIGHT: wide, LEFT: wide})[LEFT]).tensor
        tell(ends=[value(theirs[part].clone().view(torch.float32)) for part in (slice(0, MB), slice(-MB, None))])
        settle()
        del theirs


def freed_while_imported() -> None:
    """A tensor's owner drops it while a peer has a torch tensor on it: its memory stays until that is gone."""
    with peers() as group:
        mine = ready(RANK + 1, 32)
        theirs = one_of(group.exchange({RIGHT: mine, LEFT: mine})[LEFT])
        kept = theirs.tensor[3:] if RANK else None
        address = mine.data_ptr()
        settle()
        del mine
        group.poll()
        settle()
        torch.cuda.empty_cache()
        group.poll()  # hears what the peers want back
        until(lambda: not IMPORTS._queued)  # what is unmapped for that is unmapped, and the owner was told
        settle()
        group.poll()
        torch.cuda.empty_cache()
        tell(still=native.segment_of(address) is not None, gone=said(theirs.get))
        if kept is not None:
            tell(kept=value(kept.clone()))
        settle()
        del kept
        tell(released=all_returned(group, NEIGHBOURS))
        torch.cuda.empty_cache()
        tell(freed=native.segment_of(address) is None)


def release() -> None:
    """An owner asks for its tensor though it keeps it, and shares it again later."""
    with peers() as group:
        mine = ready(RANK + 1, 32)
        theirs = one_of(group.exchange({RIGHT: mine, LEFT: mine})[LEFT])
        before = value(theirs)
        settle()
        tell(released=[group.release(mine), group.release(mine)], before=before)
        tell(returned=all_returned(group, NEIGHBOURS), gone=said(theirs.get))
        settle()
        tell(again=value(group.exchange({RIGHT: mine, LEFT: mine})[LEFT]))


def turns(group: PeerGroup, box: torch.Tensor, there: PeerTensor, count: int, base: int) -> list[float]:
    """Put into the right neighbour's box, and take what the left one puts into this rank's, in turn."""
    found = []
    for turn in range(count):
        source = filled(base + turn + RANK, 1, device)
        group.signal(LEFT)  # the box may be written
        group.put(there, source)
        group.wait(LEFT)  # it was
        found.append(box.clone())
    return [value(one) - base - turn - LEFT for turn, one in enumerate(found)]


def semaphores() -> None:
    """Puts and gets that only streams order: no rank waits on the host."""
    with peers() as group:
        box = ready(-1, 1)
        there = one_of(group.exchange({RIGHT: box, LEFT: box}, writable=True)[RIGHT])
        tell(put=turns(group, box, there, 8, 100))
        mine = filled(0, 1, device)
        theirs = one_of(group.exchange({RIGHT: mine, LEFT: mine})[LEFT])
        got = []
        for turn in range(8):
            mine.copy_(filled(turn + RANK, 1, device))
            group.signal(RIGHT, 63)
            got.append(group.get(theirs, channel=63))
            group.wait(RIGHT, 63)
        tell(got=[value(one) - turn - LEFT for turn, one in enumerate(got)])
        tell(channel=said(lambda: group.signal(RIGHT, 64)), rank=said(lambda: group.wait(WORLD)))


def caught() -> None:
    """Puts and gets with wrong arguments, which the program catches; the right ones after them find the signals."""
    with peers() as group:
        mine, source = ready(RANK, 1), ready(100 + RANK, 1)
        theirs = one_of(group.exchange({RIGHT: mine, LEFT: mine})[LEFT])
        box = ready(-1, 1)
        there = one_of(group.exchange({RIGHT: box, LEFT: box}, writable=True)[RIGHT])
        group.signal(LEFT, 1)  # the box may be written
        puts: list[tuple[Any, Any]] = [(theirs, source), (there, source[1:]), (there, 5), (mine, source)]
        tell(puts=[said(functools.partial(group.put, *given, channel=1)) for given in puts])
        group.put(there, source, channel=1)
        group.wait(LEFT, 1)
        group.signal(RIGHT, 2)  # this rank's tensor may be read
        outs: list[Any] = [torch.empty(3, device=device), 5, theirs.tensor]
        tell(gets=[said(functools.partial(group.get, theirs, out, channel=2)) for out in outs])
        got = group.get(theirs, channel=2)
        group.wait(RIGHT, 2)
        tell(put=value(box), got=value(got))


def captured() -> None:
    """The same captured into a graph that is replayed, with turns outside in between."""
    with peers() as group:
        box, source, copied = filled(-1, 1, device), filled(0, 1, device), filled(0, 1, device)
        torch.cuda.synchronize()
        there = one_of(group.exchange({RIGHT: box, LEFT: box}, writable=True)[RIGHT])
        outside = turns(group, box, there, 2, 50)
        graph = torch.cuda.CUDAGraph()
        large = ready(RANK, 32)
        with torch.cuda.graph(graph):
            new = group.exchange({RIGHT: large, LEFT: large})[LEFT]  # maps a segment, which is no part of the graph
            group.signal(LEFT)
            group.put(there, source)
            group.wait(LEFT)
            copied.copy_(box)
        found = []
        for turn in range(5):
            source.copy_(filled(10 * turn + RANK, 1, device))
            graph.replay()
            found.append(value(copied) - 10 * turn - LEFT)
        tell(new=value(new) - LEFT, outside=outside, replayed=found, after=turns(group, box, there, 2, 70))


def polled_in_capture() -> None:
    """Memory that is given back during a capture is unmapped after it, and the capture goes on."""
    with peers() as group:
        mine, kept, source = filled(RANK, 32, device), filled(1, 1, device), filled(2, 1, device)
        torch.cuda.synchronize()
        theirs = group.exchange(dict.fromkeys(OTHERS, mine))
        tell(before=[value(theirs[peer]) for peer in OTHERS])
        settle()
        if RANK == 0:
            del mine
            group.poll()
        settle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept.copy_(source)
            group.poll()
            time.sleep(0.1)
            tell(during=IMPORTS.mapped())
        graph.replay()
        tell(after=until(lambda: IMPORTS.mapped() == 2 * len(OTHERS) - (RANK != 0), group), kept=value(kept))


def cut_off() -> None:
    """The last rank is killed while streams of the others wait for it, and tensors of it are in use."""
    group = PeerGroup()
    box = ready(RANK, 1)
    theirs = group.exchange(dict.fromkeys(OTHERS, box))
    settle()
    victim = WORLD - 1
    store = dist.distributed_c10d._get_default_store()
    if victim == RANK:
        store.wait([f"{rank} waits" for rank in OTHERS])
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(5):
        group.wait(victim)
        group.wait(victim, 9)
    copied = one_of(theirs[victim]).get()
    store.set(f"{RANK} waits", "")
    begin = time.monotonic()
    torch.cuda.synchronize()
    tell(waited=time.monotonic() - begin, copied=value(copied))
    tell(
        texts={
            "exchange": said(lambda: group.exchange({victim: box})),
            "get": said(one_of(theirs[victim]).get),
            "signal": said(lambda: group.signal(victim)),
        }
    )
    if WORLD > 2:
        alive = [peer for peer in OTHERS if peer != victim]
        tell(others=[value(group.exchange(dict.fromkeys(alive, box))[peer]) for peer in alive])
        for peer in alive:
            group.signal(peer)
            group.wait(peer)
        torch.cuda.synchronize()
    del theirs
    # Or fewer: a survivor that is ready closes its group, and then its memory goes too.
    tell(unmapped=until(lambda: IMPORTS.mapped() <= 2 * (WORLD - 2), group))
    group.close()
    tell(left=[until(lambda: IMPORTS.mapped() == 0), until(lambda: EXPORTS.held() == (0, 0))])
    tracehook.status()
    os._exit(0)


def never_comes() -> None:
    """Some ranks do not exchange, or make no group: the others say who is missing, in time."""
    texts, seconds = {}, []

    def timed(name: str, attempt: Callable[[], object]) -> None:
        begin = time.monotonic()
        texts[name] = said(attempt)
        seconds.append(time.monotonic() - begin)

    mine = ready(RANK, 1)
    if RANK == 0:
        group = PeerGroup(timeout=0.5)
        timed("no_group", lambda: group.exchange(dict.fromkeys(OTHERS, mine)))
    dist.barrier()
    if RANK != 0:
        group = PeerGroup(timeout=0.5)
    dist.barrier()
    if RANK == 0:
        timed("no_meeting", lambda: group.exchange(dict.fromkeys(OTHERS, mine)))
    dist.barrier()
    group._peers.timeout = 20.0
    tell(values=[value(one) for one in group.exchange(dict.fromkeys(OTHERS, mine)).values()])
    dist.barrier()
    group._peers.timeout = 0.5
    stale = ready(77, 1)
    if RANK == 0:
        timed("no_exchange", lambda: group.exchange(dict.fromkeys(OTHERS, stale)))
    dist.barrier()
    if RANK != 0:
        tell(late=said(lambda: group.exchange({0: mine})))
    dist.barrier()
    group._peers.timeout = 20.0
    tell(level=[value(one) for one in group.exchange(dict.fromkeys(OTHERS, mine)).values()])
    for _ in range(3):
        group.exchange(dict.fromkeys(OTHERS, mine))
    dist.barrier()
    group._peers.timeout = 0.5
    if RANK == 0:
        for name in ("no_repeat", "no_repeat_again"):
            timed(name, lambda: group.exchange(dict.fromkeys(OTHERS, mine)))
    dist.barrier()
    other = ready(50 + RANK, 1)
    repeated = [said(lambda: group.exchange({0: mine})) for _ in range(2)] if RANK else []
    dist.barrier()
    group._peers.timeout = 20.0
    tell(repeated=repeated, anew=[value(one) for one in group.exchange(dict.fromkeys(OTHERS, other)).values()])
    tell(texts=texts, seconds=seconds)
    dist.barrier()
    group.close()


def forked() -> None:
    """A child of a process that has peers: one line if it uses them, and the parent goes on."""
    seen = Path(os.environ["TEST_STORE"] + ".seen")  # that the process of rank 1 has ended
    group = PeerGroup()
    mine = ready(RANK, 1)
    theirs = group.exchange(dict.fromkeys(OTHERS, mine))
    settle()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        other = OTHERS[0]
        texts = [said(lambda: group.exchange({other: mine})), said(group.poll), said(one_of(theirs[other]).get)]
        group.close()
        links = [peer.link.fileno() for peer in group._peers.by_rank.values()]
        tell(child={"texts": texts, "links": links})
        # That of rank 1 outlives its parent: its peers see the parent's end all the same, long before this deadline.
        deadline = time.monotonic() + 30
        while RANK and not seen.exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        os._exit(0)
    values = [value(one) for one in group.exchange(dict.fromkeys(OTHERS, mine)).values()]
    tell(values=values, children=child)
    settle()
    if RANK == 0:
        os.waitpid(child, 0)
        lost = until(lambda: group._peers.by_rank[1].link.ended is not None)
        seen.touch()
        tell(lost=lost, text=said(lambda: group.exchange({1: mine})))
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def namespace() -> None:
    """Rank 1 lives in a pid namespace of its own, as in a container of its own."""
    group = PeerGroup(timeout=5.0)
    mine = ready(RANK, 1)
    begin = time.monotonic()
    text = said(lambda: group.exchange(dict.fromkeys(OTHERS, mine)))
    tell(pid=os.getpid(), text=text, seconds=time.monotonic() - begin)
    group.close()


def mapped_files() -> tuple[list[str], list[str]]:
    """Return the mappings of device memory in this process, and its descriptors that are sockets or device memory."""
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd" in line or "nvidia" in line]
    files = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            files.append(str(entry.readlink()).split("[")[0])
    # The watch opens that one when it looks for the first time.
    return maps, sorted(file for file in files if "tracehook-alarms-" not in file)


class Interrupted:
    """A Connector in whose first end a signal's handler raises."""

    def __init__(self, connector: Any) -> None:
        self.connector = connector
        self.ends = 0

    def close(self) -> None:
        """Raise, then close."""
        self.ends += 1
        if self.ends == 1:
            raise KeyboardInterrupt
        self.connector.close()


def beside_nccl_memory() -> None:
    """The program frees memory of ncclMemAlloc while peers have its tensors open, and lends one more after that."""
    nccl = ctypes.CDLL("libnccl.so.2")
    with peers() as group:
        mine = [ready(RANK + 10 * number, 1) for number in range(2)]
        before = group.exchange(dict.fromkeys(OTHERS, mine[:1]))
        memory = ctypes.c_void_p()
        must(nccl.ncclMemAlloc(ctypes.byref(memory), ctypes.c_size_t(2 * MB)))
        must(nccl.ncclMemFree(memory))
        after = group.exchange(dict.fromkeys(OTHERS, mine[1:]))
        tell(values=[value(all_of(there[OTHERS[0]])[0]) for there in (before, after)])


def nothing_left() -> None:
    """After close() the process has the mappings and descriptors that it had before, also if a call was interrupted."""
    torch.cuda.synchronize()
    with tracehook.symmetric():
        pooled = torch.empty(MB, dtype=torch.float32, device=device)
    mine = filled(RANK, 32, device)
    words = torch.zeros(64, device=device)  # so that the allocator's small segment exists
    settle()
    maps, files = mapped_files()
    with PeerGroup() as group:
        for _ in range(3):
            theirs = group.exchange({peer: [mine, pooled, words] for peer in OTHERS})
        tell(values=[value(all_of(theirs[peer])[0]) for peer in OTHERS], more=len(mapped_files()[0]) - len(maps))
        settle()
        if RANK == 1:
            group._connector = Interrupted(group._connector)  # type: ignore[assignment]
            with contextlib.suppress(KeyboardInterrupt):
                group.close()
    del theirs
    tell(maps=len(mapped_files()[0]) - len(maps))
    tell(files=until(lambda: mapped_files()[1] == files), names=[mapped_files()[1], files])


if __name__ == "__main__":
    if sys.argv[1:] == ["namespace"] and RANK == 1 and os.environ.setdefault("INSIDE", "no") == "no":
        os.environ["INSIDE"] = "yes"
        os.execvp("unshare", ["unshare", "--pid", "--fork", "--kill-child", sys.executable, *sys.argv])
    device = start(seconds=60)
    for case in sys.argv[1:]:
        globals()[case]()
    torch.cuda.synchronize()
    dist.destroy_process_group()
    tell(left=[until(lambda: IMPORTS.mapped() == 0), until(lambda: EXPORTS.held() == (0, 0))])
