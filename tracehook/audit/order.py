"""Which of several findings comes first, where a rehearsal saw the hang or refused the call, or where ranks wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tracehook.audit.called import Callers
from tracehook.audit.finding import Finding

_SECOND = 1_000_000_000


def before_hangs(seen: Iterable[Finding], concluded: Sequence[Finding]) -> list[Finding]:
    """Return what was seen; the waits that a rehearsal saw come after what we conclude of them.

    It saw who waits for whom. Who is wrong, the calls before tell.
    """
    out = list(seen)
    latest = max((each.ns or 0 for each in concluded if each.rule == "rank-missing" and each.ranks), default=0)
    began = min((each.ns for each in out if each.rule == "ranks-hung" and each.ns is not None), default=0)
    later = max(0, latest + 1 - began) if latest else 0
    return [
        replace(each, ns=each.ns + later) if each.rule == "ranks-hung" and each.ns is not None else each for each in out
    ]


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
