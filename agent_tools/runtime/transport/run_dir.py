"""The private directory of one sandbox on the host, of which the guest sees one socket, read-only.

    <runtime dir>/<pid>-<start time>-<random>/      0700
        guest/                                      mounted read-only as /run/kernel
            init.sock                               the host listens; PID 1 connects once, then it is unlinked

All other sockets are made in pairs on this side; the guest gets its ends as open descriptors, over the lifeline. So
it can neither plant nor replace anything that the host opens.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from agent_tools.errors import EngineError
from agent_tools.machine.owner import Owner
from agent_tools.machine.private_folder import private_base
from agent_tools.machine.removal import remove_tree

MAX_SOCKET_PATH = 107  # bytes: sockaddr_un.sun_path less its terminator


class RunDir:
    """Makes the directory; `remove` deletes it."""

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
        """The path on which the host listens for PID 1."""
        return self.mounted / "init.sock"

    def remove(self) -> None:
        """Delete the directory."""
        remove_tree(self.path)
