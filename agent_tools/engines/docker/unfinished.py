"""Containers whose creation or start has not ended: each is removed, also if this process is killed.

Theory of operation
    A started sandbox ends with its lifeline. A container that was created and not started has none yet, and an
    engine keeps it for good. So the names of all that are being made are noted before the engine hears of them. If
    a creation fails, or times out, this process removes the container as soon as it appears. If this process is
    killed while it makes one, a shell removes it (`Guard`). The shell holds the other end of a socket pair, reads
    all names from it at each change, and replaces itself by a Python that removes the rest; without a rest it ends.
    It is no child of this process, and a signal to this process's group does not reach it. It lives while something
    is being made, and starts in 2 ms.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import docker.errors
import requests

from agent_tools.engines.docker.connection import DockerConnection
from agent_tools.errors import EngineError
from agent_tools.guest.wire.sockets import await_hang_up
from agent_tools.machine.fork_hook import abandon_after_fork
from agent_tools.machine.owner import NAME_LABEL

DOUBT_SECONDS = 600  # within which a container may appear whose creation timed out
REST_SECONDS = 120  # likewise, after this process's end
LOOK_SECONDS = 5  # for the engine's answer, which may time out again
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0  # seconds between two looks after this process's end

_UNSURE = "."  # follows the name of a container that may still appear
_READ = 'while read -r line; do names=$line; done; [ -z "$names" ] || exec "$@" $names'
_BEGIN = f"exec 3<&0; ({_READ}) <&3 >/dev/null 2>&1 &"  # a shell's background has no stdin but what it is given
_REMOVE = (
    f"import sys; sys.path.append({str(Path(__file__).parents[3])!r}); "
    f"from {__name__} import remove_rest; remove_rest(sys.argv[1:])"
)


class Unfinished:
    """The names (`NAME_LABEL`) of a process's unfinished containers. Thread-safe."""

    def __init__(self, connection: DockerConnection, guard: Guard | None = None) -> None:
        self._connection = connection
        self._guard = guard or Guard()
        self._doubtful: dict[str, float] = {}
        self._made: dict[str, bool] = {}  # is created, by name
        self._lock = threading.Lock()
        abandon_after_fork(self)

    def abandon(self) -> None:
        """In a forked child: forget the parent's."""
        self._made, self._doubtful, self._lock = {}, {}, threading.Lock()
        self._guard.close()

    @contextlib.contextmanager
    def made(self, name: str) -> Iterator[Callable[[], None]]:
        """Around the creation and the start of a container. Yields what is to be called in between."""
        self._note(name, False)
        try:
            yield lambda: self._note(name, True)
        finally:
            self._note(name, None)

    def doubt(self, name: str) -> None:
        """Remove the container of this name now, or as soon as it has appeared."""
        self._doubtful[name] = time.monotonic()
        self.remove()

    def remove(self) -> None:
        """Remove containers that have appeared; retry later if the engine does not answer."""
        oldest = time.monotonic() - DOUBT_SECONDS
        old = {name for name, since in list(self._doubtful.items()) if since < oldest}
        looked = _removed(self._connection, self._doubtful.keys() - old)
        for name in old | {name for name, was_there in looked.items() if was_there}:
            self._doubtful.pop(name, None)

    def _note(self, name: str, is_created: bool | None) -> None:
        with self._lock:
            self._made.pop(name, None)
            if is_created is not None:
                self._made[name] = is_created
            self._guard.tell({each if is_sure else f"{each}{_UNSURE}" for each, is_sure in self._made.items()})


def _removed(connection: DockerConnection, names: Collection[str]) -> dict[str, bool]:
    """Remove the containers of these names; return whether each was there, as far as the engine answered."""
    looked: dict[str, bool] = {}
    failures = (docker.errors.DockerException, requests.RequestException, OSError, EngineError)
    if not names:
        return looked
    with contextlib.suppress(*failures), contextlib.closing(connection.new_client(LOOK_SECONDS)) as client:
        for name in names:
            found = client.api.containers(all=True, filters={"label": [f"{NAME_LABEL}={name}"]})
            for each in found:
                client.api.remove_container(each["Id"], force=True, v=True)
            looked[name] = bool(found)
    return looked


def remove_rest(words: Collection[str], connection: DockerConnection | None = None) -> None:
    """Remove the containers that a killed process was creating, also those that appear later."""
    connection = connection or DockerConnection(LOOK_SECONDS)
    rest, pause = {word.rstrip(_UNSURE) for word in words}, FIRST_PAUSE
    deadline = time.monotonic() + REST_SECONDS
    while rest and time.monotonic() < deadline:
        looked = _removed(connection, rest)
        rest -= {name for name, was_there in looked.items() if was_there or name in words}
        time.sleep(pause if rest else 0)
        pause = min(2 * pause, LONGEST_PAUSE)


class Guard:
    """A shell that outlives this process, while there is a name. Without it, the next process's sweep does its work."""

    def __init__(self) -> None:
        self._ours: socket.socket | None = None
        self._finalizer: weakref.finalize[..., Guard] | None = None

    def tell(self, names: Collection[str]) -> None:
        """Give it the names that it is to remove if this process is killed now."""
        line = f"{' '.join(names)}\n".encode("ascii")
        is_known = self._ours is not None and _is_sent(self._ours, line)
        if self._ours and not is_known and not await_hang_up(self._ours.fileno(), 0):
            # it was stopped: at an end it would remove what has started since, so its connection is closed with `self`
            self._ours = self._finalizer = None
        if names and not is_known:
            self.close()
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                self._ours = _started()
                self._finalizer = weakref.finalize(self, self._ours.close)
                _is_sent(self._ours, line)
        elif not names:
            self.close()

    def close(self) -> None:
        """Close the connection to it: it removes the containers that it was told of last."""
        if self._finalizer:
            self._finalizer()
        self._ours = self._finalizer = None


def _is_sent(ours: socket.socket, line: bytes) -> bool:
    with contextlib.suppress(OSError):  # it has ended, or was stopped
        return ours.send(line, socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)) == len(line)
    return False


def _started() -> socket.socket:
    """Return the way to a new shell: a grandchild, whose parent has ended."""
    ours, theirs = socket.socketpair()
    with contextlib.ExitStack() as undo, theirs:
        undo.callback(ours.close)
        command = ["/bin/sh", "-c", _BEGIN, "sh", sys.executable, "-P", "-c", _REMOVE]
        subprocess.run(command, check=True, cwd="/", start_new_session=True, stdin=theirs.fileno())
        undo.pop_all()
    return ours
