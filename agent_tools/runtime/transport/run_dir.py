"""How the host reaches one sandbox: a private directory, of which the guest sees one socket, read-only.

    <runtime dir>/<pid>-<start time>-<random>/      0700
        channel                                     exists for an instant: bound, connected to, unlinked
        guest/                                      mounted read-only as /run/kernel
            init.sock                               the host listens; PID 1 connects once, then it is unlinked

The kernel's sockets are made, and connected to, on this side; the guest gets them as open descriptors, over the
lifeline, and libzmq listens on them. So the guest can neither plant nor replace anything that the host opens.
"""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

from agent_tools.errors import EngineError
from agent_tools.runtime.files.folder import open_folder
from agent_tools.runtime.files.private_base import private_base
from agent_tools.runtime.files.removal import remove_tree
from agent_tools.runtime.owner import Owner

MAX_SOCKET_PATH = 107  # bytes: sockaddr_un.sun_path less its terminator


class RunDir:
    """Makes and removes the private directory of one sandbox, and the sockets of its kernels."""

    def __init__(self) -> None:
        self.path = private_base() / f"{Owner.current().token}-{secrets.token_hex(4)}"
        if len(os.fsencode(self.path)) + len("/guest/init.sock") > MAX_SOCKET_PATH:
            raise EngineError(
                f"{self.path} is too long for a socket path; set AGENT_TOOLS_RUN_DIR to a shorter folder."
            )
        self.path.mkdir(mode=0o700)
        self.mounted.mkdir()
        self.mounted.chmod(0o755)

    @property
    def mounted(self) -> Path:
        """The part the guest sees."""
        return self.path / "guest"

    @property
    def init_socket(self) -> Path:
        """Where the host listens for PID 1."""
        return self.mounted / "init.sock"

    def new_channel(self) -> tuple[socket.socket, socket.socket]:
        """A connected socket for the host, and the listening one for the guest; no path to either is left.

        A socket goes on telling the name it was bound to. This one tells nothing of the host.
        """
        listener, connected = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        try:
            with open_folder(self.path) as fd:
                name = f"/proc/self/fd/{fd}/channel"
                listener.bind(name)
                listener.listen(1)
                connected.connect(name)
        except BaseException:
            listener.close()
            connected.close()
            raise
        finally:
            (self.path / "channel").unlink(missing_ok=True)
        return connected, listener

    def remove(self) -> None:
        """Delete the directory."""
        remove_tree(self.path)
