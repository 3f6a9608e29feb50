"""Zero the device code of other architectures in a shared library: `thin.py ARCHITECTURE FROM TO`.

What is kept of each file of device code in it: machine code for the architecture (its "a" variant too); where there is
none, PTX for it or an older one. Everything stays at its place, and zeros compress to nothing.
"""

import struct
import sys
from pathlib import Path

from elftools.elf.elffile import ELFFile

CONTAINER = 0xBA55ED50
PTX, MACHINE = 1, 2


def entries(data: bytearray, at: int, end: int) -> list[tuple[int, int, int, int]]:
    """Return (kind, architecture, offset, bytes) of the entries of a container."""
    found = []
    while at < end:
        kind, _, header, payload = struct.unpack_from("<HHIQ", data, at)
        (architecture,) = struct.unpack_from("<I", data, at + 28)
        found.append((kind, architecture, at + header, payload))
        at += header + payload
    return found


def main() -> None:
    """Thin one library."""
    wanted, source, target = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    data = bytearray(source.read_bytes())
    kept = total = 0
    with source.open("rb") as file:
        sections = [s for s in ELFFile(file).iter_sections() if s.name in (".nv_fatbin", "__nv_relfatbin")]
        spans = [(s["sh_offset"], s["sh_offset"] + s["sh_size"]) for s in sections]
    for at, end in spans:
        while at + 16 <= end:
            magic, _, header, size = struct.unpack_from("<IHHQ", data, at)
            if magic != CONTAINER:
                at += 8
                continue
            found = entries(data, at + header, at + header + size)
            exact = any(kind == MACHINE and architecture == wanted for kind, architecture, _, _ in found)
            for kind, architecture, offset, length in found:
                total += length
                good = architecture == wanted and kind == MACHINE if exact else kind == PTX and architecture <= wanted
                if good:
                    kept += length
                else:
                    data[offset : offset + length] = bytes(length)
            at = (at + header + size + 7) & ~7
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    print(f"{source.name}: {kept} of {total} bytes of device code kept")


main()
