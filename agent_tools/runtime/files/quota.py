"""Watches how much a guest puts into a mounted work_dir. The engine has no limit for that which works everywhere.

Bytes are those on disk (blocks), not the sizes of files: a sparse file takes little, and a file may have more blocks
than its size says. A disk with too little room ends the code only where this work_dir has grown since the code began:
others use that disk, too.

The host looks, now and then (rounds.py); a guest over the limit it pauses, so that nothing can be written any more,
counts again, and kills or resumes. It is a brake and not a wall: between two looks code can write as fast as the disk
takes it. Idle sandboxes are looked at the less often, the more there are, down to once in MOST_IDLE_SECONDS: so the
looks at all of them take about a tenth of one processor at most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent_tools.errors import FileRejected
from agent_tools.guest.wire.words import Pause, Resume
from agent_tools.limits import Limits
from agent_tools.machine import folder
from agent_tools.machine.folder import MAX_LEVELS, FolderUsage, free
from agent_tools.machine.removal import Held
from agent_tools.machine.rounds import ROUND_SECONDS, Rounds, rounds
from agent_tools.text import one_line

LOOK_EVERY = ROUND_SECONDS  # while code runs
IDLE_LOOK_EVERY = 5.0  # seconds, between runs, where there are few sandboxes
MOST_IDLE_SECONDS = 60.0  # between two looks at an idle sandbox, however many there are
HIDDEN_LOOKS, HIDDEN_SECONDS = 5, 3.0  # looks in a row, and their time, for which a process may be hidden
COUNT_SECONDS = 60.0  # how long the first run waits until what is there before it has been counted
_BOUNDLESS = FolderUsage(2**63, 2**63, 2**63)
SMALL_SHARE = 64  # code that has added less than this part of min_disk_free is not what filled a disk
PAUSE_FACTOR = 10  # a look that takes t seconds is followed by a pause of at least this many t


@dataclass(frozen=True)
class Brake:
    """The means of the watcher against a guest: PID 1 pauses it, and lets it go on, or it is killed for a reason."""

    order: Callable[[Pause | Resume], object]
    kill: Callable[[str], None]


class Quota:
    """The limits of one work_dir, for all sandboxes of a session. What is there before may stay, but not grow."""

    def __init__(self, path: Path, limits: Limits, free: Callable[[Path], int] = free) -> None:
        self.has_stopped_one = False
        """True if code was killed for an excess that has not been found gone since."""
        self.is_shut = False
        """True if code was killed for an excess, and none was let through since."""
        self._path = path
        self._free = free
        self._excused: FolderUsage | None = None
        """The contents when code was refused for an excess: later code may delete some of them, but add nothing."""
        self._limit = FolderUsage(limits.max_work_dir_bytes, limits.max_work_dir_entries, MAX_LEVELS)
        self._most_free = self._least_free = limits.min_disk_free
        self._small = limits.min_disk_free // SMALL_SHARE
        self._bytes = 0  # at the last look
        self._began = (0, 0)  # the bytes at the last look before the code began, and the moment at which it did
        self._is_low = False  # True if the caller was told that the disk has too little room, and it still has
        self._counting = threading.Lock()
        self._counted = threading.Event()

    def count(self) -> None:
        """Find out what is there already, the first time; leave that to another thread that is at it."""
        if self._counted.is_set() or not self._counting.acquire(blocking=False):
            return
        try:
            if not self._counted.is_set():
                self._take_count()
        finally:
            self._counting.release()  # where it failed, the next one tries

    def _take_count(self) -> None:
        found, limit = folder.usage(self._path, _BOUNDLESS), self._limit
        self._limit = FolderUsage(
            max(limit.bytes, found.bytes), max(limit.entries, found.entries), max(limit.levels, found.levels)
        )
        self._least_free = min(self._most_free, self._free(self._path) // 2)
        self._bytes = found.bytes
        self._begin()
        self._counted.set()

    def begin(self) -> None:
        """Note that code begins, or that it has ended: what is added is counted from here on.

        While the disk has too little room, it goes on to be counted from where it had enough, so that many runs add
        no more than one may. A sandbox that was opened on a nearly full disk has the whole limit once there is room.
        """
        free = self._free(self._path)
        self._least_free = max(self._least_free, min(self._most_free, free // 2))
        if free >= self._least_free:
            self._is_low = False
            self._begin()

    def _begin(self) -> None:
        self._began = self._bytes, folder.moment(self._path).ns

    def notice(self) -> str:
        """Return that the disk has too little room, and how much code here has added; '' if it has enough.

        The sentence comes once, until there is room again.
        """
        if self._is_low or self._free(self._path) >= self._least_free:
            return ""
        self._is_low = True
        added = self._added(folder.usage(self._path, self._limit, self._began[1]), Held())
        return (
            f"The disk of work_dir has less than {self._least_free:,} bytes free (min_disk_free); "
            f"this code has added {added:,} bytes."
        )

    def _added(self, found: FolderUsage, held: Held) -> int:
        """Return how many bytes were added since the code began: no more than the files that changed since then have.

        The last look before it may have been before the end of earlier code, so growth alone would be too much.
        """
        growth = found.bytes + held.bytes - self._began[0]
        return max(0, min(growth, found.changed + held.bytes))

    def refuse_excess(self) -> None:
        """Let no code run before what is there was counted, or while what code was killed for still lies there.

        It is told once; the next code may run to delete some of it, for as long as it adds nothing. Folders that are
        too deep to be counted are brought up.

        Raises:
            FileRejected: it does.
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
                f"No code was run: earlier code {excess}. What lay deeper is in {lifted[0]}{others} now."
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
        """Return whether there is still more than the limits allow; once there is not, nothing is excused any more."""
        found, limit = folder.usage(self._path, self._limit), self._limit
        if self._excused and found.bytes <= limit.bytes and found.entries <= limit.entries:
            self._excused = None
        return self._excused is not None

    def _is_countable(self) -> bool:
        """Return whether there is room on the disk, and all that is there can be counted."""
        return self._is_flat() and self._free(self._path) >= self._least_free

    def _is_flat(self) -> bool:
        return folder.usage(self._path, self._limit).levels <= self._limit.levels

    def excess(self, held: Held | None = None) -> str:
        """Return what is over a limit, in words that go on from 'it'; '' as a rule.

        `held` is what the sandbox has of files that are deleted already: they count like those that are there.
        """
        limit, held = self._limit, held or Held()
        if excused := self._excused:
            limit = FolderUsage(max(limit.bytes, excused.bytes), max(limit.entries, excused.entries), limit.levels)
        found = folder.usage(self._path, limit, self._began[1])
        self._bytes = found.bytes + held.bytes
        if found.bytes > limit.bytes:
            return f"filled work_dir beyond {limit.bytes:,} bytes (max_work_dir_bytes)"
        if found.bytes + held.bytes > limit.bytes:
            return f"filled work_dir beyond {limit.bytes:,} bytes with deleted files it holds open (max_work_dir_bytes)"
        if held.is_hidden:
            return "hid a process, and so what it holds of deleted files (PR_SET_DUMPABLE)"
        if found.entries > limit.entries:
            return f"filled work_dir beyond {limit.entries:,} entries (max_work_dir_entries)"
        if found.levels > limit.levels:
            return f"nested folders in work_dir more than {limit.levels:,} deep"
        if self._free(self._path) < self._least_free and (added := self._added(found, held)) > self._small:
            left = f"left less than {self._least_free:,} bytes free on the disk of work_dir (min_disk_free)"
            return f"added {added:,} bytes and {left}"
        return ""


class QuotaWatch:
    """Holds one sandbox to a quota, until closed. `clock` gives seconds."""

    def __init__(
        self,
        quota: Quota,
        brake: Brake,
        is_busy: Callable[[], bool],
        held: Callable[[], Held] = Held,
        clock: Callable[[], float] = time.monotonic,
        within: Rounds | None = None,
    ) -> None:
        self.quota = quota
        self._brake = brake
        self._is_busy = is_busy
        self._held = held
        self._clock = clock
        self._rounds = within or rounds()
        self._next_at = self._next_idle_at = -float("inf")
        self._has_counted = False
        self._hidden_looks, self._hidden_since = 0, 0.0
        self._rounds.add(self)

    def close(self) -> None:
        """Stop watching; no look is under way any more, unless it is this thread's own."""
        self._rounds.remove(self)

    def is_due(self) -> bool:
        """Return whether it is time for a look."""
        now = self._clock()
        return now >= self._next_at and (now >= self._next_idle_at or self._is_busy())

    def look(self) -> None:
        """Count what is there, the first time; then stop a guest that is over the quota."""
        started, is_first = self._clock(), not self._has_counted
        if is_first:
            self.quota.count()
            self._has_counted = True
        elif self._has_suspects() and self._excess():
            self._stop()
        ended = self._clock()
        pause = 0.0 if is_first else PAUSE_FACTOR * (ended - started)  # a first count has looked for no excess yet
        self._next_at = ended + max(0.9 * LOOK_EVERY, pause)  # a round may be a little early
        of_all = min(MOST_IDLE_SECONDS, PAUSE_FACTOR * self._rounds.cost)
        self._next_idle_at = ended + max(IDLE_LOOK_EVERY, of_all)

    def _stop(self) -> None:
        self._brake.order(Pause())
        excess = self._excess()
        if excess and self._has_suspects():
            self.quota.has_stopped_one = self.quota.is_shut = True
            self._brake.kill(f"it {excess}")
        else:
            self._brake.order(Resume())

    def _excess(self) -> str:
        """Count. While code runs, a process hidden for several looks is judged: before, it may be a fork of PID 1."""
        held = self._held()
        if not (held.is_hidden and self._hidden_looks):
            self._hidden_since = self._clock()
        self._hidden_looks = self._hidden_looks + 1 if held.is_hidden else 0
        is_long = self._hidden_looks >= HIDDEN_LOOKS and self._clock() - self._hidden_since >= HIDDEN_SECONDS
        return self.quota.excess(Held(held.bytes, is_hidden=is_long and self._is_busy()))

    def _has_suspects(self) -> bool:
        """Return whether there may be code to stop. After a kill there is none, until a run is let through again."""
        return self._is_busy() or not self.quota.is_shut
