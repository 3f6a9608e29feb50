"""The blocks of code in README.md and docs/, and what their marks say: who runs them, or why nobody does.

A mark is a comment on the line above a block, which no reader sees:

    <!-- runs: in rehearsal -->            tests/integration/test_documentation.py runs it on emulated devices
    <!-- runs: in a shell -->              the same, as a step of its page: files it saves, commands it gives
    <!-- runs: on recorded logs -->        the same, beside the directory `logs` of a recorded job
    <!-- runs: in Python -->               the same, without torch
    <!-- runs: as a newcomer -->           tests/support/newcomer.py gives it in a fresh clone: .ci/run does so
    <!-- run by: tests/audit/test_x.py --> that test runs it
    <!-- not run: REASON -->               it needs what no test has

``; fails with: TEXT`` behind ``runs: ...`` says that it has to fail, and what it says then. A block of the language
``text`` is no code: what a program prints, or a drawing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PLACES = {
    "in rehearsal": {"python", "bash"},
    "in a shell": {"python", "bash"},
    "on recorded logs": {"python", "bash"},
    "in Python": {"python"},
    "as a newcomer": {"bash"},
}
REASONS = ("needs ", "installs", "takes ", "has placeholders", "starts ")
_BLOCK = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- (runs|run by|not run): (.+?)(?:; fails with: (.+))? -->")
_TITLE = re.compile(r'title="([\w.-]+)"')
_COMMAND = re.compile(
    r"^(\$ )?(\w+=\S+ )*(tracehook [a-z-]+( |$)|(torchrun|pip|make|python3?|srun|export|jq|source) )", re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """One block: where it stands, its language and text, and its mark."""

    page: str  # as README.md or docs/audit.md
    line: int
    language: str
    title: str | None  # the file in which its reader saves it
    text: str
    kind: str  # runs, run by, not run; empty: no mark
    what: str  # what the mark says of it
    fails_with: str | None

    @property
    def name(self) -> str:
        """Return where it stands."""
        return f"{self.page}:{self.line}"

    def runs(self, where: str) -> bool:
        """Whether it is to be run there."""
        return self.kind == "runs" and self.what == where


def blocks_of(text: str, page: str) -> list[Block]:
    """Return the blocks of a page."""
    found = []
    for match in _BLOCK.finditer(text):
        before = text[: match.start()].splitlines()
        mark = _MARK.fullmatch(before[-1].strip()) if before else None
        language, _, more = match["info"].partition(" ")
        title = _TITLE.search(more)
        kind, what, fails_with = mark.groups() if mark else ("", "", None)
        place = len(before) + 1
        found.append(Block(page, place, language, title[1] if title else None, match["text"], kind, what, fails_with))
    return found


def all_blocks() -> list[Block]:
    """Return the blocks of all pages."""
    return [
        block
        for page in PAGES
        for block in blocks_of(page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix())
    ]


def problem_of(block: Block, root: Path = ROOT) -> str | None:
    """Return what is wrong with the mark of a block."""
    if block.language == "text":
        command = _COMMAND.search(block.text)
        return f"a block of text has a command: {command[0].strip()!r}" if command else None
    if block.kind == "":
        return "no mark says who runs it; tests/support/pages.py has the marks"
    if block.kind == "runs":
        languages = PLACES.get(block.what)
        if languages is None:
            return f"'runs: {block.what}' is no place; expected {', '.join(PLACES)}"
        return None if block.language in languages else f"{block.language or 'no language'} is not run {block.what}"
    if block.kind == "not run":
        return None if block.what.startswith(REASONS) else f"expected a reason that begins with {', '.join(REASONS)}"
    return _problem_of_test(block, root)


def _problem_of_test(block: Block, root: Path) -> str | None:
    """Return why a named test does not run a block: it names neither the page nor what the block calls."""
    test = root / block.what
    if not test.is_file():
        return f"there is no {block.what}"
    known = test.read_text(encoding="utf-8")
    jobs = (root / "tests" / "rehearsal" / "jobs" / name for name in re.findall(r"\b\w+\.py\b", known))
    known += "".join(job.read_text(encoding="utf-8") for job in jobs if job.is_file())
    called = set(re.findall(r"tracehook\.[\w.]+(?=\()", block.text))
    if Path(block.page).name in known or (called and all(name in known for name in called)):
        return None
    return f"{block.what} names neither {block.page} nor all of what it calls"
