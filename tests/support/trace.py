"""A Perfetto trace read back with Perfetto's own messages: tracks, and what stands on them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

Event = protos.TrackEvent


@dataclass
class Slice:
    """Something on a track; `end` is `start` for an instant."""

    track: int
    name: str
    category: str
    start: int
    end: int
    arguments: dict[str, Any]
    instant: bool = False
    depth: int = 0


@dataclass
class Trace:
    """What a file holds. `written` and `nested` are the same slices: as they were meant, and as a reader nests them."""

    tracks: dict[int, Any]
    written: list[Slice]
    nested: list[Slice]
    counters: dict[int, list[tuple[int, float]]]
    clocks: dict[int, int]
    instants: list[Slice] = field(default_factory=list)

    def path(self, track: int) -> str:
        """Return the names of a track and those above it, from the top."""
        names: list[str] = []
        while track:
            descriptor = self.tracks[track]
            names.append(descriptor.process.process_name or descriptor.name)
            track = descriptor.parent_uuid
        return " / ".join(reversed(names))

    def on(self, end_of_path: str) -> list[Slice]:
        """Return slices and instants on tracks whose path ends so, by time."""
        found = [one for one in self.nested + self.instants if self.path(one.track).endswith(end_of_path)]
        return sorted(found, key=lambda one: (one.start, one.end))

    def counter(self, end_of_path: str) -> list[float]:
        """Return the values of the counters whose path ends so, in their order."""
        return [
            value
            for track, values in self.counters.items()
            if self.path(track).endswith(end_of_path)
            for _, value in values
        ]


def read(path: Path) -> Trace:
    """Read `path` as Perfetto does: by time, and then in the order of the file; an end ends the innermost slice."""
    trace = protos.Trace.FromString(path.read_bytes())
    names: dict[int, str] = {}
    tracks: dict[int, Any] = {}
    clocks: dict[int, int] = {}
    events = []
    for packet in trace.packet:
        names.update((name.iid, name.name) for name in packet.interned_data.debug_annotation_names)
        if packet.HasField("track_descriptor") and packet.track_descriptor.uuid:
            assert packet.track_descriptor.uuid not in tracks
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        elif packet.HasField("clock_snapshot"):
            clocks = {clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks}
        elif packet.HasField("track_event"):
            assert packet.track_event.track_uuid in tracks, "used before it is declared"
            events.append((packet.timestamp, packet.track_event))
    out = Trace(tracks, [], [], defaultdict(list), clocks)
    for ns, event in events:
        if event.type == Event.TYPE_SLICE_BEGIN:
            out.written.append(_slice(ns, event, names))
        elif event.type == Event.TYPE_SLICE_END:
            assert event.track_uuid == out.written[-1].track
            out.written[-1].end = ns
    open_: dict[int, list[Slice]] = defaultdict(list)
    for ns, event in sorted(events, key=lambda one: one[0]):
        stack = open_[event.track_uuid]
        if event.type == Event.TYPE_SLICE_BEGIN:
            stack.append(_slice(ns, event, names))
            stack[-1].depth = len(stack) - 1
        elif event.type == Event.TYPE_SLICE_END:
            stack[-1].end = ns
            out.nested.append(stack.pop())
        elif event.type == Event.TYPE_INSTANT:
            out.instants.append(_slice(ns, event, names))
            out.instants[-1].instant = True
        else:
            double = event.HasField("double_counter_value")
            value = event.double_counter_value if double else event.counter_value
            out.counters[event.track_uuid].append((ns, value))
    assert not any(open_.values()), "a slice that does not end"
    return out


def _slice(ns: int, event: Any, names: dict[int, str]) -> Slice:
    arguments = {names[one.name_iid]: getattr(one, one.WhichOneof("value")) for one in event.debug_annotations}
    return Slice(event.track_uuid, event.name, event.categories[0], ns, ns, arguments)
