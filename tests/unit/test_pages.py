"""Marks of blocks in pages: what is wrong with one is said in a sentence."""

import re
from pathlib import Path

import pytest
from support.pages import PAGES, ROOT, Block, blocks_of, problem_of


def only(text: str) -> Block:
    """Return the only block of a page."""
    (block,) = blocks_of(text, "docs/x.md")
    return block


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("```bash\ntracehook audit logs\n```\n", "no mark"),
        ("```\nsome output\n```\n", "no mark"),
        ("```text\n$ tracehook audit logs\n```\n", "has a command: '$ tracehook audit'"),
        ("```text\nA=1 torchrun x.py\n```\n", "has a command"),
        ("<!-- runs: in rehearsal -->\n\n```python\nx\n```\n", "no mark"),
        ("<!-- runs: somewhere -->\n```python\nx\n```\n", "is no place"),
        ("<!-- runs: in rehearsal -->\n```sql\nx\n```\n", "sql is not run in rehearsal"),
        ("<!-- not run: no time -->\n```bash\nx\n```\n", "expected a reason"),
        ("<!-- run by: tests/nowhere.py -->\n```bash\nx\n```\n", "there is no tests/nowhere.py"),
        ("```text\ntracehook: communicator 5\ntracehook audit: the newest of 2 jobs\n```\n", None),
        ("<!-- runs: in rehearsal -->\n```python\nx\n```\n", None),
        ("<!-- not run: needs GPUs -->\n```bash\nx\n```\n", None),
    ],
)
def test_what_is_wrong_is_said(text: str, told: str | None) -> None:
    """No mark, a mark that is none, and a command that hides in a text; of what is right nothing."""
    problem = problem_of(only(text))
    assert problem is None if told is None else told in (problem or "nothing")


def test_a_named_test_has_to_run_the_block(tmp_path: Path) -> None:
    """It names the page, or it or its job calls what the block calls."""
    jobs = tmp_path / "tests" / "rehearsal" / "jobs"
    jobs.mkdir(parents=True)
    (jobs / "a.py").write_text("tracehook.trim(group)\n")
    test = tmp_path / "tests" / "test_a.py"
    block = only("<!-- run by: tests/test_a.py -->\n```python\ntracehook.trim(group)\n```\n")
    test.write_text("rehearse('b.py')\n")
    assert "names neither docs/x.md nor" in (problem_of(block, tmp_path) or "nothing")
    for text in ("rehearse('a.py')\n", "PAGE = 'x.md'\n"):
        test.write_text(text)
        assert problem_of(block, tmp_path) is None


def test_a_block_knows_its_place() -> None:
    """Its line, its file, and what it says when it fails."""
    text = '# X\n\n<!-- runs: in a shell; fails with: a sentence -->\n```python title="a.py"\nx\n```\n'
    block = only(text)
    assert (block.name, block.title, block.text) == ("docs/x.md:4", "a.py", "x\n")
    assert block.runs("in a shell")
    assert block.fails_with == "a sentence"


FIRST = ["getting-started.md", "symmetric.md", "failure-modes.md", "operations.md"]


def test_the_front_of_the_house_stays_small() -> None:
    """A README of at most 120 lines, at most 18 pages, and before all others in the navigation those that suffice."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
    assert len(PAGES) <= 1 + 18
    assert len((ROOT / "docs" / "design.md").read_text(encoding="utf-8").splitlines()) <= 350
    listed = re.findall(r"([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed[:5] == ["index.md", *FIRST]
