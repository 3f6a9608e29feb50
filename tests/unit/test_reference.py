"""The pages of reference say what the source says: variables, commands, public names."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

import tracehook
from tracehook.settings import table

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def writer() -> SimpleNamespace:
    """Return docs/write_reference.py."""
    return SimpleNamespace(**runpy.run_path(str(DOCS / "write_reference.py")))


def test_the_page_is_what_the_source_says(writer: SimpleNamespace) -> None:
    """It is what docs/write_reference.py writes, with a row for each variable, and each option somewhere."""
    page = writer.PAGE.read_text(encoding="utf-8")
    assert page == writer.written(page)
    assert re.findall(r"^\| `(SYMM_REGISTER_\w+)` \|", page, re.MULTILINE) == [row[0] for row in table()]
    assert "### tracehook audit\n" in page
    assert "| `--max-findings` | `5` |" in page
    assert page.count("| `--since` |") == 1


TABLES = runpy.run_path(str(DOCS / "write_tables.py"))


@pytest.mark.parametrize(
    ("page", "write", "marks"),
    [
        ("failure-modes.md", "failures_page", []),
        ("log-schema.md", "page", ["BEGIN", "END"]),
        ("operations.md", "metrics_page", []),
        ("symmetric.md", "symmetric_page", ["BEGIN_RULES", "END_RULES"]),
    ],
)
def test_the_tables_of_a_page_are_what_the_source_says(page: str, write: str, marks: list[str]) -> None:
    """It is what docs/write_tables.py writes."""
    text = (DOCS / page).read_text(encoding="utf-8")
    assert TABLES[write](text) == text
    assert [text.count(TABLES[mark]) for mark in marks] == [1] * len(marks)


def test_the_page_of_the_api_has_every_public_name() -> None:
    """Of the package, and of its modules for programs."""
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^::: tracehook\.([\w.]+)$", page, re.MULTILINE))
    names = {name for name in tracehook.__all__ if name not in ("__version__", "ddp", "fsdp", "ipc", "metrics")}
    for module in ("ipc", "policies"):
        names |= {f"{module}.{name}" for name in getattr(__import__(f"tracehook.{module}"), module).__all__}
    assert names - listed == set()


def test_variables_in_pages_exist() -> None:
    """No page names a variable that tracehook does not read. Runs of the past had some more."""
    known = {row[0] for row in table()}
    for page in [DOCS.parent / "README.md", *DOCS.glob("*.md")]:
        named = set(re.findall(r"SYMM_REGISTER_[A-Z_]+[A-Z]", page.read_text(encoding="utf-8")))
        past = {"SYMM_REGISTER_VERIFY", "SYMM_REGISTER_ON_ERROR"} if page.name == "verification.md" else set()
        assert named <= known | past, page.name
