"""Our lock and the one that torch holds while it initialises CUDA."""

from __future__ import annotations

from support.rehearsal import rehearse


def test_enabling_while_cuda_comes_up_is_no_deadlock() -> None:
    """One thread enables and another brings CUDA up, in either order of the two locks: both come through."""
    run = rehearse("slow_cuda.py", env={"SYMM_REGISTER_HOOK": "0"}, timeout=60)
    assert run.facts() == {"stuck": False, "state": "on"}, run.output
