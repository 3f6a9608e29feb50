"""What all tests share: their order, and how they are spread over processes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

# A machine that is busy with something else is no fault of a test.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

# One file is kept in one process, because many tests look at one run of one job; but not of these.
APART = (
    "emulator/test_windows.py",
    "failing/",
    "harmless/",
    "rehearsal/test_killed_often.py",
)
# What takes longest comes first, so that no process is left with it at the end; short tests that stand apart come last.
ORDER = (
    "failing/",
    "rehearsal/test_killed_often.py",
    "harmless/",
    "audit/test_any_damage.py",
    "rehearsal/test_peers.py",
    "integration/test_commands.py",
    "integration/test_activation.py",
    "rehearsal/test_lives_of_nccl2.py",
    "rehearsal/test_failure_modes.py",
    "rehearsal/test_holes_of_torch.py",
    "integration/",
    "rehearsal/",
    "audit/",
    "unit/",
    "emulator/",
)
# The smoke tests: of every kind at least one.
SMOKE = (
    "unit/test_layout.py",
    "unit/test_switching.py",
    "unit/test_settings.py",
    "unit/test_reader.py",
    "audit/test_golden.py::test_golden",
    "audit/test_golden.py::test_mutation_fits_the_sources",
    "emulator/test_windows.py::test_a_scene[right-",
    "emulator/test_growth.py",
    "rehearsal/test_devices.py",
    "rehearsal/test_ends.py::test_end_with_live_groups",
    "rehearsal/test_symmetric_explain.py",
    "rehearsal/test_warm.py::test_other_programs",
    "rehearsal/test_warm.py::test_settings_of_the_child",
    "rehearsal/test_warm.py::test_ranks_are_warm_when_torchrun_chooses_their_threads",
    "integration/test_activation.py::test_on_starts_without_cuda",
    "integration/test_commands.py::test_help",
    "integration/test_commands.py::test_broken_rule",
)


def _is_in(nodeid: str, names: tuple[str, ...]) -> bool:
    return nodeid.removeprefix("tests/").startswith(names)


def _turn(nodeid: str) -> int:
    path = nodeid.removeprefix("tests/")
    return next((turn for turn, name in enumerate(ORDER) if path.startswith(name)), len(ORDER))


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the smoke tests, and put all in order."""
    for item in items:
        if _is_in(item.nodeid, SMOKE):
            item.add_marker(pytest.mark.smoke)
    items.sort(key=lambda item: _turn(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a process one file after the other, in the order of the collection."""
    if config.getvalue("dist") != "load":
        return None  # asked for otherwise on the command line
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if _is_in(nodeid, APART) else nodeid.partition("::")[0]

    config.option.loadscopereorder = False
    return Scheduling(config, log)
