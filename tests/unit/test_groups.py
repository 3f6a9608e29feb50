"""What is said of groups that have no communicator to be had."""

from types import SimpleNamespace
from typing import Any

import pytest

from tracehook.hook import groups


class ProcessGroupNCCL2:
    """As in torch 2.14, where it has no `_comm_ptr`."""


class ProcessGroupGloo:
    """A backend of another kind."""


def _group(backend: Any) -> Any:
    return SimpleNamespace(group_name="7", _get_backend=lambda _: backend)


@pytest.mark.parametrize(
    ("backend", "text"),
    [(ProcessGroupNCCL2(), "a ProcessGroupNCCL2 of torch 2.14"), (ProcessGroupGloo(), "no NCCL")],
)
def test_why_there_are_no_windows(backend: object, text: str) -> None:
    """A group of NCCL whose communicator torch does not give is told apart from one without NCCL."""
    with pytest.raises(RuntimeError, match=f"group 7 has {text}"):
        groups.facts(_group(backend))


def test_a_group_without_a_backend_for_cuda() -> None:
    """Torch raises for it."""

    def without(_: object) -> object:
        raise RuntimeError("no backend for cuda")

    with pytest.raises(RuntimeError, match="group 8 has no NCCL backend"):
        groups.facts(SimpleNamespace(group_name="8", _get_backend=without))
