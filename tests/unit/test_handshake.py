"""What ranks learn from each other's greetings."""

import errno
import os
from pathlib import Path

import pytest

from tracehook.agreement.handshake import RankPlace, domain, greeting, this_host


@pytest.mark.parametrize(
    ("places", "joined"),
    [
        ([("a", ""), ("a", "")], "one_host"),
        ([("a", "f"), ("a", "g")], "one_host"),
        ([("a", ""), ("b", "")], "several"),
        ([("a", "f"), ("b", "g")], "several"),
        ([("a", "f"), ("b", "")], "several"),
        ([("a", "f"), ("b", "f")], ""),  # NVLink may join them, and only NCCL knows
        ([("", ""), ("", "")], ""),
    ],
)
def test_what_joins_the_ranks(places: list[tuple[str, str]], joined: str) -> None:
    """One host; several hosts; or nobody knows, since one fabric may join the hosts."""
    assert domain([greeting(RankPlace(*each), {}) for each in places]) == joined


def test_a_host_is_what_nccl_takes_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL_HOSTID decides where it is set."""
    this_host.cache_clear()
    own = this_host()
    this_host.cache_clear()
    monkeypatch.setenv("NCCL_HOSTID", "elsewhere")
    assert (this_host(), own != "elsewhere") == ("elsewhere", True)
    this_host.cache_clear()


def test_a_boot_that_a_container_hides_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules of a container may refuse what lies below /proc/sys: then the name of the host has to do."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse)
    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.delenv("NCCL_HOSTID", raising=False)
    this_host.cache_clear()
    assert this_host() == f"{os.uname().nodename} "
    this_host.cache_clear()
