"""Libraries of a program share torch's memory by legacy IPC handles, with SYMM_REGISTER_MEMORY=vmm as without."""

import shutil
import subprocess
from pathlib import Path

import pytest
from support.audits import CLEAN, Audit
from support.rehearsal import JOBS, rehearse

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")


@pytest.mark.parametrize("env", [{}, {"SYMM_REGISTER_MEMORY": "vmm"}], ids=str)
def test_a_library_shares_memory_of_torch_by_legacy_handles(tmp_path: Path, env: dict[str, str]) -> None:
    """As vLLM's custom all-reduce does with the buffers of its graphs: CUDA itself refuses them for vmm memory."""
    library = tmp_path / "liblegacy_handles.so"
    source = JOBS / "legacy_handles.cpp"
    subprocess.run(["g++", "-std=c++17", "-shared", "-fPIC", "-o", library, source], check=True)
    run = rehearse("legacy_handles.py", str(library), ranks=2, log=tmp_path / "log", env=env).assert_good()
    for rank in range(2):
        assert run.facts(rank)["statuses"] == [0, 0, 0, 0], run.output
        assert run.facts(rank)["value"] == 2 - rank
    Audit(tmp_path / "log").expect(CLEAN)
