"""The page for people who let an agent read logs: its commands run, and the fields that it names are there."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from audit.goldens import GOLDENS, unpack
from support.processes import run

import tracehook

PAGE = (Path(tracehook.__file__).parent / "SKILL.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if " doctor " not in line]
HUNG = next(golden for golden in GOLDENS if golden.name == "rank-missing-skipped")
SCHEMAS = [json.loads(file.read_text()) for file in Path(tracehook.__file__).parent.glob("schemas/*.json")]
FINDING = next(schema for schema in SCHEMAS if "audit" in schema["title"])["$defs"]["finding"]
# `first_finding.ranks`, `waits[].call`: a path in what a command prints. `.because` goes on after the one before it.
PATH = re.compile(r"`((?:first_\w+|looks_like|findings|processes|jobs|waits|sentence)(?:\[\])?(?:\.\w+)?(?:\[\])?)`")


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what each command of the page prints for a job that hung."""
    place = tmp_path_factory.mktemp("skill")
    logs = unpack(HUNG.path, place)
    said = {}
    for command in COMMANDS:
        words = [{"LOGS": str(logs)}.get(word, word.replace("OUT", str(place / "out"))) for word in command.split()]
        words[0] = str(Path(sys.executable).with_name(words[0]))
        finished = run(words, timeout=100)
        assert finished.status == (1 if words[1] == "audit" else 0), finished.output
        said[command] = finished.out
    return said


def fields_of(schema: dict[str, Any], path: str) -> bool:
    """Whether a path leads to a field of what a JSON Schema describes."""
    for step in path.split("."):
        name = step.removesuffix("[]")
        schema = {**schema, **schema.get("anyOf", [{}])[0]}
        if "$ref" in schema:
            schema = FINDING
        if name not in schema.get("properties", {}):
            return False
        schema = schema["properties"][name]
        schema = schema["items"] if step.endswith("[]") else schema
    return True


def test_its_commands_run(printed: dict[str, str]) -> None:
    """There are some, and those that promise JSON print an object."""
    assert len(printed) >= 6
    for command, text in printed.items():
        if "--json" in command:
            assert json.loads(text)["version"] == 1


def test_the_fields_that_it_names_are_there() -> None:
    """Each path is one of an object that a command prints."""
    paths = set(PATH.findall(PAGE))
    assert len(paths) >= 8
    assert {path for path in paths if not any(fields_of(schema, path) for schema in SCHEMAS)} == set()


def test_it_leads_to_the_culprit(printed: dict[str, str]) -> None:
    """The field that it names for the culprits has the rank that skipped a call."""
    command = next(command for command in printed if command == "tracehook audit LOGS --json")
    assert json.loads(printed[command])["first_finding"]["ranks"][0] == 5
