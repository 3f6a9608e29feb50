"""What the tests of the audit share."""

import shutil
from pathlib import Path

import pytest
from support.audits import GOLDEN


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Return a directory with the logs of a clean job of two ranks."""
    directory = tmp_path / "logs"
    directory.mkdir()
    for file in GOLDEN.glob("clean.rank*.jsonl"):
        shutil.copy(file, directory)
    return directory
