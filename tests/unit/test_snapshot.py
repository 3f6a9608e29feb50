"""The memory snapshot: what PyTorch's viewer reads, made from logs."""

import io
import json
import pickle
import pickletools

import pytest
from typer.testing import CliRunner

pytest.importorskip("duckdb")

from support.generated_logs import write_job

from tracehook.audit.store import Store
from tracehook.commands import app
from tracehook.views import snapshot
from tracehook.views.pickling import PickleStream, Pieces

MIB = 1 << 20
BEGIN = {"event": "trace.begin", "schema": "1.2", "t_ns": 1_000, "rank": 0, "pid": 10, "host": "a"}
BEGIN |= {"time": "2026-11-21T12:00:00+00:00"}
COMM = {"device": 0, "comm": "00000000000000ab", "comm_id": 1, "comm_rank": 0}
SEGMENT = {"device": 0, "segment": 1, "addr": "0x7f0000000000", "size": 2 * MIB}
POOLED = {"device": 0, "pool_segment": 1, "addr": "0x7e0000000000", "size": 4 * MIB, "pool": 7}
IN_POOL = SEGMENT | {"segment": 2, "addr": POOLED["addr"], "size": POOLED["size"]}
ADDRESS = 0x7F0000000000


def _log(directory, *events, name="job.rank0.a.10.jsonl", **begin):
    directory.mkdir(exist_ok=True)
    lines = [BEGIN | begin]
    for seq, event in enumerate(events, start=1):
        lines.append({"seq": seq, "t_ns": 1_000_000 * seq} | event)
    directory.joinpath(name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


def _snapshot(directory, ranks=()):
    out = io.BytesIO()
    with Store(directory) as store:
        entries = snapshot.write(store, snapshot.devices(store, ranks), out)
    made = pickle.loads(out.getvalue())
    assert entries == sum(map(len, made["device_traces"]))
    return made


def _of(trace):
    return [(entry["action"], entry["addr"], entry["size"], entry["version"]) for entry in trace[1:]]


def test_a_segment_and_its_registration(tmp_path):
    """A segment's entries are PyTorch's own, and those of its registration have the same name in the viewer."""
    log = _log(
        tmp_path / "logs",
        COMM | {"event": "communicator.ready", "ranks": 2},
        SEGMENT | {"event": "segment.alloc"},
        COMM | SEGMENT | {"event": "register.local", "us": 1.5, "ok": True},
        COMM | SEGMENT | {"event": "deregister.local", "us": 0.5, "ok": True},
        SEGMENT | {"event": "segment.free"},
        SEGMENT | {"event": "segment.alloc", "segment": 2},
        COMM | SEGMENT | {"event": "register.local", "segment": 2, "ok": False, "error": 3},
    )
    made = _snapshot(log)
    (trace,) = made["device_traces"]
    assert _of(trace) == [
        ("communicator_ready", 0, 0, 0),
        ("segment_alloc", ADDRESS, 2 * MIB, 0),
        ("segment_register", ADDRESS, 2 * MIB, 0),
        ("segment_deregister", ADDRESS, 2 * MIB, 0),
        ("segment_free", ADDRESS, 2 * MIB, 0),
        ("segment_alloc", ADDRESS, 2 * MIB, 1),
        ("segment_register_failed", ADDRESS, 2 * MIB, 1),
    ]
    assert trace[0]["action"] == "rank 0 (a, 10), cuda:0"
    assert [entry.get("category") for entry in trace if "category" in entry] == [
        "unknown",
        "registered",
        "not registered",
    ]
    said = "register.local with communicator 00000000000000ab (rank 0), 1.5 us"
    shown = {"filename": "job.rank0.a.10.jsonl", "line": 3, "name": said}
    assert shown in trace[2]["frames"]
    assert trace[3]["frames"] == [shown]
    assert trace[3]["user_metadata"] == {"comm": COMM["comm"], "comm_rank": 0, "us": 1.5, "ok": True}
    assert trace[3]["time_us"] == 1_795_262_400_000_000 + 3_000 - 1
    (segment,) = made["segments"]
    assert (segment["address"], segment["total_size"], segment["device"]) == (ADDRESS, 2 * MIB, 0)
    assert [block["size"] for block in segment["blocks"]] == [2 * MIB]


def test_a_segment_of_a_pool_has_windows(tmp_path):
    """Also one that torch takes again while the window of the memory below it lives on."""
    log = _log(
        tmp_path / "logs",
        POOLED | {"event": "pool.grow"},
        IN_POOL | {"event": "segment.alloc"},
        COMM | POOLED | {"event": "register.window", "ok": True, "effective": True, "ordinal": 0},
        IN_POOL | {"event": "segment.free"},
        IN_POOL | {"event": "segment.alloc", "segment": 3},
        COMM | {"event": "communicator.abort", "registrations": 1},
        IN_POOL | {"event": "segment.free", "segment": 3},
        IN_POOL | {"event": "segment.alloc", "segment": 4},
    )
    made = _snapshot(log)
    allocations = [entry for entry in made["device_traces"][0] if entry["action"] == "segment_alloc"]
    assert [entry["category"] for entry in allocations] == ["window", "window", "not registered"]
    assert [segment["segment_pool_id"] for segment in made["segments"]] == [(0, 7)]


def test_what_was_there_before_the_log_has_no_allocation(tmp_path):
    """The viewer draws it from the beginning: it was freed, or is there at the end, and never came."""
    log = _log(
        tmp_path / "logs",
        SEGMENT | {"event": "segment.adopt"},
        IN_POOL | {"event": "segment.adopt"},
        SEGMENT | {"event": "segment.free"},
        SEGMENT | {"event": "segment.free", "segment": 77, "addr": "0x7d0000000000"},
    )
    made = _snapshot(log)
    actions = [entry["action"] for entry in made["device_traces"][0][1:]]
    assert actions == ["segment_adopt", "segment_adopt", "segment_free", "segment_free"]
    assert [segment["address"] for segment in made["segments"]] == [0x7E0000000000]


def test_allocations_balance(tmp_path):
    """What came and did not go is what is left, on every device: the viewer goes back from the end."""
    write_job(tmp_path / "logs", ranks=4, events=300)
    made = _snapshot(tmp_path / "logs")
    assert len(made["device_traces"]) == 4
    for number, trace in enumerate(made["device_traces"]):
        alive = set()
        for entry in trace:
            if entry["action"] == "segment_alloc":
                assert entry["addr"] not in alive
                alive.add(entry["addr"])
            elif entry["action"] == "segment_free":
                alive.remove(entry["addr"])
        assert alive == {one["address"] for one in made["segments"] if one["device"] == number}
        assert alive
    assert any(entry["action"] == "segment_register_window" for entry in made["device_traces"][0])


def test_ranks_are_chosen(tmp_path):
    """The devices of the snapshot are those of the ranks that were asked for, in their order."""
    write_job(tmp_path / "logs", ranks=4, events=100)
    made = _snapshot(tmp_path / "logs", ranks=(3, 1))
    assert made["tracehook"] == {"devices": ["rank 1 (host0, 1001), cuda:1", "rank 3 (host0, 1003), cuda:3"]}
    assert len(made["device_traces"]) == 2
    assert {segment["device"] for segment in made["segments"]} == {0, 1}


@pytest.mark.parametrize(
    "event",
    [
        {"addr": "no"},
        {"addr": None},
        {"addr": hex(1 << 60)},
        {"addr": "-0x10"},
        {"size": None},
        {"size": 1 << 60},
        {"segment": None},
        {"device": 2**31 - 1},
    ],
)
def test_what_cannot_be_is_left_out(tmp_path, event):
    """An address or size that no viewer counts with costs its own entry only."""
    events = (SEGMENT | {"event": "segment.alloc"} | event, SEGMENT | {"event": "segment.alloc", "segment": 2})
    made = _snapshot(_log(tmp_path / "logs", *events))
    assert [entry["addr"] for entry in made["device_traces"][0] if entry["action"] == "segment_alloc"] == [ADDRESS]


@pytest.mark.parametrize("text", ["\u6f22\u5b57 \U0001f600", '"\\\n\x00', "x" * 70_000, "\ud800 half"])
def test_any_text_fits(tmp_path, text):
    """What a log says of its host is data."""
    made = _snapshot(_log(tmp_path / "logs", SEGMENT | {"event": "segment.alloc"}, host=text))
    assert made["device_traces"][0][0]["action"].startswith("rank 0 (" + text[:3].replace("\ud800", "?"))


def test_the_command_says_which_device_is_which(tmp_path):
    """The viewer has numbers for devices only."""
    write_job(tmp_path / "logs", ranks=2, events=100)
    result = CliRunner().invoke(app, ["snapshot", str(tmp_path / "logs"), "--rank", "1", "-o", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == "device 0: rank 1 (host0, 1001), cuda:1"


@pytest.mark.parametrize(
    ("ranks", "why"), [(["7"], "no log of rank 7"), ([], "no process that used a device")], ids=["rank", "device"]
)
def test_nothing_to_show(tmp_path, ranks, why):
    """One line, status 2, and no file."""
    log = _log(tmp_path / "logs")
    options = [part for rank in ranks for part in ("--rank", rank)]
    result = CliRunner().invoke(app, ["snapshot", str(log), *options, "-o", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert result.stderr.strip() == f"tracehook snapshot: {log}: {why}"
    assert [file.name for file in tmp_path.iterdir()] == ["logs"]


class TestPickle:
    """A pickle written piece by piece."""

    def test_it_is_read_as_one(self):
        """Lists of any length, nested ones and shared values come back."""
        shared = {"a": [1, "x"], "b": (0, -1)}
        items = [shared, "x" * 300, 1 << 40, None, True, 1.5] * 700
        out, aside = io.BytesIO(), io.BytesIO()
        Pieces(aside).extend(items)
        stream = PickleStream(out)
        with stream.item("lists"), stream.list():
            for part in (items, [], [[]]):
                with stream.appended(), stream.list():
                    stream.extend(part)
        with stream.item("copied"), stream.list():
            stream.copy(aside)
        with stream.item("value"):
            stream.value({})
        stream.end()
        assert pickle.loads(out.getvalue()) == {"lists": [items, [], [[]]], "copied": items, "value": {}}

    def test_only_what_the_viewer_knows(self, tmp_path):
        """Its reader has these instructions, and protocols 2 to 4."""
        write_job(tmp_path / "logs", ranks=2, events=100)
        out = io.BytesIO()
        with Store(tmp_path / "logs") as store:
            snapshot.write(store, snapshot.devices(store), out)
        used = {code.name for code, _, _ in pickletools.genops(out.getvalue())}
        known = "APPENDS BINGET BININT BININT1 BININT2 EMPTY_DICT EMPTY_LIST LONG1 LONG_BINGET MARK PROTO SETITEMS STOP"
        known += " TUPLE2 APPEND NEWFALSE BINPUT BINUNICODE EMPTY_TUPLE NEWTRUE NONE BINFLOAT LONG_BINPUT SETITEM"
        assert used <= set(known.split())
        assert out.getvalue()[1] == 3


def test_expandable_segments_are_there_at_the_end(tmp_path):
    """Parts that were mapped and unmapped are entries that the viewer knows, and what is left is in the snapshot."""
    part = {"device": 0, "addr": f"{ADDRESS:#x}", "size": 10 * MIB}
    middle = {"addr": f"{ADDRESS + 2 * MIB:#x}", "size": 2 * MIB}
    log = _log(tmp_path / "logs", part | {"event": "range.map"}, part | middle | {"event": "range.unmap"})
    made = _snapshot(log)
    assert [entry["action"] for entry in made["device_traces"][0][1:]] == ["segment_map", "segment_unmap"]
    left = [(segment["address"], segment["total_size"], segment["is_expandable"]) for segment in made["segments"]]
    assert left == [(ADDRESS, 2 * MIB, True), (ADDRESS + 4 * MIB, 6 * MIB, True)]
