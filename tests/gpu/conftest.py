"""Marks and skips the tests on real devices."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, and skip it where torch sees no CUDA device."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="torch sees no CUDA device here"))


@pytest.fixture
def ranks() -> int:
    """Return the number of ranks of a job: one per device, at least two."""
    count = int(torch.cuda.device_count())
    if count < 2:
        pytest.skip(f"needs two CUDA devices, torch sees {count}")
    return count
