"""What the sandbox does by itself where its kernel is gVisor's."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from agent_tools.guest.gvisor import forbid_allocation

PR_SET_NO_NEW_PRIVS = 38


def test_no_file_is_allocated_and_what_asks_for_it_writes_instead(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            forbid_allocation()
            with open(tmp_path / "file", "wb") as file:
                refused = libc.fallocate(file.fileno(), 0, ctypes.c_long(0), ctypes.c_long(1)) == -1
                code = ctypes.get_errno()
                os.posix_fallocate(file.fileno(), 0, 4096)
            os._exit(int(not refused or code != errno.EOPNOTSUPP))
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (tmp_path / "file").stat().st_size == 4096
