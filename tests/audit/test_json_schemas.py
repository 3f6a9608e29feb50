"""What commands print with --json, against the schemas in tracehook/schemas: real output fits, a changed one not."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes import SCRIPTS, run
from support.schemas import NAMES, problems
from typer.testing import CliRunner

from tracehook.commands import app
from tracehook.tuning.table import Machine, Point, Row, Table

from .goldens import DIRECTORY, GOLDENS


def printed(*arguments: str | Path) -> Any:
    """Return the object that a command prints, in this process."""
    done = CliRunner().invoke(app, [str(part) for part in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return json.loads(done.stdout)


@pytest.mark.parametrize("golden", [golden.name for golden in GOLDENS])
def test_what_is_said_of_a_golden_directory_fits(golden: str) -> None:
    """All commands that read logs, on every directory of logs that the tests have; of the audit: test_golden.py."""
    logs = DIRECTORY / golden
    assert problems("summary", printed("summary", "--json", "--all", logs)) == []
    assert problems("jobs", printed("jobs", "--json", logs)) == []
    assert problems("watch", printed("watch", "--once", "--json", logs)) == []


def test_what_the_doctor_says_fits() -> None:
    """With a device and without one."""
    doctor = [str(SCRIPTS / "tracehook"), "doctor", "--json"]
    alone = run(doctor, {"SYMM_REGISTER_TIMEOUT": "30"})
    assert problems("doctor", json.loads(alone.out)) == [], alone.output
    rehearsed = run([SCRIPTS / "tracehook", "rehearse", "--", *doctor])
    told, _ = json.JSONDecoder().raw_decode(rehearsed.out)
    assert told["works"], rehearsed.output
    assert problems("doctor", told) == [], rehearsed.output


def test_what_the_doctor_says_where_logs_are_only_read_fits(tmp_path: Path) -> None:
    """There is no torch, so nothing of the hook."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(name='torch')")
    alone = run([SCRIPTS / "tracehook", "doctor", "--json"], {"PYTHONPATH": str(tmp_path)})
    assert "not installed" in json.loads(alone.out)["found"]["torch"]
    assert problems("doctor", json.loads(alone.out)) == [], alone.output


def tuned() -> str:
    """Return the text of a tuning table."""
    row = Row("all_reduce", "bfloat16", graph=True, ranks=4, hosts=1)
    machine = Machine("NVIDIA H200", "2.28.9", "2.11.0+cu130", multicast=False)
    return Table(machine, rows={row: [Point(1024, 10.0, 8.0, 1.25, 0.01)]}).as_json()


@pytest.fixture(scope="module")
def samples() -> dict[str, Any]:
    """Return for each schema an object that fits it, with as many parts as there are. Nobody changes them."""
    failed = DIRECTORY / "agreement-mismatch-of-a-group"
    frame = {"function": "main", "file": "train.py", "line": 3}
    call = {"rule": "no-end", "ns": None, "ranks": [0], "call": "all_reduce", "number": 1, "group": "0"}
    call |= {"operation": "all_reduce", "collective_seq_id": 1, "p2p_seq_id": None, "state": "completed"}
    wait: dict[str, object] = {"group": "0"}
    wait |= {"made": [{"calls": 2, "by": ["rank 0"]}], "waiting": ["rank 0"], "missing": ["rank 1"]}
    wait |= {"call": "all_reduce", "seconds": 7.0, "is_cause": True, "behind": 0}
    place = {"rank": 1, "file": "train.py", "line": 3, "function": "main", "waits_for": None, "caller": ""}
    wait["places"] = [place]
    found = ("tracehook", "torch", "hook libraries", "rehearsal", "registers", "NCCL", "state", "memory")
    doctor = {"version": 1, "works": True, "self_test": "", "found": dict.fromkeys(found, "")}
    return {
        "audit": printed("audit", "--json", failed)
        | {"flight_recorder": {"calls": [call | {"frames": [frame]}], "said": []}},
        "summary": printed("summary", "--json", failed),
        "jobs": printed("jobs", "--json", failed),
        "watch": printed("watch", "--once", "--json", failed) | {"waits": [wait]},
        "doctor": doctor | {"remarks": {}, "settings": {}},
        "tuned": json.loads(tuned()),
    }


def objects(told: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where in an object there are objects, itself first; of a list, in its first row."""
    if isinstance(told, dict):
        yield path
        for name, value in told.items():
            yield from objects(value, (*path, name))
    elif isinstance(told, list) and told:
        yield from objects(told[0], (*path, 0))


def at(told: Any, path: tuple[Any, ...]) -> Any:
    """Return the part of an object at a place."""
    for step in path:
        told = told[step]
    return told


# Objects whose names are data: rules, files, remarks, variables, and the fields of an event.
OPEN = {("counts",), ("looked", "left_out_by"), ("not_read",), ("remarks",), ("settings",), ("processes", 0, "latest")}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_goes_or_comes_is_refused(name: str, samples: dict[str, Any]) -> None:
    """Each name of each object, one after the other; and one more name in each object."""
    sample = samples[name]
    assert problems(name, sample) == []
    tried = 0
    for path in objects(sample):
        if path in OPEN:
            continue
        for key in at(sample, path):
            if (path, key) == ((), "flight_recorder"):
                continue  # only with --flight-recorder
            less = copy.deepcopy(sample)
            del at(less, path)[key]
            assert problems(name, less), f"{path} without {key}"
            tried += 1
        more = copy.deepcopy(sample)
        at(more, path)["unheard_of"] = 1
        assert problems(name, more), f"{path} with one more"
    assert tried > 4


@pytest.mark.parametrize("name", NAMES)
def test_a_value_of_another_type_is_refused(name: str, samples: dict[str, Any]) -> None:
    """A list of lists in the place of each value."""
    sample = samples[name]
    for path in objects(sample):
        for key in at(sample, path):
            if path in OPEN and path[-1:] == ("latest",):
                continue
            wrong = copy.deepcopy(sample)
            at(wrong, path)[key] = [["unheard of"]]
            assert problems(name, wrong), f"{path}: {key}"


def test_every_command_with_json_has_a_schema() -> None:
    """And the tuning table has one."""
    with_json = {
        command.name
        for command in app.registered_commands
        if command.callback is not None and "as_json" in command.callback.__annotations__
    }
    assert with_json | {"tuned"} == set(NAMES)
