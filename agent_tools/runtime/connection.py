"""The private directory through which the host reaches one sandbox: who may do what in it, and the kernel's key.

    <runtime dir>/<pid>-<start time>-<random>/      0711 ours; mounted as /run/kernel
        init.sock                                   the host listens, PID 1 connects once
        <generation>/                               0700 the guest's while a kernel binds its sockets, then 0511
            kernel.json                             Jupyter's connection file: ipc transport, a fresh key
            k-1 .. k-5                              shell, iopub, stdin, control, heartbeat

Everything is connected before the first user code runs, and nothing in here is followed if it is a link.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from agent_tools.errors import EngineError, ProtocolViolation
from agent_tools.runtime.engine import GUEST_RUN_DIR, Guest
from agent_tools.runtime.owner import Owner
from agent_tools.settings import runtime_dir

PORTS = {"shell_port": 1, "iopub_port": 2, "stdin_port": 3, "control_port": 4, "hb_port": 5}
MAX_SOCKET_PATH = 107  # bytes: sockaddr_un.sun_path less its terminator


@dataclass(frozen=True)
class Connection:
    """Where one kernel's sockets are, and the key that signs its messages."""

    key: bytes
    shell: str
    iopub: str


class RunDir:
    """Makes, hands over, checks and removes the private directory of one sandbox."""

    def __init__(self, guest: Guest, guest_path: str | None = GUEST_RUN_DIR) -> None:
        base = _private_base(runtime_dir())
        self.path = base / f"{Owner.current().token}-{secrets.token_hex(4)}"
        self.guest = guest
        self.guest_path = guest_path or str(self.path)
        if len(os.fsencode(self.path)) + len("/9999/k-5") > MAX_SOCKET_PATH:
            raise EngineError(
                f"{self.path} is too long for a socket path; set AGENT_TOOLS_RUN_DIR to a shorter folder."
            )
        self.path.mkdir(mode=0o700)
        self.path.chmod(0o711)

    @property
    def init_socket(self) -> Path:
        """Where the host listens for PID 1."""
        return self.path / "init.sock"

    def prepare(self, generation: int) -> Connection:
        """Make the directory of one kernel, writable by the guest, with a connection file and a fresh key."""
        key = secrets.token_hex(32)
        folder = self.path / str(generation)
        folder.mkdir(mode=0o700)
        prefix = f"{self.guest_path}/{generation}/k"
        info = {"transport": "ipc", "ip": prefix, "key": key, "signature_scheme": "hmac-sha256", **PORTS}
        file = folder / "kernel.json"
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
        with os.fdopen(fd, "w") as stream:
            json.dump(info, stream)
        self._hand_over(file)
        self._hand_over(folder)
        sockets = {name: f"{folder}/k-{PORTS[name]}" for name in ("shell_port", "iopub_port")}
        return Connection(key.encode(), f"ipc://{sockets['shell_port']}", f"ipc://{sockets['iopub_port']}")

    def check(self, generation: int) -> None:
        """Refuse the kernel's sockets unless they are sockets and the guest's own.

        Raises:
            ProtocolViolation: something else lies there.
        """
        for name in ("shell_port", "iopub_port"):
            found = os.stat(self.path / str(generation) / f"k-{PORTS[name]}", follow_symlinks=False)
            if not stat.S_ISSOCK(found.st_mode) or found.st_uid != self.guest.outside[0]:
                raise ProtocolViolation("a kernel socket was replaced before it was connected")

    def lock(self, generation: int) -> None:
        """Take the kernel's directory back once it is connected: the guest can no longer change what lies in it.

        Where host and guest are one user this is a hindrance and not a wall; the host reconnects to nothing either way.
        """
        folder = self.path / str(generation)
        with contextlib.suppress(OSError):
            if os.getuid() == 0:
                os.chown(folder, 0, 0, follow_symlinks=False)
            folder.chmod(0o511)

    def remove(self) -> None:
        """Delete the directory; entries the guest made in it are unlinked and never followed."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _hand_over(self, path: Path) -> None:
        if os.getuid() == 0:
            os.chown(path, *self.guest.outside, follow_symlinks=False)


def _private_base(base: Path) -> Path:
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = os.stat(base, follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise EngineError(f"{base} is not a folder of yours; remove it or set AGENT_TOOLS_RUN_DIR to another place.")
    if stat.S_IMODE(found.st_mode) & 0o077:
        base.chmod(0o700)
    return base
