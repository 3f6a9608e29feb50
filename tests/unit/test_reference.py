"""The pages of reference say what the source says: variables, commands, public names."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import tracehook
from tracehook.settings import table

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    """Return docs/write_reference.py."""
    spec = importlib.util.spec_from_file_location("write_reference", DOCS / "write_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_source_says(writer: ModuleType) -> None:
    """It is what docs/write_reference.py writes, with a row for each variable, and each option somewhere."""
    page = writer.PAGE.read_text(encoding="utf-8")
    assert page == writer.written(page)
    assert re.findall(r"^\| `(SYMM_REGISTER_\w+)` \|", page, re.MULTILINE) == [row[0] for row in table()]
    assert "### tracehook audit\n" in page
    assert "| `--max-findings` | `5` |" in page
    assert page.count("| `--since` |") == 1


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
