"""Stands in for the interpreter: has a warm server run ``python ARGUMENTS`` here, or runs the real interpreter.

Started as ``python -I -S client.py SOCKET ARGUMENTS...`` once per process of a job, so it imports next to nothing.
The program gets our arguments, environment, folder, umask, ignored signals and open descriptors. Signals that we get
are passed on to it, and we end as it ends; when we are killed, the server kills it.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import marshal
import posix
import select
import sys

# What the server answers: a kind and a number.
COLD, STARTED, ENDED = range(3)
ANSWER = 8

_PASSED_ON = (
    *(_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGABRT),
    *(_signal.SIGUSR1, _signal.SIGUSR2, _signal.SIGTERM, _signal.SIGWINCH),
)


def connect(path: str) -> _socket.socket:
    """Return a connection to the server of socket `path`; raises OSError if nobody listens."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    connection.connect(path)
    return connection


def send(connection: _socket.socket, message: tuple[object, ...], descriptors: list[int]) -> None:
    """Send a message of plain values, and copies of descriptors."""
    data = marshal.dumps(message)  # type: ignore[arg-type]
    numbers = b"".join(number.to_bytes(4, sys.byteorder) for number in descriptors)
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)] if descriptors else []
    connection.sendmsg([len(data).to_bytes(4, "little")], rights)
    connection.sendall(data)


def receive(connection: _socket.socket, size: int) -> bytes:
    """Return `size` bytes, or fewer if the connection was closed."""
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            break
        data += part
    return data


def _answer(connection: _socket.socket) -> tuple[int, int]:
    data = receive(connection, ANSWER)
    if len(data) < ANSWER:
        print("tracehook: the server of the warm start is gone", file=sys.stderr)
        posix._exit(1)
    return int.from_bytes(data[:4], "little"), int.from_bytes(data[4:], "little")


def _open_descriptors() -> list[int]:
    found = []
    for name in posix.listdir("/proc/self/fd"):
        try:
            posix.fstat(int(name))
        except OSError:
            continue  # that of the listing itself
        if posix.get_inheritable(int(name)) or int(name) < 3:
            found.append(int(name))
    return found


def _umask() -> int:
    mask = posix.umask(0o077)
    posix.umask(mask)
    return mask


def _pass_on_signals(connection: _socket.socket, process: int, signals: list[int]) -> None:
    """Pass signals on until the server has something to say."""
    # By a descriptor: a handler alone could run after the last look and before the wait.
    there, here = _socket.socketpair()
    here.setblocking(False)
    _signal.set_wakeup_fd(here.fileno())
    for number in signals:
        _signal.signal(number, lambda *_: None)
    while True:
        ready = select.select([connection, there], [], [])[0]
        if connection in ready:
            return
        for number in there.recv(64):
            posix.kill(process, number)


def _end_by(number: int) -> None:
    import resource

    # The program has left its core, if it wanted one.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number not in (_signal.SIGKILL, _signal.SIGSTOP):
        _signal.signal(number, _signal.SIG_DFL)
    posix.kill(posix.getpid(), number)


def main() -> None:
    """Run the program of the command line, and end as it ends."""
    path, arguments = sys.argv[1], sys.argv[2:]
    ignored = [number for number in _PASSED_ON if _signal.getsignal(number) == _signal.SIG_IGN]
    descriptors = _open_descriptors()
    try:
        connection = connect(path)
    except OSError:
        posix.execv(sys.executable, [sys.executable, *arguments])
    if _signal.SIGINT not in ignored:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # ends us without a traceback until the program runs
    request = ("run", arguments, posix.environ, posix.getcwdb(), _umask(), ignored, descriptors)
    send(connection, request, descriptors)
    kind, number = _answer(connection)
    if kind == COLD:
        posix.execv(sys.executable, [sys.executable, *arguments])
    _pass_on_signals(connection, number, [passed for passed in _PASSED_ON if passed not in ignored])
    _, status = _answer(connection)
    if posix.WIFSIGNALED(status):
        _end_by(posix.WTERMSIG(status))
    posix._exit(posix.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    main()
