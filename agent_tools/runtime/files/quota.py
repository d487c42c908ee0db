"""Enforces limits on a mounted work_dir, since engines have no such limit that works everywhere.

Bytes are bytes on disk (blocks), not file sizes: a sparse file takes little, and a file may have more blocks than its
size says. If the disk is nearly full, code is ended only if this work_dir has grown since the code began: others use
the disk, too.

The host checks periodically (rounds.py). A guest over a limit is paused, so that it can write no more, counted again,
and killed or resumed. The limit is not exact: between two checks code can write at the speed of the disk. The more idle
sandboxes there are, the less often each is checked, down to once in MOST_IDLE_SECONDS, so that all checks use at most
about a tenth of one processor.
"""

from __future__ import annotations

import contextlib
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent_tools.errors import FileRejected
from agent_tools.guest.wire.words import Pause, Resume
from agent_tools.limits import Limits
from agent_tools.machine import folder
from agent_tools.machine.deleted_files import DeletedFiles
from agent_tools.machine.folder import MAX_LEVELS, FolderUsage, free
from agent_tools.machine.rounds import ROUND_SECONDS, Rounds, rounds
from agent_tools.text import one_line

CHECK_SECONDS = ROUND_SECONDS  # while code runs
IDLE_CHECK_SECONDS = 5.0  # seconds, between runs, where there are few sandboxes
MOST_IDLE_SECONDS = 60.0  # at most, between two checks of an idle sandbox
HIDDEN_LOOKS, HIDDEN_SECONDS = 5, 3.0  # consecutive checks, and their time, for which a process may be hidden
COUNT_SECONDS = 60.0  # seconds that the first run waits for the first count
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_BOUNDLESS = FolderUsage(2**63, 2**63, 2**63)
SMALL_SHARE = 64  # code that has added less than this part of min_disk_free is not what filled a disk
PAUSE_FACTOR = 10  # after a check of t seconds comes a pause of at least this many t


@dataclass(frozen=True)
class Brake:
    """The actions of the watcher on a guest: pause and resume by PID 1, and kill for a reason."""

    order: Callable[[Pause | Resume], object]
    kill: Callable[[str], None]


class Quota:
    """The limits of one work_dir, for all sandboxes of a session. Earlier contents may stay, but not grow."""

    def __init__(self, path: Path, limits: Limits, free: Callable[[Path], int] = free) -> None:
        self.has_stopped_one = False
        """True if code was killed for an excess, and no later check found it gone."""
        self.is_shut = False
        """True if code was killed for an excess, and no code has been allowed since."""
        self._path = path
        self._free = free
        self._excused: FolderUsage | None = None
        """The usage when code was refused for an excess: later code may delete files, but add nothing."""
        self._limit = FolderUsage(limits.max_work_dir_bytes, limits.max_work_dir_entries, MAX_LEVELS)
        self._most_free = self._least_free = limits.min_disk_free
        self._small = limits.min_disk_free // SMALL_SHARE
        self._bytes = 0  # at the last look
        self._began = (0, 0)  # the bytes at the last check before the code began, and the moment when it began
        self._closed_to = 0  # the permissions that others lacked when it was counted first
        self._is_low = False  # True if the caller was told that the disk has too little room, and it still has
        self._counting = threading.Lock()
        self._counted = threading.Event()

    def count(self) -> None:
        """Count the contents, the first time; wait if another thread is counting."""
        if self._counted.is_set() or not self._counting.acquire(blocking=False):
            return
        try:
            if not self._counted.is_set():
                self._take_count()
        finally:
            self._counting.release()  # if it failed, the next one tries

    def _take_count(self) -> None:
        found, limit = folder.usage(self._path, _BOUNDLESS), self._limit
        self._limit = FolderUsage(
            max(limit.bytes, found.bytes), max(limit.entries, found.entries), max(limit.levels, found.levels)
        )
        self._least_free = min(self._most_free, self._free(self._path) // 2)
        self._bytes = found.bytes
        self._closed_to = ~self._path.stat().st_mode & _OTHERS
        self._begin()
        self._counted.set()

    def _close_again(self) -> None:
        """Take back permissions on work_dir that code gave to other users of this machine."""
        with contextlib.suppress(OSError):  # it is gone, or a rootless engine's guest owns it
            mode = self._path.stat().st_mode
            if mode & self._closed_to:
                self._path.chmod(stat.S_IMODE(mode) & ~self._closed_to)

    def begin(self) -> None:
        """Record that code begins or has ended: growth is counted from here on.

        While the disk is nearly full, growth is counted from the time when it was not, so that many runs together add
        no more than one may. A sandbox opened on a nearly full disk has the whole limit once there is room.
        """
        self._close_again()
        free = self._free(self._path)
        self._least_free = max(self._least_free, min(self._most_free, free // 2))
        if free >= self._least_free:
            self._is_low = False
            self._begin()

    def _begin(self) -> None:
        self._began = self._bytes, folder.moment(self._path).ns

    def notice(self) -> str:
        """Return a sentence if the disk is nearly full, with the bytes that code here has added; else ''.

        The sentence is returned once, until there is room again.
        """
        if self._is_low or self._free(self._path) >= self._least_free:
            return ""
        self._is_low = True
        added = self._added(folder.usage(self._path, self._limit, self._began[1]), DeletedFiles())
        return (
            f"The disk of work_dir has less than {self._least_free:,} bytes free (min_disk_free); "
            f"this code has added {added:,} bytes."
        )

    def _added(self, found: FolderUsage, deleted: DeletedFiles) -> int:
        """Return how many bytes were added since the code began, at most the bytes of files changed since then.

        The last check may have been before the end of earlier code, so the growth alone would be too much.
        """
        growth = found.bytes + deleted.bytes - self._began[0]
        return max(0, min(growth, found.changed + deleted.bytes))

    def refuse_excess(self) -> None:
        """Count the contents if nothing has, and raise if an excess for which code was killed is still there.

        A count in another thread is awaited for COUNT_SECONDS. It raises once for an excess; the next code may run to
        delete files, as long as it adds nothing. Folders that are too deep to be counted are moved up.

        Raises:
            FileRejected: no code may run now.
        """
        self.count()
        self._counted.wait(COUNT_SECONDS)
        if not self.has_stopped_one:
            return
        excess = self.excess()
        if not excess:
            self.has_stopped_one, self.is_shut = self._is_excused(), False
            return
        if not self._is_flat() and (lifted := folder.lift_deep(self._path, self._limit.levels)):
            others = f" and {len(lifted) - 1:,} more" if len(lifted) > 1 else ""
            raise FileRejected(
                f"No code was run: earlier code {excess}. The deeper folders are now in {lifted[0]}{others}."
            )
        advice = f"Delete files in {self._path}{self._largest()}, or raise that limit."
        if self._excused is None and self._is_countable():
            self._excused = folder.usage(self._path, _BOUNDLESS)
            advice += " The next code may run to delete some, as long as it adds nothing."
        raise FileRejected(f"No code was run: earlier code {excess}. {advice}")

    def _largest(self) -> str:
        name, size = folder.usage(self._path, FolderUsage(2**63, self._limit.entries, self._limit.levels)).largest
        return f" (the largest is {one_line(name):.200}, with {size:,} bytes on disk)" if name else ""

    def _is_excused(self) -> bool:
        """Return whether the usage still exceeds the limits; once it does not, the exception ends."""
        found, limit = folder.usage(self._path, self._limit), self._limit
        if self._excused and found.bytes <= limit.bytes and found.entries <= limit.entries:
            self._excused = None
        return self._excused is not None

    def _is_countable(self) -> bool:
        """Return whether the disk has room and all contents can be counted."""
        return self._is_flat() and self._free(self._path) >= self._least_free

    def _is_flat(self) -> bool:
        return folder.usage(self._path, self._limit).levels <= self._limit.levels

    def excess(self, deleted: DeletedFiles | None = None) -> str:
        """Return a clause that continues 'it' if a limit is exceeded, else ''.

        `deleted` has the deleted files that the sandbox still has open; they count, too.
        """
        self._close_again()
        limit, deleted = self._limit, deleted or DeletedFiles()
        if excused := self._excused:
            limit = FolderUsage(max(limit.bytes, excused.bytes), max(limit.entries, excused.entries), limit.levels)
        found = folder.usage(self._path, limit, self._began[1])
        self._bytes = found.bytes + deleted.bytes
        if found.bytes > limit.bytes:
            return f"filled work_dir beyond {limit.bytes:,} bytes (max_work_dir_bytes)"
        if found.bytes + deleted.bytes > limit.bytes:
            return f"filled work_dir beyond {limit.bytes:,} bytes with deleted files it holds open (max_work_dir_bytes)"
        if deleted.is_hidden:
            return "hid a process, and so what it holds of deleted files (PR_SET_DUMPABLE)"
        if found.entries > limit.entries:
            return f"filled work_dir beyond {limit.entries:,} entries (max_work_dir_entries)"
        if found.levels > limit.levels:
            return f"nested folders in work_dir more than {limit.levels:,} deep"
        if self._free(self._path) < self._least_free and (added := self._added(found, deleted)) > self._small:
            left = f"left less than {self._least_free:,} bytes free on the disk of work_dir (min_disk_free)"
            return f"added {added:,} bytes and {left}"
        return ""


class CheckTimes:
    """The times of the checks of one folder. `clock` returns seconds."""

    def __init__(self, rounds: Rounds, clock: Callable[[], float]) -> None:
        self._rounds = rounds
        self._clock = clock
        self._next_at = self._next_idle_at = -float("inf")

    def is_due(self, is_busy: Callable[[], bool]) -> bool:
        """Return whether a check is due."""
        now = self._clock()
        return now >= self._next_at and (now >= self._next_idle_at or is_busy())

    def checked(self, started: float, factor: float = PAUSE_FACTOR) -> None:
        """Record a check that began then; a pause of at least `factor` times its duration follows."""
        ended = self._clock()
        self._next_at = ended + max(0.9 * CHECK_SECONDS, factor * (ended - started))  # a round may be a little early
        of_all = min(MOST_IDLE_SECONDS, PAUSE_FACTOR * self._rounds.cost)
        self._next_idle_at = ended + max(IDLE_CHECK_SECONDS, of_all)


class QuotaWatch:
    """Enforces a quota on one sandbox, until closed. `clock` returns seconds."""

    def __init__(
        self,
        quota: Quota,
        brake: Brake,
        is_busy: Callable[[], bool],
        deleted: Callable[[], DeletedFiles] = DeletedFiles,
        clock: Callable[[], float] = time.monotonic,
        within: Rounds | None = None,
    ) -> None:
        self.quota = quota
        self._brake = brake
        self._is_busy = is_busy
        self._deleted = deleted
        self._clock = clock
        self._rounds = within or rounds()
        self._times = CheckTimes(self._rounds, clock)
        self._has_counted = False
        self._hidden_looks, self._hidden_since = 0, 0.0
        self._rounds.add(self)

    def close(self) -> None:
        """Stop watching, and wait for a check in another thread."""
        self._rounds.remove(self)

    def is_due(self) -> bool:
        """Return whether a check is due."""
        return self._times.is_due(self._is_busy)

    def check(self) -> None:
        """Count the contents the first time; later stop a guest that is over the quota."""
        started, is_first = self._clock(), not self._has_counted
        if is_first:
            self.quota.count()
            self._has_counted = True
        elif self._has_suspects() and self._excess():
            self._stop()
        self._times.checked(started, 0 if is_first else PAUSE_FACTOR)  # a first count has looked for no excess yet

    def _stop(self) -> None:
        self._brake.order(Pause())
        try:
            if (excess := self._excess()) and self._has_suspects():
                self.quota.has_stopped_one = self.quota.is_shut = True
                self._brake.kill(f"it {excess}")
        finally:
            self._brake.order(Resume())  # also after a kill: what it spares goes on

    def _excess(self) -> str:
        """Count.

        While code runs, a process hidden in several checks counts as hiding; before, it may be a fork of PID 1.
        """
        deleted = self._deleted()
        if not (deleted.is_hidden and self._hidden_looks):
            self._hidden_since = self._clock()
        self._hidden_looks = self._hidden_looks + 1 if deleted.is_hidden else 0
        is_long = self._hidden_looks >= HIDDEN_LOOKS and self._clock() - self._hidden_since >= HIDDEN_SECONDS
        return self.quota.excess(DeletedFiles(deleted.bytes, is_hidden=is_long and self._is_busy()))

    def _has_suspects(self) -> bool:
        """Return whether there may be code to stop. After a kill there is none until the next allowed run."""
        return self._is_busy() or not self.quota.is_shut
