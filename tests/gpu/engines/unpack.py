"""Unpack NAME from the pieces in FROM into the folder TO: `unpack.py FROM NAME TO`; a zstandard wheel lies in FROM."""

import compileall
import io
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from typing import BinaryIO


class Joined(io.RawIOBase):
    """Files one after the other."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self.now: BinaryIO | None = None

    def readable(self) -> bool:
        """Say yes."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # what zstandard and tarfile give
        """Read on, in the next file where one ends."""
        while self.now is not None or self.files:
            if self.now is None:
                self.now = self.files.pop(0).open("rb")
            if count := self.now.readinto(buffer):  # type: ignore[attr-defined]  # files have it
                return int(count)
            self.now = None
        return 0


def main() -> None:
    """Unpack, and compile the modules."""
    begin, source, name, target = time.time(), Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        (wheel,) = source.glob("zstandard-*.whl")
        zipfile.ZipFile(wheel).extractall(folder)
        sys.path.insert(0, folder)
        import zstandard

        stream = zstandard.ZstdDecompressor().stream_reader(io.BufferedReader(Joined(sorted(source.glob(f"{name}.*")))))
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            archive.extractall(target, filter="fully_trusted")
    print(f"{name}: unpacked in {time.time() - begin:.0f} s", flush=True)
    compileall.compile_dir(target, quiet=2, workers=0)
    print(f"{name}: compiled, {time.time() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
