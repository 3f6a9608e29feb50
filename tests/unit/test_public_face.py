"""The public face: its names, and the answer of `status()`."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

import tracehook
from tracehook.hook import facts
from tracehook.hook import status as status_types
from tracehook.hook.status import Status

PROGRAM = Path(__file__).parents[1] / "support" / "public_face.py"
NO_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, NoTorch())
from tracehook.commands import main
sys.argv[0] = "tracehook"
main()
"""


def test_the_typed_program_uses_every_public_name() -> None:
    """The program that a type checker sees beside each wheel."""
    used = {node.attr for node in ast.walk(ast.parse(PROGRAM.read_text())) if isinstance(node, ast.Attribute)}
    assert set(tracehook.__all__) - used == set()


def test_the_types_of_the_status_are_its_names() -> None:
    """Of a process in which nothing runs, the status has each name that the type has."""
    assert facts.nothing().keys() == get_type_hints(Status).keys()


def test_every_row_of_a_communicator_has_a_type() -> None:
    """The native rows and the types have the same names."""
    source = (Path(tracehook.__file__).parent / "cpp" / "bindings" / "rows.cpp").read_text()
    rows = source[source.index("py::list communicators(") : source.index("py::list ranges(")]
    named = {line.split('"')[1] for line in rows.splitlines() if 'row["' in line}
    assert named == get_type_hints(status_types.CommunicatorStatus).keys()


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        ("--version", 0, f"tracehook {tracehook.__version__} (Python "),
        ("doctor", 1, "not installed: tracehook reads logs here; to follow a job, install torch"),
        ("tune", 2, "tracehook: this command needs torch, and torch is not installed; expected torch 2.11 or later"),
        ("jobs {logs}", 0, "ranks 0-1"),
        ("summary {logs}", 0, "2 processes"),
        ("audit {logs}", 0, "Clean"),
    ],
)
def test_logs_are_read_without_torch(command: str, status: int, words: str) -> None:
    """Commands that need torch say so in a line."""
    logs = Path(__file__).parents[1] / "audit" / "golden" / "clean"
    arguments = [part.format(logs=logs) for part in command.split()]
    done = subprocess.run(
        [sys.executable, "-c", NO_TORCH, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin", "COLUMNS": "200"},
    )
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done
    assert words in done.stdout + done.stderr
