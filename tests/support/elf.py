"""What a shared library imports and exports, read from its file."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_SECTIONS_AT = struct.Struct("<40xQ10xHH")  # the file's header: where the sections are described, their size and number
_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, alignment, entry size
_SYMBOL = struct.Struct("<IBBHQQ")  # name, binding and type, visibility, section, value, size
_DYNAMIC_SYMBOLS = 11
_UNDEFINED = 0


def imported(library: Path) -> set[str]:
    """Return the names that a 64-bit library wants others to define."""
    return {name for name, is_defined in _symbols(library) if not is_defined}


def exported(library: Path) -> set[str]:
    """Return the names that a 64-bit library defines for others."""
    return {name for name, is_defined in _symbols(library) if is_defined}


def _symbols(library: Path) -> set[tuple[str, bool]]:
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        assert data[:6] == b"\x7fELF\x02\x01", f"{library}: no 64-bit ELF file"
        start, size, count = _SECTIONS_AT.unpack_from(data)
        sections = [_SECTION.unpack_from(data, start + size * index) for index in range(count)]
        found = set()
        for section in sections:
            if section[1] != _DYNAMIC_SYMBOLS:
                continue
            names = sections[section[6]][4]
            for name, _, _, defined_in, _, _ in _SYMBOL.iter_unpack(data[section[4] : section[4] + section[5]]):
                if name:
                    text = data[names + name : data.find(b"\0", names + name)].decode()
                    found.add((text, defined_in != _UNDEFINED))
        return found
