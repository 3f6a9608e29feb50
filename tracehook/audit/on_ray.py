"""The tasks of an audit on Ray: one of this machine, or a cluster that runs."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

from tracehook.audit.limits import first_line
from tracehook.audit.split import Block, NotWhole, Read, read
from tracehook.log.lines import LogError

_LOCAL: Final = "ray"
_ADDRESS: Final = re.compile(r"(?:ray://)?(?:\[([0-9a-fA-F:.]+)\]|([\w.-]+)):(\d{1,5})")
_PATIENCE: Final = 10.0  # seconds for a cluster to take a connection; Ray itself tries for minutes
_RETRIES: Final = 2  # of a task whose worker ended
_OBJECTS: Final = 200 << 20  # bytes of memory for what lies between tasks, of a Ray of our own; more goes to its disk


@contextlib.contextmanager
def workers_on(on: str) -> Iterator[OnRay]:
    """Yield workers of a Ray that is started for it (``ray``), or of the cluster with that address.

    Raises :class:`LogError` if `on` is neither, Ray is not installed, or no cluster answers.
    """
    if on != _LOCAL and not _ADDRESS.fullmatch(on):
        raise LogError(
            f"--on {on!r}: expected ray (started here for this audit), ray://HOST:PORT (Ray's client port of a "
            "cluster), or HOST:PORT (the address of a cluster that this machine is part of)"
        )
    try:
        import ray
    except ModuleNotFoundError as problem:
        raise LogError(
            f"--on {on}: the package {problem.name} is not installed here; expected Ray: pip install 'tracehook[ray]'"
        ) from problem
    # What Ray says of workers that end would stand in the midst of what the command prints.
    with contextlib.redirect_stdout(sys.stderr):
        _connect(ray, on)
        try:
            yield OnRay(ray)
        finally:
            ray.shutdown()


def _connect(ray: Any, on: str) -> None:
    quiet = {"configure_logging": True, "logging_level": "ERROR", "log_to_driver": False}
    if on == _LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray.init(address="local", include_dashboard=False, object_store_memory=_OBJECTS, **quiet)
        except Exception as problem:  # of many kinds, Ray's own and Python's
            raise LogError(f"--on {on}: Ray could not be started here ({first_line(problem)})") from problem
        return
    found = _ADDRESS.fullmatch(on)
    assert found is not None
    try:
        socket.create_connection((found[1] or found[2], int(found[3])), _PATIENCE).close()
        ray.init(address=on, **quiet)
    except (OSError, OverflowError, ImportError, RuntimeError, ValueError) as problem:
        raise LogError(
            f"--on {on}: no Ray cluster that can be used answers there ({first_line(problem)}); expected the address "
            "that `ray start --head` printed, or ray:// with its client port (10001)"
        ) from problem


class OnRay:
    """Gives blocks to the Ray to which this process is connected. One whose worker ends is read once more."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    @property
    def count(self) -> int:
        """How many tasks can run at a time."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def read(self, blocks: Sequence[Block], task: Callable[[Block], Read] = read) -> Iterator[Read]:
        """Yield what the task says of each block, in turn."""
        remote = self._ray.remote(num_cpus=1, max_retries=_RETRIES)(task)
        started = [remote.remote(block) for block in blocks]
        while started:
            # What was taken goes from Ray's memory at once.
            yield self._result(blocks[-len(started)], started.pop(0))

    def _result(self, block: Block, started: Any) -> Read:
        failed = self._ray.exceptions
        try:
            return cast(Read, self._ray.get(started))
        except failed.RayTaskError as problem:
            cause = problem.cause
            if isinstance(cause, LogError):
                raise cause from None
            if isinstance(cause, ModuleNotFoundError):
                raise LogError(
                    f"a worker has no package {cause.name}; expected the same tracehook[audit] on all machines"
                ) from None
            raise
        except failed.RayError as problem:
            raise NotWhole(
                f"the audit is not whole, so it concludes nothing: nobody judged {block.about}, because the worker "
                f"that did so ended, and again when that was repeated ({type(problem).__name__}); look at the memory "
                "and the logs of Ray's machines, and start the audit again"
            ) from problem
