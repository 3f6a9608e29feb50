"""What happened on one device, told as PyTorch's memory snapshots tell it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tracehook.log.text import in_bytes
from tracehook.views.naming import known
from tracehook.views.ranges import MappedRanges

_LARGEST = 1 << 53  # of an address or a size: the viewer counts in doubles
_FRAMES = 50  # lines below a segment
_ACTIONS = {
    "register.local": "segment_register",
    "deregister.local": "segment_deregister",
    "register.window": "segment_register_window",
    "deregister.window": "segment_deregister_window",
}
_FACTS = (
    *("comm", "comm_rank", "ranks", "us", "ok", "error", "effective"),
    *("ordinal", "capturing", "registrations", "count"),
)

Entry = dict[str, Any]


@dataclass
class _Segment:
    """A segment of PyTorch's allocator, alive. `frames` are shown below it, and grow with its registrations."""

    address: int
    size: int
    pool: int
    frames: list[Entry]
    entry: Entry | None = None  # of its allocation, if it was not there before the log began
    windows: set[int] = field(default_factory=set)


class History:
    """Takes the events of a device in their order, and makes `entries` of them.

    The first entry tells what the device is, because the viewer numbers devices and has no place for a name.
    """

    def __init__(self, name: str, file: str, wall_ns: int) -> None:
        self._file = file
        self._wall_ns = wall_ns
        self._alive: dict[int, _Segment] = {}  # by the log's number
        self._at: dict[int, _Segment] = {}  # the same, by address
        # By the address of a pool segment: its pool; the communicators that hold it, with the frame that tells it.
        self._pools: dict[int, int] = {}
        self._mapped = MappedRanges()
        self._windows: dict[int, dict[int, Entry]] = {}
        self._versions: Counter[int] = Counter()  # how often an address was freed, as the viewer counts
        self.entries: list[Entry] = []
        self._enter(name, 0, 0, {"seq": 1, "ns": 0}, [self._frame(1, name)])
        # Once one entry has a category, the viewer counts on one that has this one.
        self.entries[0]["category"] = "unknown"

    def add(self, event: dict[str, Any]) -> None:
        """Take the next event, a row of table ``event``."""
        name = event["event"]
        address, size = _number(event["addr"]), event["size"]
        if name.startswith("communicator."):
            self._communicator(event)
        elif address is None or size is None or size >= _LARGEST:
            return
        elif name in ("segment.alloc", "segment.adopt"):
            self._born(event, address, size)
        elif name == "segment.free":
            self._freed(event, address, size)
        elif name in ("range.map", "range.unmap"):
            self._resized(event, address, size)
        elif name == "pool.grow":
            self._pools[address] = event["pool"] or 0
        elif name == "pool.shrink":
            self._pools.pop(address, None)
        elif name in _ACTIONS:
            self._registered(event, address, size)

    def segments(self, device: int) -> Iterator[Entry]:
        """Yield the segments that were alive at the end, for device number `device` of the snapshot."""
        for segment in self._alive.values():
            yield _at_the_end(device, segment)
        for begin, end in self._mapped.ranges:
            yield _at_the_end(device, _Segment(begin, end - begin, 0, []), expandable=True)

    # --- events ---

    def _born(self, event: dict[str, Any], address: int, size: int) -> None:
        number = event["segment"]
        if number is None or number in self._alive:
            return
        adopted = event["event"] == "segment.adopt"
        frames = [self._frame(event["seq"], f"segment {number} ({in_bytes(size, exact=True)})")]
        segment = _Segment(address, size, self._pools.get(address, 0), frames)
        if adopted:  # was there before: the viewer draws what is freed or left, and never came, from the beginning
            self._enter("segment_adopt", address, size, event, frames)
        else:
            segment.entry = self._enter("segment_alloc", address, size, event, frames)
            segment.entry["category"] = "not registered"
        self._alive[number] = self._at[address] = segment
        for comm, frame in self._windows.get(address, {}).items():
            segment.windows.add(comm)
            self._tell(segment, frame, "window")

    def _freed(self, event: dict[str, Any], address: int, size: int) -> None:
        segment = self._alive.pop(event["segment"], None)
        if segment is not None:
            address, size = segment.address, segment.size  # also if the line that frees it says otherwise
            if self._at.get(address) is segment:
                del self._at[address]
        frames = [self._frame(event["seq"], f"segment {event['segment']} ({in_bytes(size, exact=True)}) freed")]
        self._enter("segment_free", address, size, event, frames + (segment.frames if segment is not None else []))
        self._versions[address] += 1

    def _resized(self, event: dict[str, Any], address: int, size: int) -> None:
        verb = event["event"].partition(".")[2]
        (self._mapped.map if verb == "map" else self._mapped.unmap)(address, address + size)
        frame = self._frame(event["seq"], f"{in_bytes(size, exact=True)} of an expandable segment {verb}ped")
        action = "segment_adopt" if event["adopted"] else f"segment_{verb}"
        self._enter(action, address, size, event, [frame])

    def _registered(self, event: dict[str, Any], address: int, size: int) -> None:
        name = event["event"]
        frame = self._frame(event["seq"], f"{name} with {_communicator(event)}{_outcome(event)}")
        failed = "" if event["ok"] else "_failed"
        self._enter(_ACTIONS[name] + failed, address, size, event, [frame])
        comm = event["comm_id"]
        if failed or event["effective"] is False or comm is None:
            return
        if name == "register.local" and event["segment"] in self._alive:
            self._tell(self._alive[event["segment"]], frame, "registered")
        elif name == "register.window":
            self._windows.setdefault(address, {})[comm] = frame
            if address in self._at:
                self._tell(self._at[address], frame, "window")
        elif name == "deregister.window":
            self._windows.get(address, {}).pop(comm, None)

    def _communicator(self, event: dict[str, Any]) -> None:
        name = event["event"]
        if name == "communicator.abort":  # its windows went with it
            for comms in self._windows.values():
                comms.pop(event["comm_id"], None)
        frame = self._frame(event["seq"], f"{name}: {_communicator(event)}")
        self._enter(name.replace(".", "_"), 0, 0, event, [frame])

    # --- how ---

    def _tell(self, segment: _Segment, frame: Entry, category: str) -> None:
        if len(segment.frames) < _FRAMES:
            segment.frames.append(frame)
        if segment.entry is not None and segment.entry["category"] != "window":
            segment.entry["category"] = category

    def _enter(self, action: str, address: int, size: int, event: dict[str, Any], frames: list[Entry]) -> Entry:
        facts = {fact: event[fact] for fact in _FACTS if event.get(fact) is not None}
        entry = {
            "action": action,
            "addr": address,
            "size": size,
            "stream": 0,
            "time_us": max(0, self._wall_ns + event["ns"]) // 1000,
            "version": self._versions[address],
            "frames": frames,
            "user_metadata": facts,
        }
        self.entries.append(entry)
        return entry

    def _frame(self, seq: int, name: str) -> Entry:
        return {"filename": self._file, "line": seq, "name": name}


def _at_the_end(device: int, segment: _Segment, expandable: bool = False) -> Entry:
    block = {"address": segment.address, "size": segment.size, "requested_size": segment.size}
    return {
        "device": device,
        "address": segment.address,
        "total_size": segment.size,
        "allocated_size": 0,
        "active_size": 0,
        "requested_size": 0,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, segment.pool),
        "is_expandable": expandable,
        "frames": segment.frames,
        "blocks": [block | {"state": "inactive", "frames": []}],
    }


def _communicator(event: dict[str, Any]) -> str:
    return f"communicator {event['comm'] or '?'} (rank {known(event['comm_rank'])})"


def _outcome(event: dict[str, Any]) -> str:
    if not event["ok"]:
        return f": error {event['error']}"
    took = "" if event["us"] is None else f", {event['us']} us"
    return took + (", without effect" if event["effective"] is False else "")


def _number(address: str | None) -> int | None:
    try:
        number = int(address or "", 16)
    except ValueError:
        return None
    return number if 0 <= number < _LARGEST else None
