"""Policies of installed packages: the one of the documentation, found and asked in a process of its own."""

import re
import tomllib
from pathlib import Path

import pytest
from support.packages import install
from support.processes import python

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
    page = PAGE.read_text().partition("## Rules for segments")[0]
    blocks = dict(re.findall(r"^```(toml|python)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE))
    project = tomllib.loads(blocks["toml"])["project"]
    points = project["entry-points"]["tracehook.policies"]
    install(tmp_path, project["name"], project["version"], {"my_policies": blocks["python"]}, points)
    return tmp_path


def test_policy_of_another_package_is_asked(site: Path) -> None:
    """The documentation's policy answers what it is for, the next answers the rest, and torch is not needed."""
    finished = python(ASK, "large-only,isolated", env={"PYTHONPATH": str(site)})
    assert finished.out.splitlines() == ["NONE large-only 0", "ISOLATED isolated 1", "ISOLATED isolated 1"]
    assert finished.status == 0, finished.output
