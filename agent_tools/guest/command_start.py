"""The start of a command's process: in a session of its own, on pipes or on a pseudo-terminal."""

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import termios

from .wire.commands import Spec
from .wire.words import StreamName

SHELLS = ("/bin/bash", "/bin/sh")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_TOOLS_")}
"""The sandbox's environment before IPython's shell adds forced colours and a terminal."""
NAMES = ("USER", "LOGNAME")  # which PID 1 sets later
Launched = tuple[int, int, dict[int, StreamName], int]
"""A process: its pid, the descriptor that writes to its stdin (-1: at its end), those that read its output, and its own
end of its terminal (-1: none), to be kept open until it was reaped.
"""


def start(spec: Spec, folder: str) -> Launched:
    """Start a command in a folder. The caller owns the descriptors, which never wait.

    Raises:
        OSError: there is no such program; with the folder as its `filename`, no such folder.
        ValueError: an argument holds a NUL.
    """
    return _on_terminal(spec, folder, spec.terminal) if spec.terminal else _on_pipes(spec, folder)


def resize(terminal: int, rows: int, columns: int) -> None:
    """Give a terminal another size."""
    with contextlib.suppress(OSError):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _on_pipes(spec: Spec, folder: str) -> Launched:
    started = subprocess.Popen(
        _argv(spec),
        stdin=subprocess.PIPE if spec.has_stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=_environment(spec, folder),
        start_new_session=True,
        bufsize=0,
    )
    assert started.stdout
    assert started.stderr
    outputs: dict[int, StreamName] = {
        _own(started.stdout.fileno()): "stdout",
        _own(started.stderr.fileno()): "stderr",
    }
    stdin = _own(started.stdin.fileno()) if started.stdin else -1
    return _detached(started), stdin, outputs, -1


def _on_terminal(spec: Spec, folder: str, size: tuple[int, int]) -> Launched:
    master, slave = pty.openpty()
    try:
        resize(master, *size)
        started = subprocess.Popen(
            _argv(spec),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env={"TERM": "xterm-256color", **_environment(spec, folder)},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
    except BaseException:
        os.close(master)
        os.close(slave)
        raise
    os.set_blocking(master, False)
    return _detached(started), master, {master: "stdout"}, slave


def _argv(spec: Spec) -> list[str]:
    if not isinstance(spec.argv, str):
        return list(spec.argv)
    return [next((shell for shell in SHELLS if os.path.exists(shell)), SHELLS[-1]), "-c", spec.argv]


def _environment(spec: Spec, folder: str) -> dict[str, str]:
    names = {name: os.environ[name] for name in NAMES if name in os.environ}
    return {**ENVIRONMENT, **names, "PWD": folder, **spec.env}


def _own(descriptor: int) -> int:
    """Return a copy of a descriptor that never waits."""
    copied = os.dup(descriptor)
    os.set_blocking(copied, False)
    return copied


def _detached(started: "subprocess.Popen[bytes]") -> int:
    """Detach a process from its Popen object and return its pid: the caller reaps it."""
    for stream in (started.stdin, started.stdout, started.stderr):
        if stream:
            stream.close()
    started.returncode = 0
    return started.pid
