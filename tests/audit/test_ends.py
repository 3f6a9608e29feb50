"""What the audit says of how processes ended, from logs whose last lines were changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.audits import CLEAN, FINDINGS, GOLDEN, Audit, change, log_of

from audit.goldens import unpack

BOOM = {"exception": "ValueError", "message": "boom"}


def end(log: Path, *events: dict[str, Any]) -> None:
    """Give a log these last lines instead of its own."""

    def replaced(lines: list[bytes]) -> list[bytes]:
        last = json.loads(lines[-1])
        number = json.loads(lines[-2])["seq"]
        made = [{"t_ns": last["t_ns"], "seq": number + place, **event} for place, event in enumerate(events, 1)]
        return [*lines[:-1], *(json.dumps(one).encode() + b"\n" for one in made)]

    change(log, replaced)


def test_after_an_exception_a_process_may_never_end(logs: Path) -> None:
    """It hung in its exit handlers, or was killed there: the exception is named, and not the missing end."""
    end(log_of(logs), {"event": "python.exception", **BOOM})
    done = Audit(logs).expect(FINDINGS, "rank 1 ended by ValueError: boom; after that it never came to its end")
    assert "no-end" not in done.out


def test_an_exception_that_was_no_end_is_none(logs: Path) -> None:
    """The last line knows better than the hook."""
    end(log_of(logs), {"event": "python.exception", **BOOM}, {"event": "trace.end", "how": "exit"})
    Audit(logs).expect(CLEAN)


def test_an_exception_whose_text_was_lost_is_found(logs: Path) -> None:
    """The ring of a process that was killed has the event alone."""
    end(log_of(logs), {"event": "python.exception"})
    Audit(logs).expect(FINDINGS, "rank 1 ended by an exception")


def test_os_exit_with_success_is_an_end(logs: Path) -> None:
    """Nothing was left, so there is nothing to say."""
    end(log_of(logs), {"event": "python.exit", "status": 0})
    Audit(logs).expect(CLEAN)


def test_a_hook_that_calls_os_exit_hides_no_exception(logs: Path) -> None:
    """As programs do that want no hanging end."""
    end(log_of(logs), {"event": "python.exception", **BOOM}, {"event": "python.exit", "status": 1})
    done = Audit(logs).expect(FINDINGS, "rank 1 ended by ValueError: boom. What")
    assert "exit-status" not in done.out


@pytest.mark.parametrize(
    ("last", "is_left"),
    [
        ({"event": "trace.end", "how": "exit"}, True),
        ({"event": "trace.end", "how": "exit", "status": 0}, True),
        ({"event": "python.exit", "status": 0}, True),
        ({"event": "python.exit", "status": 1}, False),
        ({"event": "trace.end", "how": "exit", "status": 2}, False),
        ({"event": "trace.end", "how": "exception", **BOOM}, False),
    ],
)
def test_what_a_failure_left_is_its_consequence(tmp_path: Path, last: dict[str, Any], is_left: bool) -> None:
    """Registrations that are left are a finding of their own only where the program meant to end."""
    logs = unpack(GOLDEN.with_name("left-at-end"), tmp_path)
    for rank in (0, 1):
        end(log_of(logs, rank), last)
    assert ("left-at-end" in Audit(logs, "--json").rules()) == is_left


def test_json_has_each_finding_and_its_advice(logs: Path) -> None:
    """The rows fold what ranks did alike; a program that reads gets both ranks, and what comes first as people do."""
    for rank in (0, 1):
        end(log_of(logs, rank), {"event": "trace.end", "how": "exception", "exception": "KeyboardInterrupt"})
    told = json.loads(Audit(logs, "--json").expect(FINDINGS).out)
    assert [one["ranks"] for one in told["findings"]] in ([[0], [1]], [[1], [0]])
    assert all(one["advice"].endswith(".") for one in told["findings"])
    assert told["first_finding"]["ranks"] == [0, 1]
    assert told["first_divergence"] is None
    assert told["sentence"].startswith("First finding, at ")
    assert told["sentence"].endswith(told["first_finding"]["advice"])


def test_a_rank_that_is_asked_for_is_shown_with_those_that_did_alike(logs: Path) -> None:
    """Else it would look like a divergence of that rank."""
    for rank in (0, 1):
        end(log_of(logs, rank), {"event": "trace.end", "how": "exit", "status": 3})
    Audit(logs, "--rank", "1").expect(FINDINGS, "First finding", "ranks 0, 1 ended with exit status 3")
