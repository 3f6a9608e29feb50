"""What a newcomer gives is what the pages have, from top to bottom."""

import re
import subprocess

from support.newcomer import PAGES, PLACES, script
from support.pages import ROOT, all_blocks


def test_every_command_of_the_first_pages_is_given() -> None:
    """In the order of the pages; and the shell can read it all."""
    blocks = all_blocks()
    text = script(blocks)
    chosen = [block for page in PAGES for block in blocks if block.page == page and block.what in PLACES]
    places = [text.index(f"--- {block.name}") for block in chosen]
    assert places == sorted(places)
    assert all(block.text.strip() in text for block in chosen if block.language == "bash")
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_only_the_first_pages_are_for_newcomers() -> None:
    """A block elsewhere with this mark would be run by nobody."""
    assert {block.page for block in all_blocks() if block.runs("as a newcomer")} == set(PAGES)


def test_the_rest_of_the_first_pages_needs_gpus() -> None:
    """No block of them is left out that a newcomer could give."""
    left = [block for block in all_blocks() if block.page in PAGES and block.kind == "not run"]
    assert [block.name for block in left if not block.what.startswith("needs GPUs")] == []


def test_the_lines_of_the_hang_are_those_that_its_reader_sees() -> None:
    """Rank 1 is in the line of the mistake, rank 0 in the one that reads the sum, as counted in what is saved."""
    (saved,) = {block.text for block in all_blocks() if block.title == "hang.py"}
    lines = {
        str(number): ("load_batch" if "# the mistake" in line else "<module>" if ".item()" in line else "none")
        for number, line in enumerate(saved.splitlines(), 1)
    }
    said = [
        place
        for page in PAGES
        for place in re.findall(r"hang\.py:(\d+)\s+in\s+([\w<>]+)", (ROOT / page).read_text(encoding="utf-8"))
    ]
    assert said
    assert [lines[number] for number, _ in said] == [function for _, function in said]
