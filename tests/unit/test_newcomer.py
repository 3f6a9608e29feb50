"""What a newcomer gives is what the pages have, from top to bottom."""

from __future__ import annotations

import subprocess

from support.newcomer import PAGES, PLACES, script
from support.pages import all_blocks


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
