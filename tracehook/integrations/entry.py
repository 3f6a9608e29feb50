"""What frameworks call at their start (entry points in pyproject.toml), in each of their processes.

With the variable unset nothing else is imported, and nothing is replaced.
"""

from __future__ import annotations

import os

_seen: set[str] = set()  # frameworks that tracehook serves in this process


def _is_chosen(framework: str) -> bool:
    """Return whether names of the framework are to be replaced now; True only once."""
    if not os.environ.get("SYMM_REGISTER_INTEGRATIONS") or framework in _seen:
        return False
    from tracehook.integrations import choice

    if choice.is_chosen(framework):
        _seen.add(framework)
    return framework in _seen


def sglang() -> None:
    """Let tracehook make SGLang's symmetric memory. SGLang's ``load_plugins`` calls it."""
    if _is_chosen("sglang"):
        from tracehook.integrations.sglang import install

        install()


def vllm() -> None:
    """Let tracehook make vLLM's symmetric memory. vLLM's ``load_general_plugins`` calls it."""
    if _is_chosen("vllm"):
        from tracehook.integrations.vllm import install

        install()


def megatron() -> None:
    """Let tracehook make Megatron's symmetric memory. tracehook calls it when it starts: Megatron has no plug-ins."""
    if _is_chosen("megatron"):
        from tracehook.integrations.megatron import install

        install()
