"""The packets of a Perfetto trace, written one after the other: tracks, slices, instants, counters.

Perfetto sorts the packets of a file by time and keeps the order of the file for equal times, so each track may be
written by itself. Times are nanoseconds; the first packet tells Perfetto which wall time one of them was.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from tracehook.log.text import encodable

_LONGEST_TEXT = 4096  # characters; nothing that this project logs is longer
_TRACE_CLOCK = 6  # BUILTIN_CLOCK_BOOTTIME: what Perfetto takes if a packet names no clock
_WALL_CLOCK = 1  # BUILTIN_CLOCK_REALTIME
_SEQUENCE = 1
_STATE_CLEARED, _NEEDS_STATE = 1, 2  # SEQ_INCREMENTAL_STATE_CLEARED, SEQ_NEEDS_INCREMENTAL_STATE
_EXPLICIT = protos.TrackDescriptor.EXPLICIT
_BEGIN, _END = protos.TrackEvent.TYPE_SLICE_BEGIN, protos.TrackEvent.TYPE_SLICE_END
_INSTANT, _COUNTER = protos.TrackEvent.TYPE_INSTANT, protos.TrackEvent.TYPE_COUNTER
_BYTES = protos.CounterDescriptor.UNIT_SIZE_BYTES

Value = str | bool | int | float
Arguments = Iterable[tuple[str, Value]]


class Packets:
    """Writes a trace to `file`. Tracks are numbers; a track is declared before it is used.

    `shift_ns` is added to every time: a trace has none below 0. `wall_ns` is the wall time at time 0, if it is known.
    """

    def __init__(self, file: BinaryIO, shift_ns: int = 0, wall_ns: int | None = None) -> None:
        self.slices = self.instants = self.counts = 0
        self._file = file
        self._shift_ns = shift_ns
        self._tracks = 0
        self._latest: dict[int, int] = {}  # time of the last instant of a track
        self._names: dict[str, int] = {}  # of arguments: written once, then by number
        self._begin(wall_ns)

    # --- tracks ---

    def process(self, name: str, pid: int, rank: int, command: str = "") -> int:
        """Declare a process; `rank` orders the processes."""
        packet, descriptor = self._track(None, rank)
        descriptor.child_ordering = _EXPLICIT
        descriptor.process.pid = pid
        descriptor.process.process_name = _text(name)
        descriptor.process.legacy_sort_index = rank
        if command:
            descriptor.process.cmdline.append(_text(command))
        return self._declared(packet)

    def track(self, name: str, parent: int | None = None, rank: int = 0, description: str = "") -> int:
        """Declare a track below `parent`. Perfetto shows those of one parent that are called the same as one."""
        packet, descriptor = self._track(parent, rank, name, description)
        descriptor.child_ordering = _EXPLICIT
        return self._declared(packet)

    def counter(self, name: str, parent: int, rank: int = 0, description: str = "") -> int:
        """Declare a track that counts bytes."""
        packet, descriptor = self._track(parent, rank, name, description)
        descriptor.counter.unit = _BYTES
        descriptor.counter.y_axis_share_key = f"bytes below {parent}"
        return self._declared(packet)

    # --- events ---

    def slice(self, track: int, start: int, end: int, name: str, category: str, arguments: Arguments = ()) -> None:
        """Write something that lasts. Those of one track must nest or be apart."""
        self._named_event(track, start, _BEGIN, name, category, arguments)
        self._event(track, max(start, end), _END)
        self._write()
        self.slices += 1

    def instant(self, track: int, ns: int, name: str, category: str, arguments: Arguments = ()) -> None:
        """Write something that lasts no time. Those of one track come in the order of their times.

        Of equal times each is moved by a nanosecond: Perfetto would draw every one below the one before, and take 512.
        """
        ns = self._latest[track] = max(ns, self._latest.get(track, ns - 1) + 1)
        self._named_event(track, ns, _INSTANT, name, category, arguments)
        self.instants += 1

    def count(self, track: int, ns: int, value: int) -> None:
        """Write the value that a counter has from now on."""
        event = self._event(track, ns, _COUNTER)
        if -(1 << 63) <= value < 1 << 63:
            event.counter_value = value
        else:
            event.double_counter_value = float(value)
        self._write()
        self.counts += 1

    # --- how ---

    def _begin(self, wall_ns: int | None) -> None:
        if wall_ns is not None and wall_ns >= self._shift_ns:
            packet = self._fresh()
            snapshot = packet.clock_snapshot
            snapshot.primary_trace_clock = _TRACE_CLOCK
            for clock, time in ((_TRACE_CLOCK, self._shift_ns), (_WALL_CLOCK, wall_ns)):
                snapshot.clocks.add(clock_id=clock, timestamp=time)
            self._write()
        packet = self._fresh()
        packet.sequence_flags = _STATE_CLEARED
        # A track that nobody writes to: only here can Perfetto be asked to take the order of processes as it is given.
        packet.track_descriptor.uuid = 0
        packet.track_descriptor.child_ordering = _EXPLICIT
        packet.track_descriptor.process_ordering = protos.TrackDescriptor.PROCESS_ORDERING_EXPLICIT
        self._write()

    def _fresh(self) -> protos.TracePacket:
        # A new one each time: a message that is cleared keeps the memory of all that it ever held.
        self._trace = protos.Trace()
        packet: protos.TracePacket = self._trace.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE
        return packet

    def _track(
        self, parent: int | None, rank: int, name: str = "", description: str = ""
    ) -> tuple[protos.TracePacket, protos.TrackDescriptor]:
        packet = self._fresh()
        descriptor = packet.track_descriptor
        self._tracks += 1
        descriptor.uuid = self._tracks
        if parent is not None:
            descriptor.parent_uuid = parent
        descriptor.sibling_order_rank = rank
        if name:
            descriptor.name = _text(name)
        if description:
            descriptor.description = description
        return packet, descriptor

    def _declared(self, packet: protos.TracePacket) -> int:
        uuid: int = packet.track_descriptor.uuid
        self._write()
        return uuid

    def _event(self, track: int, ns: int, kind: int) -> protos.TrackEvent:
        packet = self._fresh()
        packet.timestamp = max(0, ns + self._shift_ns)
        packet.sequence_flags = _NEEDS_STATE
        event = packet.track_event
        event.type = kind
        event.track_uuid = track
        return event

    def _named_event(self, track: int, ns: int, kind: int, title: str, category: str, arguments: Arguments) -> None:
        event = self._event(track, ns, kind)
        event.name = _text(title)
        event.categories.append(category)
        for name, value in arguments:
            number = self._names.get(name)
            if number is None:
                number = self._names[name] = len(self._names) + 1
                self._trace.packet[0].interned_data.debug_annotation_names.add(iid=number, name=name)
            annotation = event.debug_annotations.add()
            annotation.name_iid = number
            if isinstance(value, str):
                annotation.string_value = _text(value)
            elif isinstance(value, bool):
                annotation.bool_value = value
            elif isinstance(value, float):
                annotation.double_value = value
            elif -(1 << 63) <= value < 1 << 63:
                annotation.int_value = value
            else:
                annotation.double_value = float(value)
        self._write()

    def _write(self) -> None:
        self._file.write(self._trace.SerializeToString())


def _text(text: str) -> str:
    """Return what a trace can hold: JSON may name halves of characters, and has no limit."""
    return encodable(text[:_LONGEST_TEXT])
