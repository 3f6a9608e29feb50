"""Policies of installed packages: the one of the documentation, found and asked in a process of its own."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from support.packages import install
from support.processes import SCRIPTS, Finished, python, run

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"
ASK = """
import sys
from tracehook.policies import Request
from tracehook.policies.chooser import Chooser

chooser = Chooser(sys.argv[1].split(","), print)
for nbytes in (4096, 1 << 30, None):
    choice = chooser.choose(Request(("tp",), (4,), 0, "all_reduce", nbytes))
    print(choice.answer.name, choice.policy, choice.index)
assert "torch" not in sys.modules
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Install the package that docs/policies.md shows, word for word, and return where."""
    blocks = dict(re.findall(r"^```(toml|python)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE))
    project = tomllib.loads(blocks["toml"])["project"]
    points = project["entry-points"]["tracehook.policies"]
    install(tmp_path, project["name"], project["version"], {"my_policies": blocks["python"]}, points)
    return tmp_path


def _policies(names: str = "", site: Path | None = None) -> Finished:
    found = {"PYTHONPATH": str(site)} if site else {}
    return run([SCRIPTS / "tracehook", "policies"], {"SYMM_REGISTER_POLICY": names, "COLUMNS": "200", **found})


def _row(finished: Finished, name: str) -> list[str]:
    (line,) = [line for line in finished.out.splitlines() if line.split()[1:2] == [name]]
    return line.split()


def test_policy_of_another_package_is_shown(site: Path) -> None:
    """`tracehook policies` shows in which order the chosen ones are asked, and each one's package and first line."""
    finished = _policies("large-only,isolated", site)
    assert (finished.status, finished.err) == (0, ""), finished.output
    assert "SYMM_REGISTER_POLICY=large-only,isolated\n" in re.sub(" +\n", "\n", finished.out)
    assert _row(finished, "large-only")[:5] == ["1", "large-only", "my-policies", "1.0", "my_policies:large_only"]
    assert "No window for less than 1 MiB." in finished.out
    assert _row(finished, "isolated")[:3] == ["2", "isolated", "tracehook"]
    assert _row(finished, "shared")[:3] == ["-", "shared", "tracehook"]


def test_policy_of_another_package_is_asked(site: Path) -> None:
    """The documentation's policy answers what it is for, the next answers the rest, and torch is not needed."""
    finished = python(ASK, "large-only,isolated", env={"PYTHONPATH": str(site)})
    assert finished.out.splitlines() == ["NONE large-only 0", "ISOLATED isolated 1", "ISOLATED isolated 1"]
    assert finished.status == 0, finished.output


def test_the_default(site: Path) -> None:
    """With the variable unset `shared` is asked, also when other packages bring policies."""
    finished = _policies(site=site)
    assert (finished.status, finished.err) == (0, ""), finished.output
    assert "SYMM_REGISTER_POLICY=shared (default)" in finished.out
    assert _row(finished, "shared")[:3] == ["1", "shared", "tracehook"]
    assert _row(finished, "large-only")[:2] == ["-", "large-only"]
    assert python(ASK, "shared").out.splitlines() == ["SHARED shared 0"] * 3


def test_chosen_policy_that_is_missing() -> None:
    """A chosen policy that is not installed is status 1 and one line with the names that are."""
    finished = _policies("isolated,large-only")
    assert finished.status == 1, finished.output
    assert _row(finished, "large-only") == ["2", "large-only", "-", "-", "NOT", "INSTALLED"]
    assert finished.err == "tracehook policies: large-only: not installed; installed are isolated, measured, shared\n"


@pytest.mark.parametrize(("names", "status", "place"), [("large-only", 1, "1"), ("shared", 0, "-")])
def test_policy_that_is_broken(site: Path, names: str, status: int, place: str) -> None:
    """A policy that cannot be imported is marked and named with its error; the status is 1 only if it is chosen."""
    (site / "my_policies.py").write_text("raise RuntimeError('[bold] not\\ntoday')\n")
    finished = _policies(names, site)
    assert finished.status == status, finished.output
    assert (_row(finished, "large-only")[0], _row(finished, "large-only")[-1]) == (place, "BROKEN")
    (line,) = finished.err.splitlines()
    assert line.endswith("(my-policies 1.0) cannot be loaded: RuntimeError: [bold] not today")


def test_policies_as_json(site: Path) -> None:
    """`--json` has the rows of the table, in its order."""
    env = {"SYMM_REGISTER_POLICY": "large-only", "PYTHONPATH": str(site)}
    finished = run([SCRIPTS / "tracehook", "policies", "--json"], env)
    assert (finished.status, finished.err) == (0, ""), finished.output
    told = json.loads(finished.out)
    assert told["version"] == 1
    assert [(row["name"], row["asked"]) for row in told["policies"]] == [
        ("large-only", 1), ("isolated", None), ("measured", None), ("shared", None),
    ]  # fmt: skip
    assert told["policies"][0] == {
        "asked": 1, "name": "large-only", "package": "my-policies 1.0", "target": "my_policies:large_only",
        "summary": "No window for less than 1 MiB.", "problem": "",
    }  # fmt: skip


def test_value_that_names_no_policy() -> None:
    """A variable without a name in it is named, and the default shown."""
    finished = _policies(" , ")
    assert (finished.status, len(finished.err.splitlines())) == (0, 1), finished.output
    assert "expected names of policies" in finished.err
    assert _row(finished, "shared")[0] == "1"


def test_help() -> None:
    """`--help` says what the exit status means."""
    finished = run([SCRIPTS / "tracehook", "policies", "--help"], {"COLUMNS": "200"})
    assert (finished.status, finished.err) == (0, "")
    assert "Exit status 1" in finished.out
    assert "SYMM_REGISTER_POLICY" in finished.out
