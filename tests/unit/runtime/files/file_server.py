"""The guest's own file server on a folder of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from agent_tools.runtime.files.file_conversation import Conversation

SERVER = "import sys\nfrom agent_tools.guest.files import service\nservice.serve(int(sys.argv[1]), sys.argv[2])"
AS_USER = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.getuid() == 0 else []
"""What makes the modes of files count for root, too."""


class FileServers:
    """Servers, one for each connection, with a folder as work_dir."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all: list[subprocess.Popen[bytes]] = []

    def connect(self, max_parts: int) -> Conversation:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [*AS_USER, sys.executable, "-c", SERVER, str(theirs.fileno()), str(self.folder)]
            self.all.append(subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL))
        return Conversation(ours, max_parts)

    def wait(self) -> None:
        """Wait for the end of all, whose connections are closed."""
        for each in self.all:
            each.wait(30)


def content(path: Path) -> dict[str, bytes]:
    """Return the files below a folder."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def write(path: Path, files: dict[str, bytes]) -> None:
    """Write files below a folder."""
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
