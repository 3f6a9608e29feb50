"""What a shared library imports and exports, read from its file; and a library of another linker."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_SECTIONS_AT = struct.Struct("<40xQ10xHH")  # the file's header: where the sections are described, their size and number
_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, alignment, entry size
_SYMBOL = struct.Struct("<IBBHQQ")  # name, binding and type, visibility, section, value, size
_HEADER = struct.Struct("<IIQQQQQQ")  # of a part: type, flags, offset, addresses, sizes, alignment
_EH_FRAME, _RELRO = 0x6474E550, 0x6474E552
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


def end_relro_inside_a_page(library: Path) -> None:
    """Give a library without RELRO one that ends with its table of calls, and its data follow on the same page.

    A linker that takes the pages of the machine for smaller than they are makes such a library.
    """
    data = bytearray(library.read_bytes())
    start, size, count = _SECTIONS_AT.unpack_from(data)
    sections = [_SECTION.unpack_from(data, start + size * index) for index in range(count)]
    names = sections[struct.unpack_from("<H", data, 0x3E)[0]][4]
    found = {bytes(data[names + one[0] : data.index(0, names + one[0])]).decode(): one for one in sections}
    first, last = found[".dynamic"], found[".got"]
    begin, end = first[3], last[3] + last[5]
    assert begin // 4096 == (end - 1) // 4096 == found[".data"][3] // 4096, "one page has all three"
    headers, headers_size, headers_count = struct.unpack_from("<32xQ14xHH", data)
    for at in range(headers, headers + headers_size * headers_count, headers_size):
        if struct.unpack_from("<I", data, at)[0] == _EH_FRAME:  # which nothing here needs
            _HEADER.pack_into(data, at, _RELRO, 4, first[4], begin, begin, end - begin, end - begin, 1)
            library.write_bytes(data)
            return
    raise AssertionError("no header to replace")
