"""Put a package where Python finds it, as an installer does: the module, and beside it the folder with its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(
    target: Path,
    name: str,
    version: str,
    modules: Mapping[str, str],
    policies: Mapping[str, str],
    group: str = "tracehook.policies",
) -> None:
    """Install a distribution into `target`: modules (name and code), and policies (name and ``module:attribute``)."""
    metadata = target / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    points = "".join(f"{policy} = {value}\n" for policy, value in policies.items())
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{points}")
    for module, code in modules.items():
        (target / f"{module}.py").write_text(code)


def install_policy(target: Path, name: str, code: str) -> None:
    """Install a policy: the function `choose` of this code."""
    module = name.replace("-", "_")
    install(target, name, "1.0", {module: code}, {name: f"{module}:choose"})


def with_packages(target: Path, job: Path) -> Path:
    """Return a program beside `target` that runs the job as if what was installed there were installed here.

    Of a job that starts warm the interpreter, which would read PYTHONPATH, has begun already.
    """
    program = target.with_name("job.py")
    folders = [str(job.parent), str(target)]
    program.write_text(
        f"import runpy, sys\nsys.path[:0] = {folders}\nrunpy.run_path({str(job)!r}, run_name='__main__')\n"
    )
    return program
