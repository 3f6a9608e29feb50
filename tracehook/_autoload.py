"""What `import torch` calls at its end (entry point ``torch.backends``), in every process of every job.

An exception here would make `import torch` fail, so none leaves. With the variables unset nothing else is imported.
"""

from __future__ import annotations

import os

_SWITCH = "SYMM_REGISTER_HOOK"


def autoload() -> None:
    """Compute values if this is a rehearsal, and start the service if ``SYMM_REGISTER_HOOK`` asks for it."""
    is_rehearsal = bool(os.environ.get("TRACEHOOK_EMU_VALUES"))
    if _SWITCH in os.environ:
        is_on = os.environ[_SWITCH] not in ("", "0")
    else:  # misspelt: the service says so, and does not start
        is_on = any(name.startswith("SYMM_REGISTER_HO") for name in os.environ)
    if not is_rehearsal and not is_on:
        return
    try:
        from tracehook.hook import library

        library.directory()
    except Exception as problem:  # said once: nothing of what follows would work
        _say(f"tracehook is off: {problem}")
        return
    if is_rehearsal:
        try:
            from tracehook.rehearsal import values

            values.begin()
        except Exception as problem:
            _say(f"rehearsal: no computed values: {problem}")
    if not is_on:
        return
    try:
        import tracehook.symmetric_memory.state  # noqa: F401  # it follows the service
        from tracehook.hook.service import start_from_environment

        if os.environ.get("SYMM_REGISTER_METRICS"):
            from tracehook.metrics.follow import follow

            follow()
        start_from_environment()
        if is_rehearsal:
            from tracehook.rehearsal import witness

            witness.begin()
        from tracehook.integrations.entry import megatron

        megatron()
    except Exception as problem:  # whatever it is, the user's program comes first
        _say(f"tracehook is off: {problem}")


def _say(text: str) -> None:
    import sys

    if sys.stderr is None:
        return
    try:
        sys.stderr.write(f"{' '.join(text.splitlines())}\n")  # one write: see log/journal.py
        sys.stderr.flush()
    except Exception:
        return  # no stderr: nobody to tell
