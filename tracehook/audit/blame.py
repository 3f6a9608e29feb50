"""Who is to blame for a hang or a crash: the rank that ended, stopped calling, or did something else than the others.

Three questions, of the calls that :mod:`called` has:

* Did all ranks of a communicator make the same call under each number? (``calls-differ``)
* Who ended by itself: an exception, a fault, or without a word? Who was ended by a launcher or an operator is a
  consequence. (``rank-failed``)
* Whoever waits in a call waits for the ranks that have not come to it. Who is at the end of that chain, and waits for
  nobody? Where the chain is a circle, whose order of calls is another one than that of the ranks that run the same
  program? (``rank-missing``)
"""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from tracehook.audit import semaphores
from tracehook.audit.called import HOST, MADE, Caller, Callers, Member, Wait, by_process
from tracehook.audit.chains import ends
from tracehook.audit.devices import stopped
from tracehook.audit.finding import OUTSIDE, UNDECIDED, Finding
from tracehook.audit.leavers import WentOn, beside, leavers, missed, went_on
from tracehook.audit.programs import by_number, culprits, in_its_place, is_behind
from tracehook.audit.semaphores import named
from tracehook.audit.waits import given_up, waits
from tracehook.audit.words import is_same_call, kind, since, told_call, told_wait, whom
from tracehook.log.calls import Call
from tracehook.log.text import in_bytes, ordinal

# Severity, sentence, advice and divergence of each, as the files of rules/ have them.
RULES = {
    "calls-differ": (
        "error",
        "The ranks of a communicator made different calls under one number.",
        "Compare what the named ranks do before that call, because all ranks of a group have to make the same calls; "
        "if the job had TORCH_FR_DUMP_TEMP_FILE, `tracehook audit DIR --flight-recorder DUMPS` prints the line of each "
        "call.",
        "always",
    ),
    "rank-failed": (
        "error",
        "A fault ended a process, or the process ended and its log does not say why.",
        "Read this rank's stderr; if it says nothing, look in `dmesg` whether the kernel killed it for want of memory.",
        "unless all",
    ),
    "rank-missing": (
        "error",
        "Ranks wait in a call to which another rank has not come.",
        "Look at what the named rank did instead: `tracehook stacks DIR` prints its line while it runs, "
        "--flight-recorder the stacks of its calls.",
        "always",
    ),
}
_OWN_ENDS = ("ended-by-exception", "exit-status")
_SECOND = 1_000_000_000
_STILL = 5  # seconds
_MARGIN = 20  # calls
_MOST_TOLD = 6  # waits of a circle
_LOOK_AT_KERNELS = (
    "Look at the kernels before that call: `tracehook stacks DIR` prints the program's lines while it runs."
)
_COMPARE = (
    "Compare what these ranks did before: `tracehook stacks DIR` prints their lines while they run, --flight-recorder "
    "the stacks of their calls."
)


def with_last_call(job: Callers, found: Sequence[Finding]) -> list[Finding]:
    """Return the findings. If exactly one rank ended by itself, its finding also names the last call that it made."""
    alone = [finding for finding in found if finding.rule in _OWN_ENDS]
    if len(alone) != 1:
        return list(found)
    process = next((process for process in job.processes if process.number == alone[0].process), None)
    if process is not None and process.uncounted:
        told = replace(alone[0], message=f"{alone[0].message}; {_last_is_unknown(process)}")
        return [told if finding is alone[0] else finding for finding in found]
    step = process.last_step if process is not None else None
    if process is None or step is None:
        return list(found)
    message = f"{alone[0].message}; its last call was the {told_call(job, step)}"
    told = replace(alone[0], message=message, comm=step.comm, calls=((process.number, step.call.order),))
    return [told if finding is alone[0] else finding for finding in found]


def _last_is_unknown(process: Caller) -> str:
    many = f"{process.uncounted} of its communicators" if process.uncounted > 1 else "one of its communicators"
    return f"its last call is not known, because the calls of {many} were not counted"


def findings(job: Callers) -> list[Finding]:
    """Return who is to blame."""
    waited = waits(job)
    found = [*_differences(job, by_process(waited)), *_failures(job), *_left(job)]
    return [*found, *_missing(job, found, waited)] or _stopped(job)


def given_up_findings(job: Callers) -> list[Finding]:
    """Return who was to blame when a program aborted communicators in which it waited, and went on."""
    waited = [wait for wait in given_up(job) if _waited_ns(wait) >= _SECOND]
    return [
        replace(finding, message=f"{finding.message}. The program then aborted the communicator and went on")
        for finding in _missing(job, (), waited)
    ]


def _waited_ns(wait: Wait) -> int:
    moved, aborted = wait.process.parts[wait.comm].moved_ns, wait.process.aborted_ns.get(wait.comm, 0)
    return aborted - moved - wait.process.shift_ns


# --- did all ranks make the same calls? ---


def _differences(job: Callers, waiting: Mapping[int, Sequence[Wait]]) -> list[Finding]:
    out = []
    for comm, members in job.comparable():
        number = _first_difference(members)
        if number is None:
            continue
        is_first = number > max((member.calls.last[0].number for member in members.values()), default=0) or number == 0
        made = {place: member.call(number) for place, member in members.items()}
        texts = {place: job.described(comm, call) for place, call in made.items() if call is not None and is_first}
        odd = _odd_places(job, members, texts, waiting)
        order = sorted(texts, key=lambda place: (place not in odd, place))
        alike = [(text, [members[place].process for place in its]) for text, its in groupby(order, texts.__getitem__)]
        about = "; ".join(f"{named(its)} made {text}" for text, its in alike) or "that call is too long ago to name it"
        if len(order) > 1 and not odd:
            about += f"; {UNDECIDED}"
        elif 2 * len(odd) < len(order):
            wrong = named([members[place].process for place in order[: len(odd)]])
            about += f"; {wrong} {'differs' if len(odd) == 1 else 'differ'} from the others"
        out.append(
            _finding(
                "calls-differ",
                f"{job.group(comm)}: the ranks made different calls, first the {ordinal(number + 1)}: {about}",
                [members[place].process for place in order] or [member.process for member in members.values()],
                comm,
                _before_ends([member.process for member in members.values()]),
                [(members[place].process, made[place]) for place in order],
            )
        )
    return out


def _before_ends(processes: Sequence[Caller]) -> int | None:
    """Return when they last called; before their ends, because when they called is known to a tenth of a second."""
    moved = [process.moved_ns for process in processes if process.moved_ns is not None]
    ended = [process.ended_ns - 1 for process in processes if process.ended_ns is not None]
    return min(moved + ended, default=None)


def _first_difference(members: Mapping[int, Member]) -> int | None:
    """Return the number of the first collective whose digest differs, as far as all remember; None if none does."""
    if not all(member.calls.last for member in members.values()):
        return None
    remembered = max(member.calls.last[0].number for member in members.values())
    common = min(member.calls.collectives for member in members.values())
    return next((number for number in range(remembered, common) if len(set(_digests_of(members, number))) > 1), None)


def _digests_of(members: Mapping[int, Member], number: int) -> list[int]:
    calls = (member.call(number) for member in members.values())
    return [call.digest for call in calls if call is not None]


def _odd_places(
    job: Callers, members: Mapping[int, Member], texts: Mapping[int, str], waiting: Mapping[int, Sequence[Wait]]
) -> list[int]:
    """Return the ranks in the communicator whose call is not that of most; or, of two, whose program is another one."""
    counts = Counter(texts.values())
    most = max(counts.values(), default=0)
    if list(counts.values()).count(most) == 1:
        return [place for place, text in texts.items() if counts[text] < most]
    odd = culprits(job, [members[place].process for place in texts], waiting, is_hang=False)
    if len(odd) == len(texts):
        return []
    return [place for place in texts if members[place].process in odd]


# --- who ended by itself? ---


def _failures(job: Callers) -> list[Finding]:
    failed = [process for process in job.processes if _failure_of(process, job)]
    if not failed:
        return []
    first = min(failed, key=lambda process: process.ended_ns if process.ended_ns is not None else 1 << 62)
    same = [process for process in failed if _failure_of(process, job) == _failure_of(first, job)]
    if len(same) == len(job.processes) > 1:
        return [
            _finding("rank-failed", f"{named(same)} {_failure_of(first, job)}, all alike", same, None, first.ended_ns)
        ]
    return [_told_failure(job, process) for process in sorted(failed, key=lambda each: each.ended_ns or 0)]


def _told_failure(job: Callers, process: Caller) -> Finding:
    last = process.last_step
    after = f", after its {told_call(job, last)}" if last else ""
    if process.uncounted:
        after = f"; {_last_is_unknown(process)}"
    message = f"{process.name} {_failure_of(process, job)}{after}"
    steps = [(process, last.call)] if last else []
    return _finding("rank-failed", message, [process], last.comm if last else None, process.ended_ns, steps)


def _failure_of(process: Caller, job: Callers) -> str:
    """Say how a process failed by itself; empty if it did not."""
    if process.was_ended or process.ended or process.how:
        return ""  # the rules say how Python ended
    if process.signal:
        return f"ended by signal {process.signal} ({_signal_name(process.signal)})"
    others = [other for other in job.processes if other is not process]
    if not process.parts or process.runs:
        return ""  # its ring is not here, or is older than these counts
    if not any(other.was_ended or other.ended or other.how for other in others) or job.was_killed_later(process):
        return ""  # all were killed, or all still run, or whoever ended others ended it in the end
    how = "ended without a word: SIGKILL (the kernel's, where memory ran out), _exit"
    if seconds := _stood_still(process, max((other.ended_ns or 0 for other in others), default=0)):
        return f"{how}, a log that could not be written, or a stop (SIGSTOP): the others lived {seconds:.0f} s longer"
    return f"{how}, or a log that could not be written"


def _stood_still(process: Caller, end_ns: int) -> float:
    """Return for how many seconds no thread of Python ran in it before; 0: not for long, or it is not known."""
    seconds = (end_ns - process.alive_ns) / _SECOND if process.alive_ns is not None else 0
    return seconds if seconds >= _STILL else 0


def _left(job: Callers) -> list[Finding]:
    if (left := leavers(job) or missed(job)) is None:
        return []
    found = _finding("rank-missing", left.told, [*left.blamed, *left.others], None, left.ns)
    return [replace(found, advice=left.advice or found.advice)]


def _stopped(job: Callers) -> list[Finding]:
    if (found := stopped(job)) is None:
        return []
    steps, told = found
    first, step = steps[0]
    calls = [(process, each.call) for process, each in steps]
    one = _finding("rank-missing", told, [process for process, _ in steps], step.comm, first.moved_ns, calls)
    return [replace(one, advice=_LOOK_AT_KERNELS, divergence="never")]


# --- who did not come? ---


def _missing(job: Callers, found: Sequence[Finding], waited: Sequence[Wait]) -> list[Finding]:
    """Return who is at the end of the chains of ranks that wait."""
    waiting = by_process(waited)
    many = _many_nowhere(job, waiting)
    waited_for: dict[int, list[Wait]] = defaultdict(list)
    for wait in waited:
        for missing in wait.missing:
            waited_for[missing.number].append(wait)
    blamed = {rank for each in found for rank in each.ranks}
    over = (p.ended_ns for p in job.processes if p.failed or p.was_interrupted)
    failed_ns = min((ns for ns in over if ns is not None), default=None)
    out = []
    of_number = {process.number: process for process in job.processes}
    done: set[int] = set()
    for few in went_on(job, waited):
        if not _had_just_begun(few.its, failed_ns):
            out.append(_told_few(few))
            done |= {process.number for process in (*few.gone, *(wait.process for wait in few.its))}
    for end in ends(by_number(waiting)):
        circle = [of_number[number] for number in end if number not in done]
        if not circle:
            continue
        if len(circle) == 1:
            circle = in_its_place(job, circle[0], waiting) or circle
        suspects = circle if len(circle) == 1 else culprits(job, circle, waiting)
        # Who ended by itself is named for that; that others wait for it follows.
        if any(process.failed or (process.rank is not None and process.rank in blamed) for process in suspects):
            continue
        its = [wait for process in suspects for wait in waited_for[process.number]]
        if _had_just_begun(its, failed_ns):
            continue
        is_one_of_some = len(suspects) == 1 and its and all(wait.some for wait in its)
        is_one_of_many = suspects[0].number in many
        may_be = its[0].missing if is_one_of_some or is_one_of_many else ()
        idle = [each for each in may_be if each.number in many or (is_one_of_some and each.number not in waiting)]
        if len(suspects) == 1 and not idle:
            idle = beside(job, suspects[0], its, waiting)
        if len(idle) > 1 or is_one_of_many:
            done |= {each.number for each in idle}
            out.append(_told_some(job, idle, its))
        elif len(suspects) == 1 and _is_too_far_apart(suspects[0], its, waiting):
            out.append(_too_far_apart(job, suspects[0], its))
        elif len(suspects) == 1:
            told = _told_missing(job, suspects[0], its, waiting.get(suspects[0].number))
            out.append(_doubted(told, _behind(job, suspects[0], waiting.get(suspects[0].number, ()))))
        else:
            out.append(_told_circle(job, suspects, waiting))
    return out


def _many_nowhere(job: Callers, waiting: Mapping[int, Sequence[Wait]]) -> set[int]:
    """Return who waits nowhere, if most ranks do: they may be at the end of a program that the few go on with."""
    stand = waiting.keys() | (job.standing or set())
    found = {each.number for each in job.processes if each.number not in stand and not each.ended and not each.how}
    return found if len(found) > max(1, len(waiting)) else set()


def _told_few(few: WentOn) -> Finding:
    steps, first = [(wait.process, wait.step.call) for wait in few.its], few.its[0]
    ranks = [*(wait.process for wait in few.its), *few.gone]
    found = _finding("rank-missing", few.told, ranks, first.comm, first.process.moved_ns, steps)
    return found if few.is_sure else replace(found, advice=_COMPARE)


def _is_too_far_apart(slow: Caller, its: Sequence[Wait], waiting: Mapping[int, Sequence[Wait]]) -> bool:
    """Whether nobody stands still for a rank, and ranks that ran ahead forgot calls: there it may wait itself."""
    all_waits = [wait for each in waiting.values() for wait in each]
    if any(wait.is_last and (wait.step.kind != MADE or not is_behind(slow, [wait])) for wait in its):
        return False
    return any(
        wait.process.remembered_since
        and wait.step.call.order - wait.process.remembered_since < _MARGIN
        and not wait.is_last
        for wait in all_waits
    )


def _too_far_apart(job: Callers, slow: Caller, its: Sequence[Wait]) -> Finding:
    """Tell that nobody who remembers the calls to which this rank came waits for it: it may wait in one of them."""
    ahead = sorted({wait.process for wait in its}, key=lambda each: each.rank or 0)
    message = (
        f"{job.group(its[0].comm)}: {slow.name} came to {its[0].made} {kind(its[0])}, and {named(ahead)}, which went "
        f"on, no longer {'remembers' if len(ahead) == 1 else 'remember'} the calls since: the logs cannot tell who "
        f"waits for whom{since(slow)}"
    )
    return replace(_finding("rank-missing", message, [], its[0].comm, slow.moved_ns), advice=_COMPARE)


def _behind(job: Callers, suspect: Caller, its: Sequence[Wait]) -> list[Caller]:
    """Return of whose devices nobody knows where they stand, if the suspect may wait for one of them. `its`: waits."""
    others = [each for each in job.processes if each is not suspect]
    behind = [each for each in others if each.is_far_behind]
    chain = {suspect.number, *(each.number for wait in its for each in wait.missing)}
    return behind if chain & (job.standing or set()) or len(behind) == len(others) else []


def _doubted(found: Finding, far_behind: Sequence[Caller]) -> Finding:
    """Name those, too, of whose devices nobody knows where they stand: the one that was found may wait for them."""
    if not far_behind:
        return found
    whose = f"{'device' if len(far_behind) == 1 else 'devices'} of {named(far_behind)}"
    stand = "stands" if len(far_behind) == 1 else "stand"
    message = f"{found.message}; nobody knows where the {whose} {stand}, many calls behind, and {UNDECIDED}"
    ranks = dict.fromkeys((*found.ranks, *(each.rank for each in far_behind if each.rank is not None)))
    return replace(found, message=message, ranks=tuple(ranks), advice=_COMPARE)


def _had_just_begun(its: Sequence[Wait], failed_ns: int | None) -> bool:
    """Tell whether these waits were an ordinary moment of a job that ended then: a rank failed, or all were killed."""
    return all(_is_moment(wait.process, failed_ns) for wait in its)


def _is_moment(process: Caller, failed_ns: int | None) -> bool:
    if process.moved_ns is None:
        return failed_ns is not None
    end = process.ended_ns if failed_ns is None else failed_ns
    return end is not None and end - process.moved_ns < _SECOND


def _told_circle(job: Callers, circle: Sequence[Caller], waiting: Mapping[int, Sequence[Wait]]) -> Finding:
    """Name every rank of a circle: any of them may have made a wrong call."""
    all_waits = [wait for process in circle for wait in waiting[process.number]]
    told = "; ".join(told_wait(job, wait) for wait in all_waits[:_MOST_TOLD])
    more = f"; and {len(all_waits) - _MOST_TOLD} more wait" if len(all_waits) > _MOST_TOLD else ""
    message = f"{named(circle)} wait for each other, and {UNDECIDED}: {told}{more}"
    if semaphores.are_all(all_waits):
        message = (
            f"{named(circle)} wait for each other in PeerGroup.wait, for signals that nobody sent: "
            f"{semaphores.told_circle(all_waits)}"
        )
    steps = [(wait.process, wait.step.call) for wait in all_waits]
    moved = [process.moved_ns for process in circle if process.moved_ns is not None]
    found = _finding("rank-missing", message, circle, all_waits[0].comm, min(moved, default=None), steps)
    return _advised(replace(found, advice=_COMPARE), all_waits)


def _told_some(job: Callers, idle: Sequence[Caller], its: Sequence[Wait]) -> Finding:
    """Name every rank that may have to come to that call, and waits nowhere, and those who wait there."""
    first, ranks = its[0], sorted({wait.process for wait in its}, key=lambda each: each.rank or 0)
    where = "making of a communicator" if first.step.kind == MADE else told_call(job, first.step)
    message = (
        f"{job.group(first.comm)}: {named(ranks)} {'waits' if len(ranks) == 1 else 'wait'} for {whom(first)} in the "
        f"{where}{since(first.process)}; {named(idle)} made no other call, and {UNDECIDED}"
    )
    steps = [(wait.process, wait.step.call) for wait in its]
    found = _finding("rank-missing", message, [*idle, *ranks], first.comm, first.process.moved_ns, steps)
    return replace(found, advice=_COMPARE)


def _told_missing(job: Callers, culprit: Caller, its: Sequence[Wait], waits_of_it: Sequence[Wait] | None) -> Finding:
    own = waits_of_it[0] if waits_of_it else None
    # Of several groups the smallest says most, if it is known that the culprit is in it.
    first = min(
        its,
        key=lambda wait: (wait.some, job.size_of(wait.comm), wait.process.moved_ns or 0, wait.process.rank or 0),
    )
    ranks = sorted({wait.process for wait in its if wait.comm == first.comm}, key=lambda each: each.rank or 0)
    same = {each.process for each in its if is_same_call(each, first)}
    here, elsewhere = [each for each in ranks if each in same], [each for each in ranks if each not in same]
    wait = "waits" if len(here) == 1 else "wait"
    if first.step.is_semaphore:
        told = f"{first.process.name} waits in {semaphores.told(first)}"
    elif first.step.kind in (MADE, HOST):
        where = "the making of a communicator"
        if first.step.kind == HOST:
            where = f"an {first.step.function}" if first.comm else first.step.function
        told = f"{named(here)} {wait} in {where}, and {culprit.name} did not come there"
    else:
        what = f"{job.described(first.comm, first.step.call)} ({in_bytes(first.step.call.nbytes)})"
        told = f"{culprit.name} came to {first.made} {kind(first)}, {named(here)} {wait} in the "
        told += f"{ordinal(first.number + 1)}, {what}"
    if elsewhere:
        waits_too = "waits for it in another call" if len(elsewhere) == 1 else "wait for it in other calls"
        told += f", and {named(elsewhere)} {waits_too}"
    message = (
        f"{job.group(first.comm)}: {told}{first.comm and since(first.process)}; {_doing(job, culprit, own, first)}"
    )
    last = own.step if own is not None else culprit.last_step
    steps = [(culprit, last.call if last else None)]
    steps += [(wait.process, wait.step.call) for wait in its if wait.comm == first.comm]
    moved_ns = culprit.moved_ns or first.process.moved_ns
    return _advised(_finding("rank-missing", message, [culprit, *ranks], first.comm, moved_ns, steps), its)


def _advised(found: Finding, its: Sequence[Wait]) -> Finding:
    """Return a finding with what to do about a signal that was not sent, if it is about one."""
    if semaphores.readers(its):
        return replace(found, advice=semaphores.ADVICE)
    return replace(found, advice=semaphores.UNSENT) if semaphores.are_all(its) else found


def _doing(job: Callers, culprit: Caller, own: Wait | None, other: Wait) -> str:
    """Say what the culprit does instead of coming to where another one waits."""
    if own is not None:
        if own.step.is_semaphore:
            return f"{culprit.name} waits in {semaphores.told(own)}"
        return f"{culprit.name} went on to its {told_call(job, own.step)}, and waits there for {whom(own)}"
    if culprit.ended and culprit.how != "exception":
        return f"{culprit.name} ended in order without it"
    if culprit.how == "os._exit":
        return f"{culprit.name} ended by os._exit, or exit of C, without it"
    quiet = since(culprit)
    if culprit.uncounted:
        return f"{culprit.name} made no other call that was counted{quiet}; {_last_is_unknown(culprit)}"
    if ahead := [step for step in culprit.in_order if step.call.is_ahead]:
        return (
            f"{culprit.name} made its {told_call(job, ahead[0])}, but its device has not come to it{quiet}: "
            "something that the program gave to the device before does not end"
        )
    last = culprit.last_step
    after = f" after its {ordinal(last.call.number + 1)} call of {job.group(last.comm)}" if last else ""
    said = culprit.last_said(other.comm, other.process.moved_ns)
    does = OUTSIDE
    others_ns = max((other.ended_ns or 0 for other in job.processes), default=0)
    if culprit.signal and _stood_still(culprit, culprit.ended_ns or 0):
        does = "no thread of Python ran, because code in C kept the GIL, or somebody had stopped the process"
    elif not (culprit.signal or culprit.how) and (seconds := _stood_still(culprit, others_ns)):
        does = "something killed it (SIGKILL) or stopped it (SIGSTOP), or code in C kept the GIL: another rank lived "
        does += f"{seconds:.0f} s longer"
        if culprit.runs:
            does = f"no thread of Python ran for {seconds:.0f} s: it was stopped (SIGSTOP), or C code keeps the GIL"
    return f"{culprit.name} made no other call{after}{quiet}: {does}{said}"


def _finding(
    rule: str,
    message: str,
    processes: Sequence[Caller],
    comm: str | None,
    ns: int | None,
    steps: Iterable[tuple[Caller, Call | None]] = (),
) -> Finding:
    ranks = tuple(dict.fromkeys(process.rank for process in processes if process.rank is not None))
    severity, _, advice, divergence = RULES[rule]
    first = processes[0].number if processes else None
    calls = tuple((process.number, call.order) for process, call in steps if call and call.is_of_nccl)
    return Finding(rule, severity, message, ranks, comm, first, ns, None, advice, divergence, calls)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
