"""A page of tracehook in torch's own debug server, beside its stacks and its Flight Recorder.

Of ``torch.distributed.debug.start_debug_server``, which serves a running job from rank 0.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

# The stacks come first, because the audit quotes them.
_COMMANDS = {"stacks": [], "watch": ["--once"], "audit": []}
_PATIENCE = 60.0  # seconds for each
_TEMPLATE = """
{% extends "base.html" %}
{% block header %}<h1>{% block title %}tracehook{% endblock %}</h1>{% endblock %}
{% block content %}
{% for command, said in parts %}<h2>{{ command | e }}</h2><pre>{{ said | e }}</pre>{% endfor %}
{% endblock %}
"""


class _Route(NamedTuple):
    path: str
    handler: Callable[[Any], bytes]


class _Link(NamedTuple):
    path: str
    label: str


class DebugPage:
    """The page ``/tracehook``: what the audit, the watch and the stacks say of the job now.

    Give it to the server on all ranks, beside torch's own pages::

        handlers = [*torch.distributed.debug._debug_handlers.default_handlers(), tracehook.DebugPage("logs")]
        torch.distributed.debug.start_debug_server(handlers=handlers)

    Each look runs the three commands, in the process of the server; the job is not disturbed. With ``dump_dir`` of the
    server and ``"tracehook"`` in its ``enabled_dumps`` the server also writes the same text into a file from time to
    time. torch calls the server experimental. It needs more packages than torch, and asks nobody for
    a password.

    Args:
        directory: that of the logs; the value of ``SYMM_REGISTER_LOG`` if None.

    Raises:
        ValueError: there is neither a directory nor ``SYMM_REGISTER_LOG``.

    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        given = directory if directory is not None else os.environ.get("SYMM_REGISTER_LOG")
        if not given:
            raise ValueError(
                "tracehook.DebugPage: expected the directory of the logs: give it, or set SYMM_REGISTER_LOG"
            )
        self._directory = Path(given).absolute()  # the server may run elsewhere

    def routes(self) -> list[_Route]:
        """Return the one page; the server asks."""
        return [_Route("/tracehook", self._show)]

    def nav_links(self) -> list[_Link]:
        """Return the entry in the menu of all pages; the server asks."""
        return [_Link("/tracehook", "tracehook")]

    def templates(self) -> dict[str, str]:
        """Return how the page looks; the server asks."""
        return {"tracehook.html": _TEMPLATE}

    def dump(self) -> str:
        """Return the text of the page; the server asks at each interval."""
        return "\n".join(f"$ {command}\n{said}" for command, said in self._said())

    def dump_filename(self) -> str:
        """Return how the files of :meth:`dump` begin; the server asks."""
        return "tracehook"

    def _show(self, request: Any) -> bytes:
        page: bytes = request.frontend.render_template("tracehook.html", parts=self._said())
        return page

    def _said(self) -> list[tuple[str, str]]:
        """Return each command and what it printed, the audit first."""
        return [(f"tracehook {name} {self._directory}", self._run(name)) for name in _COMMANDS][::-1]

    def _run(self, name: str) -> str:
        command = [sys.executable, "-m", "tracehook", name, str(self._directory), *_COMMANDS[name]]
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                check=False,
                timeout=_PATIENCE,
                env={**os.environ, "COLUMNS": "160"},
            )
        except subprocess.TimeoutExpired:
            return f"no answer in {_PATIENCE:g} s"
        return done.stdout
