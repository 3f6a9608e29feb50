"""Dumps of torch's Flight Recorder beside the logs of a job that hung (docs/audit.md): what is read, and refused."""

import contextlib
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.audits import FINDINGS, Audit

from audit.goldens import GOLDENS, unpack
from tracehook.audit.called import Caller, Callers, read_callers
from tracehook.audit.flight_recorder import DumpError, read_dump
from tracehook.audit.store import Store

(COMPUTES,) = [golden for golden in GOLDENS if golden.name == "rank-missing-computes"]
WORDS = "torch: all_reduce of group "


class Harm:
    """What a pickle does that is no dump."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        """Be made by a call."""
        return os.system, ("exit 1",)


def dump(job: Callers, process: Caller, **more: Any) -> dict[str, Any]:
    """Return what torch would have recorded of the calls of a process."""
    comms = sorted(process.parts, key=lambda comm: process.parts[comm].comm_id)
    ranks = {comm: [job.members[comm][place].process.rank for place in sorted(job.members[comm])] for comm in comms}
    groups = {comm: (str(number), f"group_{number}") for number, comm in enumerate(comms)}
    entries = [
        {
            "record_id": number,
            "process_group": groups[step.comm],
            "collective_seq_id": step.call.number + 1,
            "p2p_seq_id": 0,
            "profiling_name": f"nccl:{step.call.operation}",
            "input_sizes": [[2, step.call.elements // 2]],
            "output_sizes": [[step.call.elements]],
            "state": "scheduled",
            "time_created_ns": process.parts[step.comm].moved_ns + process.wall_ns,
            "frames": [
                {"name": "all_reduce", "filename": "/lib/site-packages/torch/distributed/d.py", "line": 1},
                {"name": f"step_{number}", "filename": "/job/train.py", "line": 10 + number},
            ],
        }
        for number, step in enumerate(process.steps.values())
    ]
    config = {name: {"name": name, "desc": told, "ranks": str(ranks[comm])} for comm, (name, told) in groups.items()}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries} | more


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Return the logs of a job of four ranks, of which rank 3 computes for ever and rank 2 waits for it."""
    return unpack(COMPUTES.path, tmp_path)


@pytest.fixture
def job(logs: Path) -> Callers:
    """Return the processes of that job."""
    with Store(logs) as store:
        store.use_macros()
        return read_callers(store)


@pytest.fixture
def dumps(job: Callers, tmp_path: Path) -> Path:
    """Return a directory with a dump of each of its ranks."""
    directory = tmp_path / "dumps"
    directory.mkdir()
    for process in job.processes:
        (directory / f"nccl_trace_rank_{process.rank}").write_bytes(pickle.dumps(dump(job, process), protocol=2))
    return directory


def joined(logs: Path, dumps: Path) -> Audit:
    """Return an audit with the dumps. Whatever they are, it has its findings and its last line."""
    audit = Audit(logs, "--flight-recorder", str(dumps)).expect(FINDINGS)
    assert audit.out.splitlines()[-1].startswith("First divergence"), audit
    return audit


def change(file: Path, what: Callable[[dict[str, Any]], object]) -> None:
    """Change what a dump holds."""
    value = pickle.loads(file.read_bytes())
    what(value)
    file.write_bytes(pickle.dumps(value, protocol=2))


def in_each_entry(**fields: Any) -> Callable[[dict[str, Any]], object]:
    """Return a change: each record of a dump has these fields."""
    return lambda value: [entry.update(fields) for entry in value["entries"]]


def complaints(audit: Audit) -> list[str]:
    """Return the lines that say what could not be used."""
    return [line for line in audit.out.splitlines() if line.startswith("Flight Recorder: ")]


def test_a_call_has_its_place_and_its_number(logs: Path, dumps: Path) -> None:
    """Those of the culprit's last call, and of the call in which the other rank waits; no frame of torch itself."""
    audit = joined(logs, dumps)
    audit.expect(FINDINGS, "rank 3, call 1 of", "rank 2, call 7 of", "collective_seq_id 7, scheduled")
    assert complaints(audit) == []
    assert "/job/train.py:" in audit.out
    assert "d.py" not in audit.out
    (_, waits) = json.loads(Audit(logs, "--flight-recorder", str(dumps), "--json").out)["flight_recorder"]["calls"]
    assert (waits["ranks"], waits["number"], waits["collective_seq_id"], waits["p2p_seq_id"]) == ([2], 7, 7, None)
    (frame,) = waits["frames"]
    assert frame["file"] == "/job/train.py"


def test_without_the_option_nothing_is_read(logs: Path) -> None:
    """Neither in the text nor in the object."""
    assert WORDS not in Audit(logs).out
    assert "flight_recorder" not in json.loads(Audit(logs, "--json").out)


def test_a_dump_that_lost_records_is_read_from_its_end(logs: Path, dumps: Path) -> None:
    """The last calls are found, by their number from the end; what is lost is said."""
    for file in dumps.iterdir():
        change(file, lambda value: value["entries"].__delitem__(slice(0, 3)))
    audit = joined(logs, dumps)
    assert complaints(audit) == []
    audit.expect(FINDINGS, "collective_seq_id 7, scheduled")


def test_a_dump_of_before_the_last_call_has_no_answer(logs: Path, dumps: Path) -> None:
    """Its last record is not of the last call, so it is not counted from its end."""

    def early(value: dict[str, Any]) -> None:
        value["entries"] = value["entries"][3:-2]
        for entry in value["entries"]:
            entry["time_created_ns"] -= 4_000_000_000

    change(dumps / "nccl_trace_rank_2", early)
    (line,) = complaints(joined(logs, dumps))
    assert "nccl_trace_rank_2: has no record that is rank 2's call 7 of" in line


def test_calls_that_are_not_those_of_the_dump_have_no_answer(logs: Path, dumps: Path) -> None:
    """Another operation, or another number of elements."""
    change(dumps / "nccl_trace_rank_2", in_each_entry(profiling_name="nccl:broadcast"))
    change(dumps / "nccl_trace_rank_3", in_each_entry(input_sizes=[[5]], output_sizes=[[5]]))
    of_3, of_2 = complaints(joined(logs, dumps))
    assert "has no record that is rank 3's call 1" in of_3
    assert "has no record that is rank 2's call 7" in of_2


def test_a_rank_without_a_dump(logs: Path, dumps: Path) -> None:
    """The other rank's call is there."""
    (dumps / "nccl_trace_rank_3").unlink()
    audit = joined(logs, dumps)
    assert complaints(audit) == [f"Flight Recorder: {dumps}: no dump of rank 3"]
    audit.expect(FINDINGS, "rank 2, call 7 of")


def test_no_dumps(logs: Path, tmp_path: Path) -> None:
    """No directory, and one with other files."""
    (line,) = complaints(joined(logs, tmp_path / "no"))
    assert "No such file or directory; expected the directory with torch's dumps" in line
    (line,) = complaints(joined(logs, logs.parent))
    assert "no dump in it; expected files that end in a rank's number" in line


@pytest.mark.parametrize(
    ("created", "words"), [(10**18, "s older than the process"), (3 * 10**18, "s younger than the process's end")]
)
def test_a_dump_of_another_moment(logs: Path, dumps: Path, created: int, words: str) -> None:
    """Dumps of an earlier or a later job in the same directory are not used."""
    change(dumps / "nccl_trace_rank_3", in_each_entry(time_created_ns=created))
    (line,) = complaints(joined(logs, dumps))
    assert "nccl_trace_rank_3: of another job" in line
    assert words in line


@pytest.mark.parametrize(
    ("ranks", "words"), [("[0, 1, 2, 3, 4, 5]", "it has a rank 5, the logs are of 4"), ("[0, 1, 2]", "in none of its")]
)
def test_a_dump_of_another_job(logs: Path, dumps: Path, ranks: str, words: str) -> None:
    """One of more ranks, or of a rank that is not in it."""
    other = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    change(dumps / "nccl_trace_rank_3", lambda value: value.update(pg_config=other))
    (line,) = complaints(joined(logs, dumps))
    assert words in line


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (pickle.dumps(Harm(), protocol=2), "wants to import posix system; refused"),
        (pickle.dumps(Harm(), protocol=4), "wants to do STACK_GLOBAL; refused"),
        (pickle.dumps({"version": {1, 2}}, protocol=4), "wants to do EMPTY_SET; refused"),
        (pickle.dumps(bytearray(b"x"), protocol=5), "wants to do BYTEARRAY8; refused"),
        (b"\x80\x02Pother\n.", "wants to do PERSID; refused"),
        (b"\x80\x02]r\xff\xff\xff\x7f.", "damaged"),
        (b"no pickle", "damaged, or no pickle"),
        (b"", "damaged, or no pickle"),
        (pickle.dumps([1, 2], protocol=2), "no dump of torch's Flight Recorder"),
        (pickle.dumps({"version": "3.0", "entries": [], "pg_config": {}}), "format 3.0 is not known"),
        (pickle.dumps({"version": "2.10", "entries": [{}], "pg_config": {}}), "unknown contents"),
        (pickle.dumps({"version": "2.10", "entries": 7, "pg_config": {}}), "unknown contents"),
    ],
)
def test_what_is_no_dump(logs: Path, dumps: Path, data: bytes, words: str) -> None:
    """Nothing is imported or called; one line, and the audit goes on."""
    (dumps / "nccl_trace_rank_3").write_bytes(data)
    (line,) = complaints(joined(logs, dumps))
    assert "nccl_trace_rank_3: " in line
    assert words in line


def test_a_dump_that_is_cut_anywhere(dumps: Path) -> None:
    """Whatever is left of it, it is read or refused."""
    file = dumps / "nccl_trace_rank_3"
    data = file.read_bytes()
    for size in range(0, len(data), 7):
        file.write_bytes(data[:size])
        with pytest.raises(DumpError, match="nccl_trace_rank_3: damaged"):
            read_dump(file)


def test_a_dump_with_any_byte_changed(dumps: Path) -> None:
    """Read, or refused: never another error."""
    file = dumps / "nccl_trace_rank_3"
    data = file.read_bytes()
    for place in range(0, len(data), 5):
        file.write_bytes(data[:place] + bytes([data[place] ^ 0x15]) + data[place + 1 :])
        with contextlib.suppress(DumpError):
            read_dump(file)


def test_two_groups_of_the_same_ranks(logs: Path, dumps: Path, job: Callers) -> None:
    """That of the call is the one that counted as many."""
    (process,) = [one for one in job.processes if one.rank == 2]
    by_ranks: dict[tuple[int | None, ...], list[str]] = {}
    for comm in process.parts:
        by_ranks.setdefault(tuple(m.process.rank for m in job.members[comm].values()), []).append(comm)
    assert max(map(len, by_ranks.values())) == 2
    (_, waits) = json.loads(Audit(logs, "--flight-recorder", str(dumps), "--json").out)["flight_recorder"]["calls"]
    comms = sorted(process.parts, key=lambda comm: process.parts[comm].comm_id)
    (waiting,) = [step for step in process.steps.values() if step.call.number == 6]
    assert waits["group"] == f"group_{comms.index(waiting.comm)}"
