"""docs/operations.md against the code: exit statuses, schemas, and that the recipes run as they stand there."""

import ast
import contextlib
import inspect
import json
import random
import re
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.audits import Audit
from support.processes import SCRIPTS, Finished, run
from support.rehearsal import EXAMPLES, ROOT

from tracehook import versions
from tracehook.commands import app
from tracehook.commands.printed import UNUSABLE
from tracehook.commands.started import CANNOT_RUN
from tracehook.log.reader import read_directory

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
TRACEHOOK = SCRIPTS / "tracehook"
COMMANDS = {
    command.name: sys.modules[command.callback.__module__]
    for command in app.registered_commands
    if command.name and command.callback is not None
}


def documented(command: str) -> set[int]:
    """Return the statuses that the table gives a command."""
    rows = re.findall(rf"^\| (?:`\S+`, )*`{command}`(?:, `\S+`)* \| (\d+) \| \S.* \|$", PAGE, re.MULTILINE)
    assert len(rows) == len(set(rows)), f"{command} has a status twice"
    return {int(number) for number in rows}


def in_code(module: Any) -> set[int]:
    """Return the statuses with which a command ends by itself, but 0."""
    tree = ast.parse(inspect.getsource(module))
    assigned: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            assigned.setdefault(node.targets[0].id, []).append(node.value)
    found: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in ("typer.Exit", "os._exit", "sys.exit", "SystemExit"):
            found |= {status for part in node.args for status in _values(part, module, assigned)}
        elif called in ("typer.BadParameter", "readable", "refuse", "command_of"):
            found.add(UNUSABLE)
        elif called == "cannot_run":
            found.add(CANNOT_RUN)
    return found - {0}


def _values(node: ast.expr, module: Any, assigned: dict[str, list[ast.expr]]) -> Iterator[int]:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield node.value
    elif isinstance(node, ast.IfExp):
        for part in (node.body, node.orelse):
            yield from _values(part, module, assigned)
    elif isinstance(node, ast.BinOp) and ast.unparse(node.left) == "128":  # and a signal, of those that are caught
        caught = set(re.findall(r"signal\.(SIG(?!_)\w+)", inspect.getsource(module)))
        yield from (128 + getattr(signal, name) for name in caught)
    elif isinstance(node, ast.Name) and isinstance(getattr(module, node.id, None), int):
        yield getattr(module, node.id)
    elif isinstance(node, ast.Name):
        for value in assigned.get(node.id, []):
            yield from _values(value, module, {})


@pytest.mark.parametrize("command", COMMANDS)
def test_the_table_has_the_statuses_of_a_command(command: str) -> None:
    """All with which it ends by itself, and no others."""
    assert documented(command) == in_code(COMMANDS[command])


def test_the_table_has_all_commands() -> None:
    """And no other ones; where a command takes the status of another, the table says so."""
    rows = re.findall(r"^\| (`[\w-]+`(?:, `[\w-]+`)*) \| (\d+|any other) \|", PAGE, re.MULTILINE)
    listed = [(name, status) for names, status in rows for name in re.findall(r"`([\w-]+)`", names)]
    assert {name for name, _ in listed} == set(COMMANDS) - {name for name in COMMANDS if not in_code(COMMANDS[name])}
    assert {name for name, status in listed if status == "any other"} == {"run", "rehearse"}


@pytest.mark.parametrize(
    "command",
    [("audit", "--nonsense", "x"), ("jobs", "/nowhere"), ("stacks", "/nowhere"), ("watch", "--once", "/nowhere")],
)
def test_a_status_is_as_the_table_says(command: tuple[str, ...]) -> None:
    """Of a command line that is wrong, and of a directory that is not there."""
    assert run([TRACEHOOK, *command]).status == 2


def test_the_page_links_every_schema() -> None:
    """By the name of its file, and no others."""
    linked = re.findall(r"\[(\w+\.json)\]\(\.\./(tracehook/schemas/\w+\.json)\)", PAGE)
    assert all((ROOT / path).name == name and (ROOT / path).is_file() for name, path in linked)
    assert {name for name, _ in linked} == {file.name for file in (ROOT / "tracehook" / "schemas").iterdir()}


def blocks(kind: str, heading: str) -> list[str]:
    """Return the blocks of a language under a heading."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return re.findall(rf"^```{kind}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def stub(folder: Path, name: str, text: str) -> None:
    """Put a program into a folder."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def of_path(folder: Path) -> str:
    """Return a PATH with a folder in front."""
    return f"{folder}:{SCRIPTS}:/usr/bin:/bin"


SRUN = """#!/usr/bin/env bash
[[ $1 == --ntasks-per-node=1 ]] && shift && exec "$@"
export SLURM_NTASKS=2
for rank in 0 1; do SLURM_PROCID=$rank SLURM_LOCALID=$rank "$@" & children+=($!); done
status=0
for child in "${children[@]}"; do wait "$child" || status=$?; done
exit $status
"""


def slurm_in(folder: Path) -> str:
    """Put the job of the page into a folder, with stand-ins for Slurm; return how its logs are collected."""
    script, collect = blocks("bash", "Slurm")
    (folder / "job.sh").write_text(script)
    stub(folder / "bin", "srun", SRUN)
    stub(folder / "bin", "scontrol", "#!/bin/sh\necho 127.0.0.1\n")
    return collect


def train_in(folder: Path) -> None:
    """Put a train.py into a folder."""
    shutil.copy(EXAMPLES / "train_ddp.py", folder / "train.py")


def free_port() -> str:
    """Return a port that nobody has: two runs of the tests may share a host."""
    while True:
        port = random.randrange(20_000, 32_000)  # no connection gets one of these by itself
        with contextlib.suppress(OSError), socket.socket() as asked:
            asked.bind(("127.0.0.1", port))
            return str(port)


def rehearsed(command: list[str | Path], folder: Path, **env: str) -> Finished:
    """Rehearse a command on two devices."""
    whole = {"PATH": of_path(folder / "bin")} | env
    return run([TRACEHOOK, "rehearse", "--devices", "2", "--", *command], whole, timeout=240, cwd=folder)


@pytest.mark.timeout(300)
def test_the_recipe_for_slurm_runs(tmp_path: Path) -> None:
    """The logs have the job's id, with the audit beside them: clean, but for what torch's nccl2 registers in vain."""
    collect = slurm_in(tmp_path)
    train_in(tmp_path)
    env = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "127.0.0.1", "LOGS": str(tmp_path), "MASTER_PORT": free_port()}
    done = rehearsed(["bash", "job.sh"], tmp_path, **env)
    assert done.status == 0, done.output
    logs = tmp_path / "4711.0"
    found = [log for log in read_directory(logs) if log.rank is not None]
    assert sorted((log.rank, log.begin["job"]) for log in found) == [(0, "4711"), (1, "4711")], done.output
    said = (logs / "audit.txt").read_text()
    if versions.group_of(metadata.version("torch")) == "nccl2":
        Audit.expect_only_in_vain(logs)
        assert "registered-in-vain" in said
    else:
        assert "Clean: " in said
    copied = collect.replace("/shared/logs", str(tmp_path / "shared"))
    env |= {"SYMM_REGISTER_LOG": str(logs), "PATH": of_path(tmp_path / "bin")}
    assert run(["bash", "-c", copied], env).status == 0
    assert {file.name for file in (tmp_path / "shared" / "4711").iterdir()} == {file.name for file in logs.iterdir()}


def test_the_recipe_for_slurm_keeps_the_status_of_the_ranks(tmp_path: Path) -> None:
    """Although the audit comes after them."""
    slurm_in(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit(7)\n")
    env = {"SLURM_JOB_ID": "4711", "LOGS": str(tmp_path), "PATH": of_path(tmp_path / "bin")}
    assert run(["bash", "job.sh"], env, cwd=tmp_path).status == 7


def test_the_recipe_for_kubernetes_runs(tmp_path: Path) -> None:
    """The container's command and arguments, on one host: its variables name fields and volumes that the pod has."""
    (text,) = blocks("yaml", "Kubernetes")
    spec = yaml.safe_load(text)["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    (nodes,) = [part for part in container["args"] if part.startswith("--nnodes")]
    assert int(nodes.partition("=")[2]) == spec["completions"] == spec["parallelism"]
    assert [variable["name"] for variable in container["env"]] == ["JOB_UID", "SYMM_REGISTER_JOB"]
    here = {
        "$(JOB_UID)": "5f0c",
        "/logs": str(tmp_path / "logs"),
        "--nnodes=2": "--nnodes=1",
        "--nproc-per-node=8": "--nproc-per-node=2",
        "train-0.train:29500": f"127.0.0.1:{free_port()}",
    }
    command = []
    for part in container["command"] + container["args"]:
        for name, value in here.items():
            part = part.replace(name, value)
        command.append(part)
    train_in(tmp_path)
    done = rehearsed(command, tmp_path, SYMM_REGISTER_JOB="5f0c")
    assert done.status == 0, done.output
    logs = [log for log in read_directory(tmp_path / "logs") if log.rank is not None]
    assert sorted((log.rank, log.begin["job"]) for log in logs) == [(0, "5f0c"), (1, "5f0c")], done.output


def test_the_recipe_for_ray_sets_variables(tmp_path: Path) -> None:
    """With a module in the place of Ray: the variables are tracehook's, and the id is another at each start."""
    (text,) = blocks("python", "Ray")
    (tmp_path / "ray.py").write_text("import json\ndef init(runtime_env): print(json.dumps(runtime_env))\n")
    done = run([sys.executable, "-c", text], {"PYTHONPATH": str(tmp_path)})
    variables = json.loads(done.out)["env_vars"]
    assert set(variables) == {"SYMM_REGISTER_HOOK", "SYMM_REGISTER_LOG", "SYMM_REGISTER_JOB"}
    assert re.fullmatch(r"train-\d{8}-\d{6}", variables["SYMM_REGISTER_JOB"])


@pytest.mark.parametrize(
    ("heading", "program"),
    [("SGLang", "sglang.launch_server"), ("vLLM", "vllm serve a/model --tensor-parallel-size 8")],
)
def test_the_recipe_for_a_server_starts_it(tmp_path: Path, heading: str, program: str) -> None:
    """With a program in its place: it has the variables and a job, and its status is that of the recipe."""
    (text,) = blocks("bash", heading)
    shows = '#!/usr/bin/env bash\necho "${0##*/} $*"\nenv | grep ^SYMM_REGISTER_\nexit 7\n'
    stub(tmp_path / "bin", "vllm", shows)
    stub(tmp_path / "bin", "python", shows)
    env = {"MODEL": "a/model", "LOGS": str(tmp_path / "logs"), "PATH": of_path(tmp_path / "bin")}
    done = run(["bash", "-c", text], env)
    assert done.status == 7, done.output
    assert program in done.out.splitlines()[0]
    told = dict(line.split("=", 1) for line in done.out.splitlines()[1:])
    assert told.pop("SYMM_REGISTER_JOB")
    assert told.pop("SYMM_REGISTER_LOCAL") == "all"  # of all tests
    assert told == {
        "SYMM_REGISTER_HOOK": "1",
        "SYMM_REGISTER_LOG": str(tmp_path / "logs"),
        "SYMM_REGISTER_INTEGRATIONS": heading.lower(),
    }
