"""Bytes that the processes of a sandbox have written, to find the sandbox that fills a shared folder."""

from __future__ import annotations

import contextlib
import re

from agent_tools.machine.deleted_files import family

_COUNTERS = re.compile(rb"^(?:wchar|write_bytes): (\d+)$", re.MULTILINE)


def written_bytes(first: int) -> tuple[int, bool]:
    """Return the bytes that a process and its descendants have written to any file, pipe or socket, and if that is all.

    Ended processes count in the parents that have waited for them. For a caller that is not root, PID 1 of a sandbox is
    hidden, and with it what it has waited for. The format is that of proc_pid_io(5).
    """
    total, is_all = 0, True
    for pid in family(first):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            try:
                with open(f"/proc/{pid}/io", "rb") as file:
                    found = _COUNTERS.findall(file.read())
            except PermissionError:
                found = []
            is_all = is_all and len(found) == 2
            total += max(map(int, found), default=0)  # write_bytes includes mappings, wchar file systems in memory
    return total, is_all
