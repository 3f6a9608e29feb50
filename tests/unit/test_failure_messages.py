"""docs/failure-modes.md: each message in its tables of what a reader sees is one that the code prints."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tracehook.audit.rules import rules

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "failure-modes.md").read_text(encoding="utf-8")
TABLES = re.findall(r"^\| you see \| cause \| what to do \|\n\|[-|]+\|\n((?:\| .*\n)+)", PAGE, re.MULTILINE)
ROWS = [row for table in TABLES for row in table.splitlines()]
LITERAL = r'"((?:[^"\\\n]|\\.)*)"'
# What is in the left column beside messages.
OTHERS = {"OutOfMemoryError", "tracehook doctor", "torch.compile", "--values"}


@cache
def printed() -> str:
    """Return all texts in the source, each on a line of its own; what is filled in is an ellipsis."""
    texts = []
    for file in (ROOT / "tracehook").rglob("*.py"):
        texts += _of_python(ast.parse(file.read_text(encoding="utf-8")))
    for ending in ("*.cpp", "*.h", "*.def"):
        for file in (ROOT / "tracehook" / "cpp").rglob(ending):
            for run in re.finditer(rf"(?:{LITERAL}\s*)+", file.read_text(encoding="utf-8")):
                text = "".join(re.findall(LITERAL, run[0]))
                texts.append(re.sub(r"%[a-z]+", "…", text.replace('\\"', '"')))
    return "\n".join(texts)


def _of_python(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
            found.append("".join(map(str, parts)))
    return found


def quoted() -> list[str]:
    """Return the messages in the left column."""
    found = [quote for row in ROWS for quote in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    return [quote for quote in found if quote not in OTHERS]


@pytest.mark.parametrize("quote", quoted())
def test_the_code_prints_it(quote: str) -> None:
    """Each part of it between what is filled in."""
    known = printed() + "\n" + "\n".join(rule.name for rule in rules())
    for part in filter(None, (part.strip(" ;:") for part in quote.split("…"))):
        assert part in known, f"no text of the source has {part!r}"


def test_every_row_says_what_to_do() -> None:
    """Three columns, none of them empty."""
    assert len(ROWS) > 40
    for row in ROWS:
        cells = [cell.strip() for cell in row.strip("| ").split(" | ")]
        assert len(cells) == 3, row
        assert all(cells), row
