"""A raw communicator is detached beside everything else that the service does."""

import threading
from unittest.mock import MagicMock

import pytest

from tracehook import settings
from tracehook.hook import service as module
from tracehook.hook.service import Service

PATIENCE = 20.0  # seconds


def test_status_does_not_wait_for_a_detach(monkeypatch: pytest.MonkeyPatch, background) -> None:
    """A detach may wait for a call into NCCL that hangs; whoever asks what is the matter gets an answer."""
    inside, go_on = threading.Event(), threading.Event()

    def retire(_: int) -> bool:
        inside.set()
        return go_on.wait(PATIENCE)

    monkeypatch.setattr(module, "EXTENSIONS", [])
    service = Service(settings.from_environment()[0])
    service._core = MagicMock(retire_communicator=retire)
    detach = background(service.detach_communicator, 1)
    assert inside.wait(PATIENCE)
    asked = background(service.status)
    assert asked.returned(PATIENCE / 4)
    assert not detach.returned(0)
    go_on.set()
    assert detach.result() is True
