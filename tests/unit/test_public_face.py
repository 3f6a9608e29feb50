"""The public face: its names, and the answer of `status()`."""

import ast
import contextlib
import pydoc
from pathlib import Path
from typing import get_type_hints

import pytest
import typer.main
from support.processes import python
from typer.testing import CliRunner

import tracehook
from tracehook.commands import app
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
    """Of a process in which nothing runs the status has each name that the type has; so have the native rows."""
    assert status_types.nothing().keys() == get_type_hints(Status).keys()
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
        ("jobs {logs}", 0, "ranks 0, 1"),
        ("summary {logs}", 0, "2 processes"),
        ("audit {logs}", 0, "Clean"),
    ],
)
def test_logs_are_read_without_torch(command: str, status: int, words: str) -> None:
    """Commands that need torch say so in a line."""
    logs = Path(__file__).parents[1] / "audit" / "golden" / "clean"
    arguments = [part.format(logs=logs) for part in command.split()]
    done = python(NO_TORCH, *arguments, env={"COLUMNS": "200"})
    assert (done.status, "Traceback" in done.err) == (status, False), done
    assert words in done.out + done.err


COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_the_short_help_is_the_help(command: str) -> None:
    """Nothing of it is cut at 80 columns; a command that starts another says where that one stands."""
    asked = [CliRunner().invoke(app, [*command.split(), option], env={"COLUMNS": "80"}) for option in ("-h", "--help")]
    short, long = asked
    assert (short.exit_code, short.output) == (0, long.output)
    usage, *lines = long.output.splitlines()
    assert not [line for line in lines if line.endswith(("…", "..."))]
    assert ("-- COMMAND" in usage) == (command in ("run", "rehearse"))


def test_options_of_several_commands_have_one_form() -> None:
    """The same directory, and the same short and long names of what a command writes."""
    of_all = [parameter for command in COMMANDS.values() for parameter in command.params]
    assert {one.metavar for one in of_all if one.name == "directory"} == {"DIR"}
    writes = [tuple(one.opts) for one in of_all if one.name in ("out", "output") and one.param_type_name == "option"]
    assert writes == [("--out", "-o")] * 3


@pytest.mark.parametrize("right", ["symmetric", "status", "fsdp"])
def test_a_misspelt_name_is_answered_with_the_right_one(right: str) -> None:
    """As Python does for names that a module shows."""
    name = right[:-1]
    said = python(f"import tracehook; tracehook.{name}").err.splitlines()[-1]
    assert said.endswith(f"has no attribute '{name}'. Did you mean: '{right}'?")


def test_the_module_shows_its_public_names() -> None:
    """For an interpreter that completes them, also those that nobody used yet; and no others."""
    assert sorted(dir(tracehook)) == sorted(tracehook.__all__)


def test_help_needs_no_torch() -> None:
    """Where torch is not installed, the module shows what is there without it."""
    code = "import sys; sys.modules['torch'] = None; import tracehook, pydoc; print(pydoc.render_doc(tracehook))"
    done = python(code)
    assert (done.status, done.err) == (0, "")
    assert "enable() -> " in pydoc.plain(done.out)


def test_a_scope_that_does_nothing_is_a_context_manager_as_any_other() -> None:
    """Also for code that looks its methods up, as `ExitStack` does."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(tracehook.symmetric(disabled=True))
    stack.enter_context(tracehook.symmetric(disabled=True))
    assert not stack.__exit__(KeyError, KeyError(), None)  # it swallows nothing
