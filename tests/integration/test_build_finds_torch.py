"""Which torch the build finds, and that it fails where there is none to hook."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import SCRIPTS, run
from support.rehearsal import ROOT
from support.venvs import make_venv

LOCATE = ROOT / "tracehook" / "cpp" / "torch" / "locate.py"


def located(python: Path | str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the script that finds torch for the build."""
    return subprocess.run([python, LOCATE], env=os.environ | env, capture_output=True, text=True, check=False)


def test_the_build_sees_torch_from_isolation(tmp_path: Path) -> None:
    """Pip hides the packages of the environment by a PYTHONPATH of its own; torch's headers are found all the same."""
    hide = "import sys; sys.path[:] = [path for path in sys.path if 'site-packages' not in path]"
    (tmp_path / "sitecustomize.py").write_text(hide)
    isolated = located(sys.executable, PYTHONPATH=str(tmp_path))
    assert (isolated.returncode, isolated.stderr) == (0, "")
    assert isolated.stdout == located(sys.executable).stdout != ""


def test_a_build_without_torch_fails(tmp_path: Path) -> None:
    """CMake stops, with one line: what was seen, what was expected, and what to do."""
    pybind11 = pytest.importorskip("pybind11")
    python = make_venv(tmp_path / "venv", [])
    line = ["cmake", "-S", str(ROOT), "-B", str(tmp_path / "build"), f"-DPython_EXECUTABLE={python}", "-DSKBUILD=ON"]
    if not (SCRIPTS / "cmake").exists():
        pytest.skip("there is no cmake beside this interpreter")
    env = {"PATH": f"{SCRIPTS}:{os.environ['PATH']}"}
    ran = run([*line, f"-Dpybind11_DIR={pybind11.get_cmake_dir()}", "-G", "Ninja"], env)
    assert ran.status == 1, ran.output
    (told,) = ran.lines("no hook library can be compiled")
    assert f"{tmp_path / 'venv'} has no torch; expected a CUDA build of torch there. Install one first." in told
    assert "pip install --config-settings=wheel.cmake=false '.[audit]'" in told


def test_a_torch_without_cuda_is_named(tmp_path: Path) -> None:
    """Nor is there anything to compile for such a torch."""
    site = tmp_path / "packages"
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "__init__.py").touch()
    found = located(make_venv(tmp_path / "venv", [str(site)]))
    assert found.returncode == 1
    assert found.stderr == (
        f"tracehook: no hook library can be compiled: {site / 'torch'} is a torch without CUDA; expected a CUDA build "
        "of torch there. Install one first\n"
    )
