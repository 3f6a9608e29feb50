"""The golden directories: what was done to each job, and which rules the audit of its logs must then report.

A name is that of the rule which is shown, or that name, a dash and what is particular. The faults are real: a job that
does wrong, an injected fault, a core with a bug (``mutations/``), a file that was damaged. No line was written by hand.
"""

import contextlib
import gzip
import json
import lzma
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from typer.testing import CliRunner

from tracehook.audit import rules
from tracehook.audit.finding import Finding
from tracehook.commands import app

HERE = Path(__file__).parent
DIRECTORY = HERE / "golden"
MOST_BYTES = 55_000  # of a golden directory


def cut_line(log: Path) -> None:
    """A copy that was cut halfway, as `head -c` does."""
    data = log.read_bytes()
    log.write_bytes(data[: data.rindex(b"\n", 0, len(data) * 2 // 3) + 50])


def cut_packed(log: Path) -> None:
    """Packed, and the copy of that was cut."""
    packed = gzip.compress(log.read_bytes(), mtime=0)
    log.with_suffix(".jsonl.gz").write_bytes(packed[: len(packed) // 2])
    log.unlink()


def bad_block(log: Path) -> None:
    """A block of the disk that has something else in it."""
    data = bytearray(log.read_bytes())
    start = len(data) // 1024 * 512
    data[start : start + 512] = bytes(range(256)) * 2
    log.write_bytes(data)


@dataclass(frozen=True)
class Golden:
    """One directory. `rules`: all that are reported, that of the first finding first."""

    name: str
    cause: str
    job: str
    rules: Sequence[str]
    ranks: int = 2
    env: Mapping[str, str] = field(default_factory=dict)
    faults: str = ""
    hook: bool = True  # False: the job itself switches it on
    torchrun: bool = False
    until: str = ""  # seconds and a signal: launch_and_end.py starts the ranks, and ends them so
    policy: str = ""  # a module beside the jobs, installed as a policy of that name
    hang: float = 0  # --hang-timeout
    mutation: str = ""  # a file of mutations/, without .patch
    broken: Sequence[str] = ()  # rules of NCCL that the emulation then names
    damage: Mapping[int, Callable[[Path], None]] = field(default_factory=dict)  # to the log of that rank

    @property
    def path(self) -> Path:
        """Where it lies."""
        return DIRECTORY / self.name


def _symmetric(name: str, case: str, *rules: str, cause: str, **more: object) -> Golden:
    return Golden(name, cause, f"symmetric_cases.py {case}", rules, **more)  # type: ignore[arg-type]


def _planted(name: str, fault: str, *rules: str, cause: str, **more: object) -> Golden:
    more = {"ranks": 4, "until": "4 SIGTERM"} | more
    return Golden(name, cause, f"planted.py {fault}", rules, **more)  # type: ignore[arg-type]


NEW = {"TRACEHOOK_EMU_NCCL_VERSION": "23007"}

# fmt: off
GOLDENS: tuple[Golden, ...] = (
    Golden("clean", "nothing", "clean.py", (), torchrun=True, env={"SYMM_REGISTER_CHECK": "1"}),

    # --- what a job does, or what happens to it ---
    Golden("no-end", "kill -9 of rank 1 right after an allocation; rank 0 misses it, aborts and ends",
           "faults.py killed", ("no-end",)),
    Golden("ended-by-exception", "rank 2 raises RuntimeError", "faults.py raises", ("ended-by-exception",), ranks=4),
    Golden("interrupted", "Ctrl-C on all ranks", "faults.py interrupted", ("interrupted",), ranks=4),
    Golden("exit-status", "rank 1 calls sys.exit(3)", "faults.py exits sys.exit", ("exit-status",)),
    Golden("exit-status-os-exit", "rank 1 calls os._exit(3)", "faults.py exits os._exit", ("exit-status",)),
    Golden("thread-exception", "a thread of rank 1 raises ValueError", "faults.py raises_in_thread",
           ("thread-exception",)),
    Golden("left-at-end", "dist.destroy_process_group() is not called", "faults.py not_destroyed", ("left-at-end",)),
    Golden("ended-before-graphs", "destroy_process_group() while a CUDA graph lives", "graph_ends.py kept",
           ("ended-before-graphs",), broken=("C8",)),
    Golden("registrations-uneven", "tracehook.disable() on the last of three ranks", "uneven.py one",
           ("registrations-uneven", "switched-off"), ranks=3),
    Golden("switched-off", "tracehook.disable(), and enable() again", "faults.py switched_off", ("switched-off",)),
    Golden("group-incomplete", "rank 1 makes two groups in the opposite order", "faults.py groups_in_another_order",
           ("group-incomplete",), ranks=3),
    Golden("missing-ranks", "the last of three ranks has no hook",
           "faults.py left_out", ("missing-ranks",), ranks=3, hook=False),
    Golden("versions-differ", "rank 1 of three has another PYTORCH_CUDA_ALLOC_CONF",
           "faults.py other_settings", ("versions-differ",), ranks=3),
    Golden("surroundings-differ", "the host of rank 1 has another driver, and rank 2 raises", "faults.py other_driver",
           ("ended-by-exception", "surroundings-differ"), ranks=4),
    Golden("lost-events", "a burst of allocations of rank 1, a small ring, and no time for the log's thread",
           "faults.py burst", ("lost-events",), hook=False),
    Golden("clock-jumped", "the clock of rank 1 is set ahead by an hour", "faults.py clock",
           ("exit-status", "clock-jumped")),
    Golden("log-stopped", "the log of rank 1 cannot grow any more, and rank 1 goes on to its end",
           "faults.py full_disk", ("log-stopped",)),
    Golden("hook-stands-aside", "torch's own hook is on as well", "plain.py", ("hook-stands-aside",),
           env={"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1"}, broken=("C4",)),
    Golden("hook-stands-aside-expandable", "expandable segments", "plain.py", ("hook-stands-aside",),
           env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    Golden("policy-failed", "the policy raises KeyError", "symmetric_failures.py policy",
           ("policy-failed",), policy="first_come"),
    Golden("pool-limit", "SYMM_REGISTER_POOL_LIMIT", "symmetric_failures.py limit",
           ("pool-limit",), env={"SYMM_REGISTER_POOL_LIMIT": "100MiB"}),
    Golden("registration-failed", "NCCL refuses the third registration of rank 1", "plain.py",
           ("registration-failed",), faults="ncclCommRegister:fail@3=1#rank1"),
    Golden("registered-in-vain", "torch's own hook registers memory of cudaMalloc", "registered_calls.py",
           ("retired-while-registered", "hook-stands-aside", "registered-in-vain"),
           env={"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1"}),
    Golden("unmapped-while-registered", "torch's own hook registers memory that sleeps", "sleeps.py compile 1 0 0",
           ("unmapped-while-registered", "hook-stands-aside", "registered-in-vain", "retired-while-registered"),
           env={"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1"}, broken=("C4", "L4")),
    Golden("registration-without-effect", "a communicator without symmetric memory", "symmetric_failures.py no_support",
           ("registration-without-effect",), env={"TRACEHOOK_EMU_WINDOWS": "null"}),
    Golden("agreement-failed", "NCCL refuses a window on all ranks", "symmetric_failures.py failing",
           ("registration-failed", "agreement-failed"), faults="ncclCommWindowRegister:fail@1=3"),
    Golden("stalled", "NCCL refuses a window on rank 0, so rank 1 waits in NCCL",
           "symmetric_failures.py failing_group",
           ("registration-failed", "stalled", "agreement-timeout", "ended-by-exception"), broken=("W1",),
           faults="ncclCommWindowRegister:fail@1=3#rank0",
           env={"TRACEHOOK_EMU_WINDOW_TIMEOUT": "6"}),
    Golden("torn-line", "the copy of rank 1's log was cut", "splits.py", ("no-end", "torn-line"), damage={1: cut_line}),
    Golden("damaged-file", "a bad block in one log, the packed other one was cut", "splits.py",
           ("damaged-file", "lost-events", "no-end", "torn-line"), damage={0: bad_block, 1: cut_packed}),

    # --- ranks that come apart over symmetric memory ---
    _symmetric("agreement-mismatch", "unequal_sizes", "agreement-mismatch",
               cause="one scope allocates another size on each rank"),
    Golden("agreement-mismatch-of-a-group", "one scope of the second of two groups allocates another size on each rank",
           "named_groups.py sizes", ("agreement-mismatch",), ranks=4),
    Golden("agreement-timeout-of-a-group", "the last of four ranks does not come to a scope of its group of two",
           "named_groups.py late", ("agreement-timeout",), ranks=4),
    _symmetric("placement-refused", "swapped_equal", "placement-refused",
               cause="two equal tensors are allocated in opposite order, and one is reduced"),
    _symmetric("placement-overrun", "overrun", "placement-overrun",
               cause="a tensor that ends outside of its window is reduced"),
    _symmetric("placement-differs", "swapped_unseen", "placement-differs", "placement-digest-differs",
               env={"SYMM_REGISTER_GUARD": "off"},
               broken=("W16",), cause="the same, and nobody compares"),
    Golden("placement-digest-differs", "two tensors were used alike; then rank 1 reduces the other one",
           "unguarded.py swapped_later", ("placement-digest-differs",), broken=("W16",)),
    _symmetric("agreement-mismatch-places", "swapped_when_known", "agreement-mismatch", "placement-digest-differs",
               broken=("W16",), cause="the same, and then tracehook.sync()"),
    Golden("window-order", "rank 2 allocates in another order, with the agreement taken away",
           "unguarded.py order", ("window-order",), ranks=4, env=NEW),
    Golden("window-order-sizes", "rank 1 allocates more, with the agreement taken away",
           "unguarded.py sizes", ("window-order",), env=NEW),
    Golden("stalled-unguarded", "the last of three ranks does not come to a scope, with the agreement taken away",
           "unguarded.py number", ("stalled", "registration-failed", "ended-by-exception"), ranks=3,
           broken=("C4", "W1"), env=NEW | {"TRACEHOOK_EMU_WINDOW_TIMEOUT": "6"}),
    Golden("window-under-device-communicator", "the program ends a window of its own before its device communicator",
           "held_windows.py dropped", ("window-under-device-communicator",), broken=("W19",)),
    Golden("registered-while-capturing", "a scope inside a capture registers, with the guard taken away",
           "unguarded.py capture", ("registered-while-capturing",), env=NEW),

    # --- who is to blame for a hang, or a crash ---
    _planted("calls-differ", "operation 2 3", "calls-differ", "ended-by-exception", "ended-by-others", broken=("M1",),
             cause="rank 2 makes a broadcast instead of an all_reduce"),
    _planted("rank-missing-skipped", "skip 5 3", "rank-missing", "ended-by-others", ranks=8,
             cause="rank 5 skips an all_reduce of its TP group"),
    _planted("rank-missing-order", "order 1 3", "rank-missing", "ended-by-others",
             cause="rank 1 calls two groups in the opposite order"),
    _planted("rank-missing-receive", "receive 6 3", "rank-missing", "ended-by-others", ranks=8,
             cause="rank 6 does not receive what rank 2 sends"),
    _planted("rank-missing-computes", "compute 3 2", "rank-missing", "ended-by-others",
             cause="rank 3 computes for ever"),
    _planted("ended-by-others", "interrupt 0 0", "ended-by-others", cause="a scheduler ends a job that is well"),
    _planted("ended-by-exception-of-one-rank", "exception 2 3", "ended-by-exception", "ended-by-others",
             cause="rank 2 raises RuntimeError"),
    _planted("agreement-timeout-skipped", "scope 1 3", "agreement-timeout", "agreement-mismatch", "ended-by-exception",
             "ended-by-others", cause="rank 1 skips a scope of its TP group"),
    _planted("rank-failed-fault", "segfault 1 3", "rank-failed", "ended-by-others", cause="rank 1 reads address 0"),
    _planted("rank-failed-killed", "killed 3 2", "rank-failed", "ended-by-others", "no-end",
             cause="rank 3 gets SIGKILL, as from a kernel that is out of memory"),

    # --- what a rehearsal itself says ---
    Golden("rule-broken", "a communicator is destroyed while memory is registered with it", "breaks_a_rule.py",
           ("rule-broken",), ranks=1, broken=("C4",)),
    _planted("ranks-hung", "skip 1 3", "rank-missing", "ranks-hung", "no-end",
             until="60 SIGTERM", hang=3, cause="rank 1 skips an all_reduce of its TP group; the rehearsal ends it"),

    # --- peers that map each other's memory ---
    Golden("peer-mapping-left", "the program ends without closing its PeerGroup", "sharing.py left",
           ("peer-mapping-left",)),
    Golden("peer-timeout", "rank 1 does not come to an exchange", "sharing.py late", ("peer-timeout",)),
    Golden("peer-mapped-after-free", "an owner does not hold what it has shared", "sharing.py careless",
           ("peer-mapped-after-free",), broken=("I1",)),
    Golden("peer-mapped-twice", "an importer does not know what it has mapped", "sharing.py forgetful",
           ("peer-mapped-twice", "peer-mapping-left")),

    # --- tracehook's core with one bug ---
    Golden("freed-while-registered", "a free does not deregister", "segments.py come_and_go",
           ("freed-while-registered", "retired-while-registered"), mutation="free-without-deregistering",
           broken=("C4", "L4")),
    Golden("freed-while-registered-window", "the bank gives memory back that has one window", "segments.py pooled",
           ("freed-while-registered",), mutation="window-forgotten-by-the-bank", broken=("W17",)),
    Golden("registered-twice", "disable() forgets what is registered", "segments.py switched",
           ("registered-twice", "switched-off", "retired-while-registered"), mutation="suspend-forgets",
           broken=("C4",)),
    Golden("registered-elsewhere", "every communicator gets the segments of all devices", "segments.py elsewhere",
           ("registered-elsewhere",), mutation="devices-mixed", broken=("L3",)),
    Golden("deregistered-unknown", "disable() does not forget what it has deregistered", "segments.py switched",
           ("deregistered-unknown", "registration-failed", "switched-off"), mutation="handles-stay", broken=("L2",)),
    Golden("event-after-death", "an abort is only logged", "segments.py aborted",
           ("event-after-death", "registration-failed"), mutation="abort-only-logged", broken=("C5",)),
    Golden("registered-after-free", "a segment that waits for its communicator is freed, and waits on",
           "meanwhile.py freed", ("registered-after-free", "registration-failed"), ranks=1,
           env={"TORCH_NCCL_USE_COMM_NONBLOCKING": "1"},
           faults="ncclCommInitRankConfig:in_progress@1=1500ms", mutation="free-leaves-the-queue", broken=("L3",)),
    Golden("never-registered", "every third segment is not registered", "segments.py kept",
           ("never-registered",), mutation="every-third-not-queued"),
    Golden("address-used-twice", "frees of large segments are not seen", "segments.py come_and_go",
           ("ledger-differs", "address-used-twice"), mutation="large-frees-not-seen", broken=("L4",)),
    Golden("ledger-differs", "the second of three segments is not adopted", "segments.py adopted", ("ledger-differs",),
           hook=False, env={"SYMM_REGISTER_CHECK": "1"}, mutation="second-not-adopted"),
    Golden("retired-while-registered", "a destroy leaves all but the first registration", "segments.py kept",
           ("retired-while-registered",), mutation="retire-leaves-one", broken=("C4",)),
)
# fmt: on

# Those whose first finding shows no divergence: all ranks did so, or it is about a log or a setting.
# fmt: off
ALIKE = {
    "address-used-twice", "agreement-failed", "damaged-file", "deregistered-unknown", "ended-before-graphs",
    "ended-by-others", "log-stopped",
    "event-after-death", "freed-while-registered", "freed-while-registered-window", "hook-stands-aside",
    "hook-stands-aside-expandable", "interrupted", "ledger-differs", "left-at-end", "lost-events", "missing-ranks",
    "never-registered", "peer-mapped-after-free", "peer-mapped-twice", "peer-mapping-left", "placement-overrun",
    "policy-failed", "pool-limit", "registered-after-free", "registered-elsewhere", "registered-in-vain",
    "registered-twice",
    "registered-while-capturing", "registration-without-effect", "retired-while-registered", "rule-broken",
    "switched-off",
    "unmapped-while-registered", "window-under-device-communicator",
}
# fmt: on


def unpack(golden: Path, target: Path) -> Path:
    """Copy a golden directory to audit it, with its rings unpacked (of a ring's 7 MiB nearly all is zero)."""
    target = target / golden.name
    shutil.copytree(golden, target, ignore=shutil.ignore_patterns("expected.*"))
    for ring in target.glob("*.ring.xz"):
        ring.with_suffix("").write_bytes(lzma.decompress(ring.read_bytes()))
        ring.unlink()
    return target


def audit(directory: Path) -> tuple[str, str]:
    """Return what the command says of a directory, with its exit status; and the findings, one a line."""
    text, report = text_and_report(directory)
    return text, lines_of(report) if report else ""


def lines_of(report: Mapping[str, Any]) -> str:
    """Return the findings of an object that --json gave, one a line, with what is the same on each machine."""
    rows = [[one[key] for key in ("rule", "severity", "ranks", "comm")] for one in report["findings"]]
    return "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n"


def text_and_report(directory: Path) -> tuple[str, dict[str, Any]]:
    """Return what the command says of a directory, with its exit status; and the object that --json gives, if any."""
    found: list[list[Finding]] = []

    def check_once(*given: Any) -> list[Finding]:
        """Ask the rules for the first of two commands only: that takes most of their time."""
        if not found:
            found.append(check(*given))
        return found[0]

    check = rules.check
    with contextlib.chdir(directory.parent), mock.patch.object(rules, "check", check_once):
        told = CliRunner().invoke(app, ["audit", directory.name, "--max-findings", "5"], catch_exceptions=False)
        facts = CliRunner().invoke(app, ["audit", directory.name, "--json"], catch_exceptions=False)
    assert told.exit_code == facts.exit_code, facts.output
    # Lines are not padded, so that an editor that strips blanks changes nothing.
    lines = [line.rstrip() for line in told.output.splitlines()]
    text = "\n".join([*lines, f"exit status {told.exit_code}", ""])
    return text, json.loads(facts.output) if told.exit_code in (0, 1) else {}
