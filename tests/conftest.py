"""What all tests share: how they are spread over processes."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of one file in one process, because many of them look at one run of one job."""
    if config.getvalue("dist") != "load":
        return None  # asked for otherwise on the command line
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log)
