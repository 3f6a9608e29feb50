"""A tracehook without a native part, or that does not start: said in one line, and no success of a rehearsal."""

import shutil
import sys
from pathlib import Path

import pytest
from support.processes import SCRIPTS, Finished, run
from support.rehearsal import rehearse
from support.venvs import make_venv

import tracehook

NO_HOOK = 88
PACKAGES = [path for path in sys.path if path.endswith("site-packages")]
ONE_RANK = """
import os, torch, torch.distributed as dist
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
x = torch.ones(4, device="cuda:0")
dist.all_reduce(x)
print("sum", x[0].item())
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def shadowed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return an interpreter beside a program that lies in a checkout, in which nothing is built."""
    folder = tmp_path_factory.mktemp("shadowed")
    source = Path(tracehook.__file__).parent
    shutil.copytree(source, folder / "checkout" / "tracehook", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    program = folder / "checkout" / "program.py"
    program.write_text(ONE_RANK)
    return make_venv(folder / "venv", PACKAGES), program


def test_the_shadowing_folder_is_named(shadowed: tuple[Path, Path]) -> None:
    """One line on stderr names it, `import torch` works, and the program can ask."""
    python, program = shadowed
    asks = program.with_name("asks.py")
    asks.write_text("import torch, tracehook; print(torch.ones(2).sum().item(), tracehook.status()['state'])")
    ran = run([python, asks], {"SYMM_REGISTER_HOOK": "1"})
    assert (ran.status, ran.out) == (0, "2.0 off\n"), ran.output
    (line,) = ran.err.splitlines()
    assert line.startswith(f"tracehook is off: {program.parent / 'tracehook'} was imported, which has no native part")
    assert line.endswith(f"pip install --editable {program.parent}")


def test_import_torch_works_where_no_pth_file_is_read() -> None:
    """An interpreter that takes the packages by their path alone sees our entry point, not where the sources are."""
    ran = run([sys.executable, "-S", "-c", f"import sys; sys.path += {PACKAGES!r}; import torch; print(torch.ones(2))"])
    assert (ran.status, ran.out) == (0, "tensor([1., 1.])\n"), ran.output


def test_enable_names_it_too(shadowed: tuple[Path, Path]) -> None:
    """A program that asks for the hook gets the same words in an ImportError."""
    python, program = shadowed
    asks = program.with_name("enables.py")
    asks.write_text("import tracehook; tracehook.enable()")
    ran = run([python, asks])
    assert ran.status == 1
    assert ran.err.splitlines()[-1].startswith(f"ImportError: {program.parent / 'tracehook'} was imported"), ran.output


def rehearse_with_log(logs: Path, *command: str | Path, **env: str) -> Finished:
    """Run the command itself."""
    return run([SCRIPTS / "tracehook", "rehearse", "--log", logs, "--", *command], env)


def test_a_rehearsal_without_its_hook_fails(shadowed: tuple[Path, Path], tmp_path: Path) -> None:
    """The program ends well, and makes communicators of which there is no log."""
    python, program = shadowed
    ran = rehearse_with_log(tmp_path / "logs", python, program)
    assert ran.status == NO_HOOK, ran.output
    assert "sum " in ran.out
    assert len(ran.lines("tracehook is off: ")) == 1, ran.output
    assert len(ran.lines("rehearsal: the hook of --log did not start: 1 process (pid ")) == 1, ran.output


@pytest.mark.parametrize(
    ("before", "env", "status"),
    [
        ("", {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, NO_HOOK),
        ("import os; os.environ['SYMM_REGISTER_HOOK'] = '0'\n", {}, 0),
    ],
    ids=["by torch's switch for plug-ins", "by the program itself"],
)
def test_a_rehearsal_whose_hook_is_off_fails_unless_the_program_has_chosen_so(
    tmp_path: Path, before: str, env: dict[str, str], status: int
) -> None:
    """Torch's own switch keeps the hook away without a word."""
    program = tmp_path / "program.py"
    program.write_text(before + ONE_RANK)
    ran = rehearse_with_log(tmp_path / "logs", sys.executable, program, **env)
    assert ran.status == status, ran.output
    assert ("made communicators and no log" in ran.err) == (status == NO_HOOK)


def test_a_rehearsal_without_a_hook_library_fails(tmp_path: Path) -> None:
    """The log says that nothing was followed, and the exit status says so too."""
    run = rehearse("with_library.py", log=tmp_path, cold=True)
    assert run.status == NO_HOOK, run.output
    assert "tracehook is not attached to the allocator" in run.output


@pytest.mark.parametrize("command", [["true"], [sys.executable, "-c", "import torch; torch.ones(2)"]])
def test_a_command_without_communicators_needs_no_hook(tmp_path: Path, command: list[str]) -> None:
    """Its own status counts."""
    ran = rehearse_with_log(tmp_path / "logs", *command, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert ran.status == 0, ran.output
