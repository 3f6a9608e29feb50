"""A headless Chromium, driven over a pipe by its DevTools protocol; what the page logged and asked for is kept."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PATIENCE = 60.0
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)


def find() -> str | None:
    """Return the path of Chromium; None if there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """One page. `complaints`: errors that it logged or threw; `requests`: addresses that it asked for."""

    def __init__(self, process: subprocess.Popen[bytes], to: int, of: int) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._process, self._to, self._of = process, to, of
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session: str | None = None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def open(self, file: Path, width: int = 1280, height: int = 1000, dark: bool = False) -> None:
        """Show a file, in a window of that size, and wait until its scripts have run."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url=file.absolute().as_uri())
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def value(self, expression: str) -> Any:
        """Return what an expression of JavaScript is; a promise is waited for."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, f"{expression}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + _PATIENCE
        while not self.value(expression):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.02)

    def picture(self, file: Path, whole: bool = True) -> None:
        """Write what is seen, or the whole page, as PNG."""
        data = self.ask("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        file.write_bytes(base64.b64decode(data))

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command; return its answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer.get("method", ""), answer.get("params", {}))

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + _PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._of], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "Chromium does not answer"
            data = os.read(self._of, 1 << 20)
            assert data, f"Chromium ended with status {self._process.wait()}"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, method: str, told: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(part.get("value", part)) for part in told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])


@contextlib.contextmanager
def browse(program: str, scratch: Path) -> Iterator[Page]:
    """Start Chromium with a profile of its own under `scratch`; it ends with the block."""
    told_of, tell = os.pipe()
    hear, heard_of = os.pipe()

    def place() -> None:  # Chromium reads commands from 3 and answers on 4
        high = [os.dup(told_of), os.dup(heard_of)]
        os.dup2(high[0], 3)
        os.dup2(high[1], 4)

    command = [program, *_OPTIONS, f"--user-data-dir={scratch / 'profile'}"]
    with (scratch / "chromium.txt").open("wb") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, preexec_fn=place, pass_fds=(3, 4)
        )
    try:
        os.close(told_of)
        os.close(heard_of)
        yield Page(process, tell, hear)
    finally:
        os.close(tell)  # Chromium ends when nobody can tell it anything more
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(hear)
