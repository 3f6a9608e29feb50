"""Variables that mean nothing: one clear line each, the default instead, and the job runs."""

import pytest
from support.processes import forked


@pytest.mark.parametrize("name", ["SYMM_REGISTER_HOK", "SYMM_REGISTER_HOOKS"])
def test_the_switch_itself_is_misspelt(name: str) -> None:
    """One line has the right name, and the hook stays off. Nothing is said if the right one is there, too, and off."""
    run = forked("import torch, tracehook; print(tracehook.status()['state'])", env={name: "1"})
    assert (run.status, run.out) == (0, "off\n"), run.output
    assert run.err == f"tracehook: {name} is not a variable of tracehook; is SYMM_REGISTER_HOOK meant?\n"
    assert forked("import torch", env={name: "1", "SYMM_REGISTER_HOOK": "0"}).err == ""


def test_complaints_are_made_once() -> None:
    """`enable()` afterwards does not repeat them."""
    code = "import torch, tracehook; tracehook.enable(); tracehook.enable()"
    run = forked(code, env={"SYMM_REGISTER_HOOK": "1", "SYMM_REGISTER_GUARD": "no"})
    assert len(run.err.splitlines()) == 1, run.output


def test_nothing_is_said_when_off() -> None:
    """With the hook off, a job that imports torch hears nothing of our variables."""
    run = forked("import torch", env={"SYMM_REGISTER_GUARD": "no", "SYMM_REGISTER_NONSENSE": "1"})
    assert (run.status, run.err) == (0, "")
