"""The file service for any path, as the host asks it: a real server on a socket, without a sandbox."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_tools.limits import Limits
from agent_tools.runtime.files.conversation import Conversation
from agent_tools.runtime.files.guest_files import GuestFiles

SERVER = "import sys; from agent_tools.guest.files import files; files.serve(int(sys.argv[1]), sys.argv[2])"


@pytest.fixture
def files(tmp_path: Path) -> Iterator[GuestFiles]:
    servers: list[subprocess.Popen[bytes]] = []

    def connect(max_parts: int) -> Conversation:
        ours, theirs = socket.socketpair()
        with theirs:
            argv = [sys.executable, "-c", SERVER, str(theirs.fileno()), str(tmp_path)]
            servers.append(subprocess.Popen(argv, pass_fds=[theirs.fileno()]))
        return Conversation(ours, max_parts)

    made = GuestFiles(Limits(), connect)
    yield made
    made.close()
    for server in servers:
        server.wait(30)


BELOW_A_FILE: dict[str, Callable[[GuestFiles], object]] = {
    "write": lambda files: files.write("file/child", b"x"),
    "write deeper": lambda files: files.write("file/child/grandchild", b"x"),
    "make_dir": lambda files: files.make_dir("file/child"),
    "make_dir deeper": lambda files: files.make_dir("file/child/grandchild"),
    "move": lambda files: files.move("other", "file/child"),
    "read": lambda files: files.read("file/child"),
    "scan": lambda files: files.scan("file"),
}


@pytest.mark.parametrize("do", BELOW_A_FILE.values(), ids=BELOW_A_FILE)
def test_a_file_is_no_folder_to_put_anything_in(
    files: GuestFiles, tmp_path: Path, do: Callable[[GuestFiles], object]
) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    (tmp_path / "other").write_bytes(b"other")
    with pytest.raises(NotADirectoryError):
        do(files)
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == {
        "file": b"kept",
        "other": b"other",
    }


def test_a_folder_is_not_made_over_a_file(files: GuestFiles, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    with pytest.raises(FileExistsError):
        files.make_dir("file")
    files.make_dir("folder")
    files.make_dir("folder")
    assert (tmp_path / "folder").is_dir()
