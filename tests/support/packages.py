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
