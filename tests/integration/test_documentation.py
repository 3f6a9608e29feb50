"""README.md and docs/: each block of code is run, by this file or by one that its mark names, or it says why not."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import warm
from support.pages import Block, all_blocks, problem_of
from support.processes import SCRIPTS, environment, python, run
from support.rehearsal import EXAMPLES, ROOT, Rehearsal, rehearse

from tracehook.rehearsal.warm import SOCKET

BLOCKS = all_blocks()
RECORDED = ROOT / "tests" / "audit" / "golden" / "clean"
RANKS = 3  # a ring needs a left and a right neighbour
SNIPPETS = [block for block in BLOCKS if block.runs("in rehearsal") and block.language == "python"]


def at(where: str, language: str) -> list[Block]:
    """Return the blocks that are run in a place."""
    return [block for block in BLOCKS if block.runs(where) and block.language == language]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_a_block_is_run_or_says_why_not(block: Block) -> None:
    """Its mark names a place in which this file runs it, a test that does, or a reason."""
    assert problem_of(block) is None, f"{block.name}: {problem_of(block)}"


# --- in rehearsal ---


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """Run all snippets, one after the other, in one job."""
    folder = tmp_path_factory.mktemp("snippets")
    wanted = [{"name": b.name, "page": b.page, "line": b.line, "text": b.text} for b in SNIPPETS]
    (folder / "snippets.json").write_text(json.dumps(wanted))
    return rehearse("snippets.py", str(folder / "snippets.json"), log=folder / "logs", ranks=RANKS, timeout=90)


@pytest.mark.parametrize("block", SNIPPETS, ids=lambda block: block.name)
def test_a_snippet_runs_on_all_ranks(rehearsed: Rehearsal, block: Block) -> None:
    """In a group of its own, with the names that its page takes for granted."""
    assert [rehearsed.facts(rank).get(block.name) for rank in range(RANKS)] == ["ran"] * RANKS, rehearsed.output


def test_snippets_break_no_rule(rehearsed: Rehearsal) -> None:
    """Of NCCL, and no process is left."""
    rehearsed.assert_good()


@pytest.mark.parametrize("block", at("in rehearsal", "bash"), ids=lambda block: block.name)
def test_a_command_runs_on_emulated_devices(tmp_path: Path, block: Block) -> None:
    """As it stands on the page."""
    done = run([SCRIPTS / "tracehook", "rehearse", "--", "bash", "-ec", block.text], shell(), cwd=tmp_path)
    assert done.status == 0, f"{block.name}\n{done.output}"


# --- in a shell, and on recorded logs ---


def shell() -> dict[str, str]:
    """Return the environment of a shell in which rehearsals start warm, and pip installs nothing."""
    found = {"PATH": f"{SCRIPTS}:/usr/bin:/bin", "COLUMNS": "120"}
    if warm.WANTED:
        server = warm.server(environment(), [EXAMPLES / "train_ddp.py"])
        found = warm.environment(environment(found)) | {SOCKET: str(server.socket)}
    return found


def give(block: Block, folder: Path, limit: float) -> None:
    """Give the commands of a block in a folder, and see whether they end as the page says."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "pip").write_text("#!/bin/sh\n")  # in its place: nothing is to be installed
    (folder / "bin" / "pip").chmod(0o755)
    env = shell()
    command = [sys.executable, "-c"] if block.language == "python" else ["bash", "-ec"]
    done = run([*command, block.text], env | {"PATH": f"{folder / 'bin'}:{env['PATH']}"}, limit, cwd=folder)
    assert (done.status == 0) == (block.fails_with is None), f"{block.name}\n{done.output}"
    assert (block.fails_with or "") in done.output, f"{block.name}\n{done.output}"


@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS if block.runs("in a shell")}))
def test_a_reader_can_follow_a_page(tmp_path: Path, page: str) -> None:
    """Step by step, in the folder of a checkout, with a `train.py` of their own."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    shutil.copy(EXAMPLES / "train_ddp.py", tmp_path / "train.py")
    for block in BLOCKS:
        if block.page == page and block.runs("in a shell"):
            if block.title is not None:
                (tmp_path / block.title).write_text(block.text)
            else:
                assert block.language == "bash", f"{block.name} has no title, so nobody knows where to save it"
                give(block, tmp_path, 90)


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.runs("on recorded logs")], ids=lambda block: block.name
)
def test_logs_are_read_as_a_page_says(tmp_path: Path, block: Block) -> None:
    """Those of a recorded job, in the directory `logs`."""
    if block.text.startswith("jq ") and shutil.which("jq") is None:
        pytest.skip("this machine has no jq")
    if "import polars" in block.text:
        pytest.importorskip("polars")
    (tmp_path / "logs").mkdir()
    for log in RECORDED.glob("*.jsonl"):
        shutil.copy(log, tmp_path / "logs")
    give(block, tmp_path, 60)


@pytest.mark.parametrize("block", at("in Python", "python"), ids=lambda block: block.name)
def test_a_snippet_runs_without_torch(block: Block) -> None:
    """In an interpreter of its own."""
    done = python(block.text)
    assert (done.status, done.err) == (0, ""), f"{block.name}\n{done.output}"


# --- links ---


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    """`make docs` holds links and anchors against the pages; this holds without its packages."""
    named = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [page.name for page in (ROOT / "docs").glob("*.md") if f": {page.name}\n" not in named]
    assert missing == []


def test_git_ignores_the_site() -> None:
    """What `make docs` writes."""
    done = subprocess.run(["git", "check-ignore", "-q", "site/index.html"], cwd=ROOT, check=False)
    assert done.returncode in (0, 128)  # 128: this is no checkout
