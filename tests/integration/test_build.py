"""How the native parts were built: from packages, not from a CUDA toolkit that the machine happens to have."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def commands() -> list[str]:
    """Return the compiler's command lines of this checkout's build."""
    found = sorted(ROOT.glob("build/torch-*/compile_commands.json"))
    if not found:
        pytest.skip("the native parts were not built in this checkout")
    return [entry["command"] for path in found for entry in json.loads(path.read_text())]


def test_headers_come_from_packages_or_the_project(commands: list[str]) -> None:
    """Every include folder is the project's, Python's or a package's: none is a system CUDA toolkit."""
    folders = {folder for line in commands for folder in re.findall(r"-(?:I|isystem) ?(\S+)", line)}
    foreign = [folder for folder in folders if "cuda" in folder.lower() and "site-packages" not in folder]
    assert [folder for folder in foreign if not Path(folder).is_relative_to(ROOT)] == []


def test_only_the_hook_library_sees_torch(commands: list[str]) -> None:
    """Torch's headers are on the command lines of what lies in cpp/torch: the hook library, and computed values."""
    with_torch = [line for line in commands if re.search(r"site-packages/torch/include", line)]
    sources = {Path(line.split()[-1]) for line in with_torch}
    assert {path.name for path in sources if "tracehook_values" not in str(path)} == {"hook.cpp"}
    assert len(sources) > 1
