"""Why a process can have no symmetric memory, as tracehook.explain says it."""

from types import SimpleNamespace
from typing import Any

import pytest

from tracehook import settings
from tracehook.hook.service import Service
from tracehook.symmetric_memory import public, state

NO_NCCL = "no NCCL is loaded in this process: torch was built without it, or not imported yet"
CUDA_TENSOR: Any = SimpleNamespace(device=SimpleNamespace(type="cuda"), data_ptr=int)


def explained(monkeypatch: pytest.MonkeyPatch, service: Service) -> tuple[str, str]:
    """Return the reason code and the sentence."""
    monkeypatch.setattr(state.Switch, "host", service)
    monkeypatch.setattr(state.Switch, "memory", None)
    monkeypatch.setattr(state.Switch, "unavailable", None)
    state.make(service)
    return public.explain(CUDA_TENSOR)[1:]


@pytest.mark.parametrize(
    ("core", "expected"),
    [
        ({"nccl_missing": lambda: NO_NCCL}, ("no_nccl", NO_NCCL)),
        ({"open_bank": lambda limit: ("nccl_too_old", "NCCL 22600 has no windows")}, ("nccl_too_old", None)),  # noqa: ARG005
        ({"open_bank": lambda limit: ("unavailable", "this NCCL lacks a function")}, ("unavailable", None)),  # noqa: ARG005
        ({"attached": lambda: False}, ("unavailable", None)),
    ],
)
def test_reason_has_the_code_of_its_place(monkeypatch, core, expected):
    """The place that finds the reason gives its code; no code is guessed from the words of the sentence."""
    answers = {"attached": lambda: True, "nccl_missing": lambda: "", **core}
    made = Service(settings.from_environment()[0])
    made._core = SimpleNamespace(**answers)  # type: ignore[assignment]
    code, text = explained(monkeypatch, made)
    assert code == expected[0]
    assert text == (expected[1] or text)
