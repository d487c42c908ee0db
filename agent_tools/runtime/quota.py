"""Watches how much a guest puts into a mounted work_dir. The engine has no limit for that which works everywhere.

A thread looks, now and then; a guest over the limit it pauses, so that nothing can be written any more, counts again,
and kills or resumes. It is a brake and not a wall: between two looks code can write as fast as the disk takes it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent_tools.errors import FileRejected
from agent_tools.runtime.folder import Usage, usage
from agent_tools.settings import Limits

LOOK_EVERY = 0.5  # seconds, while code runs
IDLE_LOOK_EVERY = 5.0  # seconds, between runs
_BOUNDLESS = Usage(2**63, 2**63)
MOST_OF_TIME = 10  # a look that takes t seconds is followed by a pause of at least this many t


@dataclass(frozen=True)
class Brake:
    """What the watcher may do to a guest: have PID 1 'pause' it, and then 'resume' it, or kill it for a reason."""

    tell: Callable[[str], object]
    kill: Callable[[str], None]


class QuotaWatch:
    """Watches one work_dir until closed. What it held before may stay, but then it may not grow."""

    def __init__(self, path: Path, limits: Limits, brake: Brake, is_busy: Callable[[], bool]) -> None:
        self._path = path
        self._brake = brake
        self._is_busy = is_busy
        self._closed = threading.Event()
        self._has_stopped_one = False
        self._limit = Usage(limits.max_work_dir_bytes, limits.max_work_dir_entries)
        self._least_free = min(limits.min_disk_free, _free(path) // 2)
        self._thread = threading.Thread(target=self._run, name="agent-tools-quota", daemon=True)
        self._thread.start()

    def refuse_excess(self) -> None:
        """Let no code run while what an earlier run was killed for still lies there.

        Raises:
            FileRejected: it does.
        """
        if self._has_stopped_one:
            excess = self._excess()
            self._has_stopped_one = bool(excess)
            if excess:
                raise FileRejected(
                    f"No code was run: earlier code {excess[3:]}. Delete files in {self._path}, or raise that limit."
                )

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        found = usage(self._path, _BOUNDLESS)
        self._limit = Usage(max(self._limit.bytes, found.bytes), max(self._limit.entries, found.entries))
        pause, idle_for = LOOK_EVERY, 0.0
        while not self._closed.wait(pause):
            idle_for = 0.0 if self._is_busy() else idle_for + pause
            if 0.0 < idle_for < IDLE_LOOK_EVERY:
                continue
            idle_for = 0.0
            started = time.monotonic()
            if self._excess():
                self._stop()
            pause = max(LOOK_EVERY, MOST_OF_TIME * (time.monotonic() - started))

    def _stop(self) -> None:
        self._brake.tell("pause")
        reason = self._excess()
        if reason:
            self._has_stopped_one = True
            self._brake.kill(reason)
        else:
            self._brake.tell("resume")

    def _excess(self) -> str:
        """What is over a limit, as a reason for the kernel's end; '' as a rule."""
        found = usage(self._path, self._limit)
        if found.bytes > self._limit.bytes:
            return f"it filled work_dir beyond {self._limit.bytes:,} bytes (max_work_dir_bytes)"
        if found.entries > self._limit.entries:
            return f"it filled work_dir beyond {self._limit.entries:,} entries (max_work_dir_entries)"
        if _free(self._path) < self._least_free:
            return f"it left less than {self._least_free:,} bytes free on the disk of work_dir (min_disk_free)"
        return ""


def _free(path: Path) -> int:
    """Bytes that are free on the folder's file system."""
    with contextlib.suppress(OSError):
        facts = os.statvfs(path)
        return facts.f_bavail * facts.f_frsize
    return 2**63
