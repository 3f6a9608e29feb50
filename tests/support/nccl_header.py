"""What NCCL's headers say to C programs: functions, members, values and macros, each as a fact with a name and a text.

ncclSend                  ncclResult_t (const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)
ncclConfig_t              struct ncclConfig_v23100
ncclConfig_t[8]           const char* netName
ncclResult_t.ncclTimeout  8
NCCL_WIN_GIN_ONLY         0x04
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

# Functions of the host stand in the first one, and in one of the others what concerns device communicators.
HEADERS = ("nccl.h", "nccl_device/core.h", "nccl_device/host.h")
_ITSELF = {"NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH", "NCCL_SUFFIX", "NCCL_VERSION_CODE"}  # new in every version
_FOR_DEVICES = re.compile(r"DEVICE_INLINE|\btemplate\b|&")
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#[^\n]*", re.MULTILINE)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(NCCL_\w+)(\([^)\n]*\))?[ \t]*(.*)$", re.MULTILINE)
_BODY = re.compile(r"\b(enum|struct)\s*(\w*)\s*\{((?:[^{}]|\{[^{}]*\})*)\}\s*(\w*)\s*;")
_FUNCTION = re.compile(r"([\w\s*]+?)\b(nccl\w+)\s*\(([^()]*)\)\s*;")
_BEFORE_A_TYPE = ("NCCL_EXTERN_C", "extern", "__host__")
_LONGEST = 40  # of a macro's value that says something


def facts(folder: Path) -> dict[str, str]:
    """Return the facts of the headers in a folder."""
    found: dict[str, str] = {}
    for name in HEADERS:
        if (folder / name).exists():
            found.update(facts_of((folder / name).read_text()))
    return found


def version(folder: Path) -> str:
    """Return the version that the header in a folder is of, such as ``2.32.3``."""
    text = (folder / HEADERS[0]).read_text()
    parts = (re.search(rf"#define NCCL_{part} +(\d+)", text) for part in ("MAJOR", "MINOR", "PATCH"))
    return ".".join(part.group(1) for part in parts if part is not None)


def facts_of(text: str) -> dict[str, str]:
    """Return the facts of one header."""
    text = _COMMENT.sub("", text).replace("\\\n", " ")
    declared = _DIRECTIVE.sub("", text)
    return {
        **dict(_macros(text)),
        **{name: fact for match in _BODY.finditer(declared) for name, fact in _body(*match.groups())},
        **dict(_functions(_BODY.sub(";", declared))),
    }


def _macros(text: str) -> Iterator[tuple[str, str]]:
    for name, arguments, value in _MACRO.findall(text):
        value = " ".join(value.split())
        is_guard = name.endswith("_H_")
        if name not in _ITSELF and not is_guard:
            yield name, value if not arguments and len(value) <= _LONGEST and "{" not in value else "..."


def _body(kind: str, tag: str, body: str, name: str) -> Iterator[tuple[str, str]]:
    name = name or f"{tag}_t"  # as it is called from the version on that has a typedef
    if not name.startswith("nccl"):
        return
    if kind == "enum":
        yield from ((f"{name}.{value}", number) for value, number in _values(body))
    elif body.strip():
        yield name, f"struct {tag}".strip()
        yield from ((f"{name}[{at}]", member) for at, member in enumerate(_members(body)))


def _values(body: str) -> Iterator[tuple[str, str]]:
    following = "0"
    for one in filter(None, (part.strip() for part in body.split(","))):
        name, _, given = (part.strip() for part in one.partition("="))
        value = "".join(given.split()) or following
        following = str(int(value, 0) + 1) if re.fullmatch(r"-?\d+|0x[0-9a-f]+", value) else f"{value}+1"
        yield name, value


def _members(body: str) -> Iterator[str]:
    for declaration in filter(None, (part.strip() for part in re.sub(r"\{[^{}]*\}", "", body).split(";"))):
        first, *others = declaration.split(",")
        words, name, size = _declared(first)
        yield f"{words} {name}{size}"
        yield from (f"{words} {other.strip()}" for other in others)


def _functions(text: str) -> Iterator[tuple[str, str]]:
    for returned, name, arguments in _FUNCTION.findall(text):
        if _FOR_DEVICES.search(returned + arguments):
            continue
        types = [_declared(one.partition("=")[0])[0] for one in arguments.split(",") if one.strip() not in ("", "void")]
        words = [word for word in returned.replace("*", " * ").split() if word not in _BEFORE_A_TYPE]
        yield name, f"{' '.join(words).replace(' *', '*')} ({', '.join(types)})"


def _declared(text: str) -> tuple[str, str, str]:
    """Return type, name and size of what is declared; `T const*` as `const T*`, a constant argument as a plain one."""
    words = re.findall(r"\w+", text.partition("[")[0])
    qualifier = "const " if "const" in words and "*" in text else ""
    first, *others = (word for word in words if word != "const")
    named = " ".join([first, *others[:-1]])  # the last word is the name, where there is one
    return qualifier + named + "*" * text.count("*"), "".join(others[-1:]), "".join(re.findall(r"\[.*?\]", text))
