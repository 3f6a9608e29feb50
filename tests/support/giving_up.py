"""Ranks that wait for one that does not come, where the time-out of one of them decides for all."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tracehook.agreement import rounds
from tracehook.agreement.agreement import Agreement
from tracehook.agreement.store_worker import run
from tracehook.errors import RegistrationTimeout

PATIENCE = 20.0  # seconds after which something that should have happened has not
LONG = 3 * PATIENCE  # seconds; who returns sooner has heard it from another rank


def give_up(came: Sequence[Agreement], deadline: float, position: tuple[int, ...] = ()) -> list[RegistrationTimeout]:
    """Let all compare what they want for windows; return the time-outs that they raise.

    The last comes when the others wait, and it alone has that deadline. So whom the time-out names does not depend on
    when the threads run, and the others raise because they hear of it.
    """
    *waiting, last = came

    def outcome(member: Agreement, timeout: float) -> RegistrationTimeout:
        try:
            went_on = member.compare("windows", ["a"], timeout, position)
        except RegistrationTimeout as problem:
            return problem
        raise AssertionError(f"it returned {went_on}")

    number = last.rounds + 1
    with ThreadPoolExecutor(len(came)) as pool:
        calls: list[Any] = [pool.submit(outcome, member, LONG) for member in waiting]
        _until_there(waiting, number)
        found = outcome(last, deadline)
        return [*(call.result(PATIENCE) for call in calls), found]


def _until_there(members: Sequence[Agreement], number: int) -> None:
    """Wait until the store says that these ranks have come to that round."""
    limit = time.monotonic() + PATIENCE
    awaited = {member.topology().rank for member in members}
    while awaited:
        nobodys = members[0].topology()._replace(rank=-1)
        store = members[0]._workers.store
        assert store is not None
        awaited &= set(run(rounds.missing(nobodys, number), store))
        assert time.monotonic() < limit, f"ranks {awaited} did not come"
        time.sleep(0.0005)
