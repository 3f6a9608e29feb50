"""Run vLLM, SGLang and a trainer with tracehook off and on, and print a table: tokens or losses, times, memory, audit.

Each row is one way to run the engine. The first row of a group is its baseline: the same engine without tracehook.
All rows of a group run once in every round, so that a slow minute of the machine meets all of them.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import tarfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
HOOK = {"SYMM_REGISTER_HOOK": "1"}
VMM = {**HOOK, "SYMM_REGISTER_MEMORY": "vmm"}
PLUGIN = {**HOOK, "SYMM_REGISTER_INTEGRATIONS": "vllm"}
TORCHS = {"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1"}
SCRIPTS = {"sglang": "sglang_engine.py", "trainer": "hf_trainer.py"}  # by how a group's name begins; else vLLM's
# Groups of rows: (name, options of the engine, variables).
GROUPS: dict[str, list[tuple[str, str, dict[str, str]]]] = {
    "custom": [("off", "", {}), ("on", "", HOOK)],
    # vLLM's own all-reduce asks cudaIpcGetMemHandle for buffers of captured graphs: CUDA refuses, tracehook gives one.
    "custom_vmm": [("on, vmm", "", VMM), ("on, vmm, eager", "--eager", VMM)],
    "nccl": [("off", "--no-custom", {}), ("on", "--no-custom", HOOK), ("on, vmm", "--no-custom", VMM)],
    "symm": [
        ("off, vLLM's windows", "--no-custom --symm", {}),
        ("on, vLLM's windows", "--no-custom --symm", HOOK),
        ("on, plug-in", "--no-custom --symm", PLUGIN),
    ],
    "sleep": [
        ("off", "--sleep", {}),
        ("on", "--sleep", HOOK),
    ],
    "sleep_symm": [
        ("off, vLLM's windows", "--sleep --symm --no-custom", {}),
        ("on, plug-in", "--sleep --symm --no-custom", PLUGIN),
        ("on, plug-in, vmm", "--sleep --symm --no-custom", {**PLUGIN, "SYMM_REGISTER_MEMORY": "vmm"}),
    ],
    "sleep2": [("off", "--sleep --level 2", {}), ("on", "--sleep --level 2", HOOK)],
    "core": [("off", "--core-process", {}), ("on", "--core-process", HOOK)],
    "killed": [("on", "--core-process --kill-after 1.0", HOOK)],
    "sglang_custom": [("off", "", {}), ("on", "", HOOK), ("on, vmm", "", VMM)],
    "sglang_nccl": [("off", "--no-custom", {}), ("on", "--no-custom", HOOK), ("on, vmm", "--no-custom", VMM)],
    "sglang_symm": [
        ("off, SGLang's windows", "--no-custom --symm", {}),
        ("on, SGLang's windows", "--no-custom --symm", HOOK),
        ("on, plug-in", "--no-custom --symm", {**HOOK, "SYMM_REGISTER_INTEGRATIONS": "sglang"}),
    ],
    "sglang_sleep": [("off", "--sleep", {}), ("on", "--sleep", HOOK)],
    "sglang_pieces": [("off", "--no-custom --piecewise", {}), ("on", "--no-custom --piecewise", HOOK)],
    "sglang_killed": [("on", "--kill-after 1.0", HOOK)],
    "trainer": [("off", "", {}), ("torch's own hook", "", TORCHS), ("on", "", HOOK), ("on, vmm", "", VMM)],
}
NOTES = (
    "Failed to compile NCCL",
    "tracehook: vllm:",
    "all-reduce backends",
    "Using V2 Model Runner",
    "FlashAttention version",
)


@dataclass
class Row:
    """One way to run the engine, and what its runs gave."""

    group: str
    name: str
    options: list[str]
    variables: dict[str, str]
    runs: list[dict[str, object]] = field(default_factory=list)
    audits: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Return a name for files."""
        return f"{self.group}-{''.join(c if c.isalnum() else '_' for c in self.name)}"


def linkable_nccl(out: Path) -> Path:
    """Return a folder with libnccl.so, which vLLM links its allocator of windows to: torch brings only .so.2."""
    folder = out / "link"
    folder.mkdir(parents=True, exist_ok=True)
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.origin is not None and not (folder / "libnccl.so").is_symlink():
        (folder / "libnccl.so").symlink_to(Path(torch.origin).parents[1] / "nvidia" / "nccl" / "lib" / "libnccl.so.2")
    return folder


def smoke(given: argparse.Namespace, lane: str) -> None:
    """Run the engine once, which fills caches; if its newer model runner fails, choose the older one for all."""
    for version in ("", "0"):
        if version:
            os.environ["VLLM_USE_V2_MODEL_RUNNER"] = version
        row = Row("smoke", f"runner {version or 'default'}", ["--repeats", "1"], {})
        if engine(row, 0, lane, given)["status"] == 0:
            return


def engine(row: Row, turn: int, lane: str, given: argparse.Namespace) -> dict[str, object]:
    """Run the engine once under a time limit, and return its result, or how it ended."""
    at = given.out / f"{row.label}.{turn}"
    at.mkdir(parents=True, exist_ok=True)
    variables = {
        **os.environ,
        **row.variables,
        "CUDA_VISIBLE_DEVICES": lane,
        "SYMM_REGISTER_LOG": str(at / "log"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    if "SYMM_REGISTER_HOOK" not in row.variables:
        del variables["SYMM_REGISTER_LOG"]
    variables["LIBRARY_PATH"] = str(linkable_nccl(given.out))
    scratch = Path(f"/tmp/lane{lane.replace(',', '')}")  # short: names of sockets begin with it
    scratch.mkdir(exist_ok=True)
    (scratch / "lock").unlink(missing_ok=True)  # of a compilation that was killed: the next one would wait for ever
    variables["TMPDIR"] = str(scratch)
    ranks = str(len(lane.split(",")))
    script = next((script for name, script in SCRIPTS.items() if row.group.startswith(name)), "vllm_engine.py")
    if script == "hf_trainer.py":
        start, options = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks], row.options
    else:
        start, options = [], [*row.options, "--tp", ranks]
    command = [*given.python.split(), *start, str(HERE / script), *options, *given.engine.split()]
    begin = time.monotonic()
    with (at / "output").open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=variables, start_new_session=True
        )
        try:
            status: object = process.wait(given.limit)
        except subprocess.TimeoutExpired:
            status = f"time limit of {given.limit} s"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what a killed engine left
        process.wait()
    text = (at / "output").read_text(errors="replace")
    found = [line.removeprefix("RESULT ") for line in text.splitlines() if line.startswith("RESULT ")]
    result: dict[str, object] = json.loads(found[-1]) if found else {}
    result |= {"status": status, "wall": round(time.monotonic() - begin, 1)}
    result["notes"] = sorted({note for note in NOTES if note in text})
    if not found:
        wrong = [line for line in text.splitlines() if "Error" in line]
        result["error"] = (wrong or text.splitlines() or ["no output"])[-1][-300:]
    print(
        f"{row.label}.{turn} on {lane}: status {status}, {result['wall']} s, start {result.get('start_seconds')} s "
        f"{result.get('error', '')}",
        flush=True,
    )
    if status != 0 and not row.group.endswith("killed"):
        wrong = [line[:240] for line in text.splitlines() if "Error" in line or "error" in line]
        print("\n".join(f"    {line}" for line in [*wrong[:4], "...", *text.splitlines()[-6:]]), flush=True)
    return result


def audit(row: Row, turn: int, given: argparse.Namespace) -> str:
    """Audit the log of a run, and return the last line."""
    at = given.out / f"{row.label}.{turn}"
    if not (at / "log").is_dir():
        return ""
    command = [*given.tracehook.split(), "audit", str(at / "log")]
    done = subprocess.run(command, text=True, capture_output=True, timeout=120, check=False)
    (at / "audit").write_text(done.stdout + done.stderr)
    lines = (done.stdout + done.stderr).strip().splitlines() or ["nothing"]
    return f"[{done.returncode}] {lines[-1]}"


def seconds(result: dict[str, object], batch: str) -> list[float]:
    """Return the seconds of a batch's repeats."""
    batches = result.get("batches") or {}
    return batches.get(batch, {}).get("seconds", [])  # type: ignore[attr-defined,no-any-return]


def shas(result: dict[str, object]) -> dict[str, list[str]]:
    """Return what the tokens of each batch are."""
    return {batch: each["sha"] for batch, each in (result.get("batches") or {}).items()}  # type: ignore[attr-defined]


def ratio(row: Row, base: Row, batch: str) -> str:
    """Return a row's time against the baseline: the median over rounds of the rounds' medians, with least and most."""
    pairs = [
        statistics.median(own) / statistics.median(other)
        for own, other in zip(
            (seconds(run, batch) for run in row.runs), (seconds(run, batch) for run in base.runs), strict=False
        )
        if own and other
    ]
    return f"{statistics.median(pairs):.3f} [{min(pairs):.3f} {max(pairs):.3f}]" if pairs else "-"


def noise(row: Row, batch: str) -> str:
    """Return milliseconds a token (of a trainer: a step), and how far a run's repeats spread."""
    all_of = [seconds(run, batch) for run in row.runs if seconds(run, batch)]
    if not all_of:
        return "-"
    tokens = int(row.runs[0]["options"]["tokens"])  # type: ignore[index]
    middle = statistics.median(each for run in all_of for each in run)
    spread = max((max(run) - min(run)) / statistics.median(run) for run in all_of)
    return f"{1000 * middle / tokens:.3f} ms ±{50 * spread:.0f}%"


def sleeping(row: Row) -> str:
    """Return the memory of the first device before, asleep and after each cycle, in MiB, and whether tokens held."""
    parts = []
    for run in row.runs[:1]:
        for cycle in run.get("sleep") or []:  # type: ignore[attr-defined]
            parts.append("/".join(str(max(cycle[when]) >> 20) for when in ("before", "asleep", "after")))
        expected = [sha[0] for sha in shas(run).values()]
        kept = all(set(cycle["sha"]) <= set(expected) for cycle in run.get("sleep") or [])  # type: ignore[attr-defined]
        parts.append("same tokens" if kept else "OTHER TOKENS") if parts else None
    return " ".join(parts)


def tokens(row: Row, base: Row) -> str:
    """Say whether all runs of a row gave the baseline's tokens."""
    if any("batches" not in run for run in row.runs):
        return "no tokens"
    if not base.runs or "batches" not in base.runs[0]:
        return "no baseline"
    expected = shas(base.runs[0])
    wrong = {batch for run in row.runs for batch, each in shas(run).items() if each != expected.get(batch)}
    return f"differ at {','.join(sorted(wrong))}" if wrong else "equal"


def table(rows: list[Row]) -> str:
    """Return all rows as text."""
    lines = []
    for row in rows:
        base = next(each for each in rows if each.group == row.group)
        batches = sorted({batch for run in [*row.runs, *base.runs] for batch in shas(run)}, key=int)
        what = [f"{row.group:7s}| {row.name:20s}| runs {len(row.runs)}| {tokens(row, base)}"]
        what += [f"batch {batch}: {noise(row, batch)} x{ratio(row, base, batch)}" for batch in batches]
        what += [sleeping(row)] if sleeping(row) else []
        what += [str(run["error"])[:160] for run in row.runs if "error" in run]
        what += [f"notes: {', '.join(row.runs[0]['notes'])}"] if row.runs else []  # type: ignore[arg-type]
        what += sorted(set(row.audits) - {""})
        lines.append("\n    ".join(what))
    return "\n".join(lines)


def main() -> None:
    """Run all rows in rounds, on lanes of devices, and write the table."""
    read = argparse.ArgumentParser()
    read.add_argument("--out", type=Path, default=Path("/tmp/vllm_runs"))
    read.add_argument("--groups", default="custom,nccl,symm,sleep,sleep_symm,killed,custom_vmm")
    read.add_argument("--rounds", type=int, default=2)
    read.add_argument("--lanes", default="0,1", help="devices of engines that run at the same time: 0,1;2,3")
    read.add_argument("--limit", type=float, default=90)
    read.add_argument("--budget", type=float, default=480, help="seconds after which no engine starts any more")
    read.add_argument("--smoke", action="store_true", help="first run the engine once, and choose what works")
    read.add_argument("--engine", default="", help="more options of vllm_engine.py")
    read.add_argument("--python", default=sys.executable)
    read.add_argument("--tracehook", default=f"{sys.executable} -m tracehook")
    given = read.parse_args()
    given.out = given.out.resolve()
    given.out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    rows = [
        Row(group, name, options.split(), variables)
        for group in given.groups.split(",")
        for name, options, variables in GROUPS[group]
    ]
    if given.smoke:
        smoke(given, given.lanes.split(";")[0])
    waiting: queue.Queue[tuple[int, str]] = queue.Queue()
    for turn in range(given.rounds):
        for group in given.groups.split(","):
            waiting.put((turn, group))

    def work(lane: str) -> None:
        while True:
            try:
                turn, group = waiting.get_nowait()
            except queue.Empty:
                return
            chosen = [row for row in rows if row.group == group]
            for row in chosen if turn % 2 == 0 else reversed(chosen):
                if turn > 0 and group.endswith(("killed", "sleep2", "custom_vmm")):
                    continue
                if time.monotonic() - begin > given.budget:
                    print(f"{row.label}.{turn}: no time left", flush=True)
                    continue
                row.runs.append({**engine(row, turn, lane, given), "turn": turn})

    threads = [threading.Thread(target=work, args=(lane,)) for lane in given.lanes.split(";")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for row in rows:
        row.runs.sort(key=lambda run: int(str(run["turn"])))
        if "SYMM_REGISTER_HOOK" in row.variables:
            row.audits = [audit(row, int(str(run["turn"])), given) for run in row.runs]
    (given.out / "results.json").write_text(json.dumps({f"{r.group}: {r.name}": [r.runs, r.audits] for r in rows}))
    text = table(rows)
    (given.out / "table.txt").write_text(text + "\n")
    print(text, flush=True)
    if "OUT" in os.environ:
        home = Path(os.environ["OUT"])
        for name in ("table.txt", "results.json"):
            (home / name).write_bytes((given.out / name).read_bytes())
        with tarfile.open(home / "runs.tgz", "w:gz") as archive:
            archive.add(given.out, "runs", filter=lambda each: None if each.name.endswith(".ring") else each)


if __name__ == "__main__":
    main()
