"""What mkdocs.yml needs besides the pages: the README as the home page, and a page for each file that a page links to.

Pages link as a code host wants it: from README.md into docs/, from docs/ to files of the repository. The site has
docs/ alone, so these hooks of MkDocs give it such files as pages under files/, and turn the links.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
HOME = "README.md"
LANGUAGES = {".py": "python", ".json": "json", ".yml": "yaml", ".toml": "toml", ".def": "c", ".h": "c", ".cpp": "cpp"}
_LINK = re.compile(r"(\]\()([^()\s]+)(\))")
_FENCE = re.compile(r"^(```+).*?^\1$", re.MULTILINE | re.DOTALL)
_origin: dict[str, str] = {}  # the file of the repository that a page shows, by the page's path in the site


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the home page, and the pages of files that pages link to, and those link to in turn."""
    wanted = [HOME]
    for file in files.documentation_pages():
        _origin[file.src_uri] = f"docs/{file.src_uri}"
        wanted += _linked(_origin[file.src_uri], file.content_string)
    while wanted:
        path = wanted.pop()
        if _uri(path) in _origin or not _uri(path).startswith(("files/", "index.md")):
            continue
        _origin[_uri(path)] = path
        text = _text(path)
        files.append(File.generated(config, _uri(path), content=text, inclusion=InclusionLevel.NOT_IN_NAV))
        wanted += _linked(path, text)
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn links to files of the repository into links to their pages, and leave theirs out of the search."""
    if page.file.src_uri.startswith("files/"):
        page.meta["search"] = {"exclude": True}
    origin = _origin[page.file.src_uri]

    def turned(link: re.Match[str]) -> str:
        path, anchor = _target(origin, link[2])
        if path is None:
            return link[0]
        return f"{link[1]}{posixpath.relpath(_uri(path), posixpath.dirname(page.file.src_uri) or '.')}{anchor}{link[3]}"

    return _outside_of_blocks(markdown, lambda text: _LINK.sub(turned, text))


def _uri(path: str) -> str:
    """Return the path in the site of a file of the repository."""
    if path == HOME:
        return "index.md"
    if path.startswith("docs/") and not path.endswith(".py"):
        return path.removeprefix("docs/")
    return f"files/{path}" if path.endswith(".md") else f"files/{path}.md"


def _text(path: str) -> str:
    """Return the page of a file of the repository."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(found.name for found in file.iterdir() if not found.name.startswith(("__", ".")))
        return f"# {path}\n\n" + "\n".join(f"* [{name}]({file.name}/{name})" for name in names) + "\n"
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return text
    return f"# {path}\n\n`````{LANGUAGES.get(file.suffix, 'text')}\n{text}`````\n"


def _linked(origin: str, markdown: str) -> list[str]:
    """Return the files of the repository that a page links to."""
    found: list[str] = []

    def collect(text: str) -> str:
        found.extend(path for _, link, _ in _LINK.findall(text) if (path := _target(origin, link)[0]) is not None)
        return text

    _outside_of_blocks(markdown, collect)
    return found


def _target(origin: str, link: str) -> tuple[str | None, str]:
    """Return the file that a link on a page means, or None if it is none of the repository, and the anchor in it."""
    path, mark, anchor = link.partition("#")
    if not path or ":" in path or path.startswith("/"):
        return None, ""
    # A directory's page links to what is in it by the directory's name.
    found = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
    return (found if (ROOT / found).exists() else None), mark + anchor


def _outside_of_blocks(markdown: str, change: Callable[[str], str]) -> str:
    def parts() -> Iterator[str]:
        end = 0
        for block in _FENCE.finditer(markdown):
            yield change(markdown[end : block.start()])
            yield block[0]
            end = block.end()
        yield change(markdown[end:])

    return "".join(parts())
