"""What frameworks call at their start (entry points in pyproject.toml), in each of their processes.

With the variable unset nothing else is imported, and nothing is replaced.
"""

from __future__ import annotations

import importlib
import os

_seen: set[str] = set()  # frameworks that tracehook serves in this process


def _serve(framework: str) -> None:
    """Replace names of the framework, by the module of this room that is called like it, if it is chosen; once."""
    if not os.environ.get("SYMM_REGISTER_INTEGRATIONS") or framework in _seen:
        return
    from tracehook.integrations import choice

    if choice.is_chosen(framework):
        _seen.add(framework)
        importlib.import_module(f"tracehook.integrations.{framework}").install()


def sglang() -> None:
    """Let tracehook make SGLang's symmetric memory. SGLang's ``load_plugins`` calls it."""
    _serve("sglang")


def vllm() -> None:
    """Let tracehook make vLLM's symmetric memory. vLLM's ``load_general_plugins`` calls it."""
    _serve("vllm")


def megatron() -> None:
    """Let tracehook make Megatron's symmetric memory. tracehook calls it when it starts: Megatron has no plug-ins."""
    _serve("megatron")
