"""Which of several findings comes first, where a rehearsal saw the hang or refused the call, or where ranks wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tracehook.audit import semaphores
from tracehook.audit.called import Callers
from tracehook.audit.finding import UNDECIDED, Finding
from tracehook.audit.waits import waits

_SECOND = 1_000_000_000


def after_hang(job: Callers, seen: Iterable[Finding], concluded: Sequence[Finding]) -> list[Finding]:
    """Return what we conclude of ranks that wait, not before the hang that a rehearsal itself saw: it knew more.

    But of signals of peers it knows nothing: a finding stays if it first names a rank that waits for one, or owes it.
    And if the first rank that it names waits, too, or has no name, another culprit, or that nobody can tell, stays.
    """
    hangs = [each for each in seen if each.rule == "ranks-hung" and each.ns is not None]
    unnamed = {each.comm for each in hangs if not each.ranks}  # it knew nothing of a rank that did not come there
    began = min((each.ns or 0 for each in hangs), default=0)
    waited = waits(job) if began else []
    of_signals = {each.rank for wait in waited if semaphores.is_unsent(wait) for each in (wait.process, *wait.missing)}
    waiting = {wait.process.rank for wait in waited}
    named_first = [each.ranks[0] for each in hangs if each.ns == began and each.ranks and each.ranks[0] in waiting]

    def placed(found: Finding) -> Finding:
        is_other = named_first and (found.ranks[:1] != tuple(named_first[:1]) or UNDECIDED in found.message)
        if began and found.ranks and (is_other or found.comm in unnamed or found.ranks[0] in of_signals):
            return replace(found, ns=min(found.ns or began, began - 1))
        return replace(found, ns=max(found.ns, began + 1)) if found.ns is not None else found

    return [placed(each) if each.rule == "rank-missing" else each for each in concluded]


def after_refusals(seen: Iterable[Finding]) -> list[Finding]:
    """Return what was seen; ranks hang after a call of that communicator that a rehearsal refused at the same time."""
    out = list(seen)
    refused = {each.comm: each.ns for each in out if each.rule == "rule-broken" and each.ns is not None}

    def placed(found: Finding) -> Finding:
        broken_ns = refused.get(found.comm)
        if found.rule != "ranks-hung" or found.ns is None or broken_ns is None:
            return found
        return replace(found, ns=broken_ns + 1) if 0 <= broken_ns - found.ns < _SECOND else found

    return [placed(each) for each in out]


def before_refusals(seen: Iterable[Finding], concluded: Sequence[Finding]) -> list[Finding]:
    """Return what we conclude; that calls differ comes before what a rehearsal says of each rank whose call it refused.

    It knows whose call is the odd one, or that nobody can tell.
    """
    refused = [each for each in seen if each.rule == "rule-broken" and each.ns is not None]

    def placed(found: Finding) -> Finding:
        moments = [each.ns - 1 for each in refused if each.comm == found.comm and each.ns is not None]
        return replace(found, ns=min([*moments, *([found.ns] if found.ns is not None else [])], default=None))

    return [placed(each) if each.rule == "calls-differ" else each for each in concluded]


def who_waits_last(job: Callers, found: Sequence[Finding]) -> list[Finding]:
    """Return the findings; a rank whose host is in a function of torch.distributed comes after those that are in none.

    It may wait there for one of these.
    """
    missing = [each for each in found if each.rule == "rank-missing" and each.ns is not None]
    culprits = {each.process for each in missing} if len(missing) > 1 else set()  # only their stacks are read
    in_function = {process.number for process in job.processes if process.number in culprits and process.group_call}
    latest = max((each.ns or 0 for each in missing if each.process not in in_function), default=0)

    def placed(each: Finding) -> Finding:
        return replace(each, ns=max(each.ns or 0, latest + 1)) if latest and each.process in in_function else each

    return [placed(each) if each in missing else each for each in found]
