"""Ranks as threads of one process: a free of one does not wait for a call in which another waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.rehearsal import Rehearsal, rehearse

AUTO, ALL = ({"SYMM_REGISTER_LOCAL": value} for value in ("auto", "all"))


def assert_through(run: Rehearsal) -> None:
    """Assert that both ranks came to their end, and the memory went before."""
    run.assert_good()
    assert (run.facts()["done"], run.facts()["freed"]) == ([True, True], [[0, 0]]), run.output
    assert run.events("deregister.stalled") == []


@pytest.mark.parametrize("env", [AUTO, ALL, ALL | {"SYMM_REGISTER_MEMORY": "vmm"}], ids=["auto", "all", "vmm"])
def test_a_free_beside_a_split_of_another_rank(tmp_path: Path, env: dict[str, str]) -> None:
    """The free undoes the registrations itself, while the split waits for the thread that frees."""
    run = rehearse("threads_of_ranks.py", "ncclCommSplit", devices=2, log=tmp_path, env=env)
    assert_through(run)
    assert len(run.events("deregister.local")) == len(run.events("register.local")) == (0 if env is AUTO else 2)


@pytest.mark.parametrize("env", [AUTO, ALL | {"SYMM_REGISTER_LOCAL_MIN": "1GiB"}], ids=["auto", "small"])
def test_a_free_of_what_is_not_registered_waits_for_no_call(tmp_path: Path, env: dict[str, str]) -> None:
    """A window registration waits for all ranks inside the gate; a segment without a registration goes meanwhile."""
    assert_through(rehearse("threads_of_ranks.py", "ncclCommWindowRegister", devices=2, log=tmp_path, env=env))
