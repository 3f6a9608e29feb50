"""README and getting-started as a newcomer follows them: each block in its order, in one shell, in a fresh clone.

`.ci/run` calls it in its own clone (`python3 -m support.newcomer` in tests/). README's second block stands for the
reader's own environment, which here is that of `make demo`: so pip replaces the build of make, and make that of pip.
What the newcomer saves is removed in the end.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator

from support.pages import ROOT, Block, all_blocks

PAGES = ("README.md", "docs/getting-started.md")
PLACES = ("as a newcomer", "in a shell")
SAID = ("Clean: 4 registrations", "sum: 2.0", "path: symmetric")  # what the pages promise, besides exit statuses
_BEGIN = """set -euo pipefail
trap 'echo "newcomer: line $LINENO failed: $BASH_COMMAND" >&2' ERR
export OMP_NUM_THREADS=1
"""
_ENTER = "set +u; source .venv/bin/activate; set -u\n"  # README: "in your environment"


def script(blocks: Iterable[Block]) -> str:
    """Return the commands of all blocks that a newcomer gives, in the order of the pages."""
    given = list(blocks)
    chosen = [block for page in PAGES for block in given if block.page == page and block.what in PLACES]
    saved = ["logs", *(block.title for block in chosen if block.title is not None)]
    return _BEGIN + "".join(line for block in chosen for line in _lines(block)) + f"rm -rf {' '.join(saved)}\n"


def _lines(block: Block) -> Iterator[str]:
    yield f"echo {shlex.quote(f'--- {block.name}')}\n"
    if block.title is not None:
        yield f"printf %s {shlex.quote(block.text)} > {block.title}\n"
    elif block.fails_with is not None:
        yield f"if said=$({block.text.strip()} 2>&1); then echo 'expected it to fail' >&2; exit 1; fi\n"
        yield f'grep -qF {shlex.quote(block.fails_with)} <<< "$said" || {{ echo "$said" >&2; exit 1; }}\n'
    else:
        yield block.text
        yield _ENTER if block.text == "make demo\n" else ""


def main() -> int:
    """Give the commands; return the exit status."""
    shell = subprocess.Popen(["bash", "-c", script(all_blocks())], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    missing = set(SAID)
    assert shell.stdout is not None
    for line in shell.stdout:
        sys.stdout.write(line)
        missing -= {text for text in missing if text in line}
    status = shell.wait()
    if status == 0 and missing:
        print(f"newcomer: nothing said {', '.join(sorted(missing))}", file=sys.stderr)
    return status or (1 if missing else 0)


if __name__ == "__main__":
    sys.exit(main())
