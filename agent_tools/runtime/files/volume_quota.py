"""Enforces the quota of a writable volume, which several sandboxes share.

Theory of operation
    The host counts the folder periodically, once for all sandboxes of this process that have it, and without following
    a link. While it is within its quota, the host notes how much each sandbox has written to anything. Once it is over,
    the sandboxes that have written since are paused, the folder is counted again, and they are ended: a killed kernel
    alone would keep the mount, and write on in its next run.

    From then on the folder may only shrink. If it grows again, every sandbox that may write to it is ended, since code
    may hide what it writes, and new ones get it read-only until it is back where it was. So a volume exceeds its quota
    by no more than its sandboxes write within one check, twice.

    What is there at the beginning may stay, and what another program adds while the volume is within its quota.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent_tools.engines.volumes import Volume
from agent_tools.errors import InvalidParams
from agent_tools.guest.wire.words import Pause, Resume
from agent_tools.limits import size_text
from agent_tools.machine import folder
from agent_tools.machine.folder import MAX_LEVELS, FolderUsage
from agent_tools.machine.path_walk import identity
from agent_tools.machine.rounds import Rounds, rounds
from agent_tools.runtime.files.quota import Brake, CheckTimes

MAX_ENTRIES = 100_000  # files and folders that a writable volume may come to hold
MAX_COUNTED = 1_000_000  # entries beyond which a folder cannot be watched
_ALL = FolderUsage(2**63, MAX_COUNTED, MAX_LEVELS)
UNNOTICED = 64 * 1024  # bytes: a sandbox that has written fewer is not what fills a volume


@dataclass(eq=False)
class VolumeUser:
    """A sandbox that may write to a volume.

    Attributes:
        brake: pauses and resumes it; `kill` ends it with all that runs in it.
        is_busy: returns whether code or a command runs.
        writes: returns the bytes that it has written to anything, and whether that is all of them.
        deleted: returns the bytes of deleted files that it holds open on a device.
        written: the bytes that it had written when the volume was within its quota last.
    """

    brake: Brake
    is_busy: Callable[[], bool]
    writes: Callable[[], tuple[int, bool]]
    deleted: Callable[[int], int]
    written: int = 0


class VolumeQuota:
    """The quota of one writable volume. Thread-safe.

    Raises:
        InvalidParams: the folder has more entries than can be watched.
    """

    def __init__(self, volume: Volume, within: Rounds | None = None) -> None:
        self.name = volume.name
        self._path = Path(volume.source)
        self._device = identity(self._path)[0]
        self._rounds = within or rounds()
        self._times = CheckTimes(self._rounds, time.monotonic)
        self._quota = FolderUsage(volume.max_bytes, MAX_ENTRIES, MAX_LEVELS)
        found = folder.usage(self._path, _ALL)
        if found.entries > MAX_COUNTED or found.levels > MAX_LEVELS:
            raise InvalidParams(
                f"Volume {volume.name}: {self._path} has more than {MAX_COUNTED:,} entries, or folders nested more "
                f"than {MAX_LEVELS} deep, so its size cannot be watched. Make it read-only (ro), or give another one."
            )
        self._ceiling = self._above_quota(found)
        """What the folder may hold now: its quota, or what was there before, if that is more."""
        self._may_only_shrink = self._is_full = False
        self._bytes = found.bytes  # when it was within its quota last
        self._users: dict[int, VolumeUser] = {}  # by id(); without a lock, since a finalizer may end one anywhere

    def join(self, user: VolumeUser) -> Callable[[], None]:
        """Watch a sandbox; return the function that ends this."""
        user.written, _ = user.writes()
        self._users[id(user)] = user
        self._rounds.add(self)
        return lambda: self._leave(user)

    def _leave(self, user: VolumeUser) -> None:
        self._users.pop(id(user), None)
        while not self._users:
            self._rounds.remove(self)
            if not self._users:
                return
            self._rounds.add(self)  # one has joined meanwhile, and may have left again

    def _present(self) -> Sequence[VolumeUser]:
        return tuple(self._users.copy().values())

    def is_full(self) -> bool:
        """Return whether new sandboxes may only read it."""
        if self._is_full:
            self._note(self._count())
        return self._is_full

    def is_due(self) -> bool:
        """Return whether a check is due."""
        return self._times.is_due(lambda: any(each.is_busy() for each in self._present()))

    def check(self) -> None:
        """Count the folder, and end the sandboxes that fill it beyond its quota."""
        started, users = time.monotonic(), self._present()
        found = self._count(users)
        self._times.checked(started)  # without the time that the end of sandboxes takes
        if self._note(found):
            self._stop(users)
        elif self._ceiling == self._quota:
            self._bytes = found.bytes
            for user in users:
                user.written, _ = user.writes()

    def _stop(self, users: Sequence[VolumeUser]) -> None:
        found = self._count(users, _ALL)
        has_many = found.entries > self._ceiling.entries or found.levels > MAX_LEVELS  # which nobody need write
        suspects = users if self._may_only_shrink or has_many else _suspects(users, found.bytes - self._bytes)
        for user in suspects:
            user.brake.order(Pause())
        try:
            found = self._count(users, _ALL)
        except BaseException:
            for user in suspects:
                user.brake.order(Resume())
            raise
        if not self._note(found):
            for user in suspects:
                user.brake.order(Resume())
            return
        if not suspects:  # another program of this machine has written
            self._ceiling, self._bytes = self._above_quota(found), found.bytes
            return
        self._is_full = self._may_only_shrink or found.levels > MAX_LEVELS
        is_first, self._may_only_shrink = not self._may_only_shrink, True
        for user in suspects:
            user.brake.kill(self._reason())
        if is_first:  # counted last: a pause takes a moment to act, and what is written until then is no second excess
            self._ceiling = self._above_quota(self._count(self._present(), _ALL))

    def _reason(self) -> str:
        what = f"{size_text(self._quota.bytes)} or {MAX_ENTRIES:,} entries, its quota"
        then = "It is read-only from now on" if self._is_full else "It may only shrink now"
        return f"it filled the volume {self.name} beyond {what}. {then}, until files in it are deleted"

    def _count(self, users: Sequence[VolumeUser] = (), most: FolderUsage | None = None) -> FolderUsage:
        found = folder.usage(self._path, most or self._ceiling)
        return replace(found, bytes=found.bytes + sum(user.deleted(self._device) for user in users))

    def _note(self, found: FolderUsage) -> bool:
        """Note a count; return whether it is over the ceiling."""
        quota = self._quota
        if found.bytes <= quota.bytes and found.entries <= quota.entries and found.levels <= MAX_LEVELS:
            self._ceiling, self._may_only_shrink, self._is_full = quota, False, False
            return False
        ceiling = self._ceiling
        is_over = found.bytes > ceiling.bytes or found.entries > ceiling.entries or found.levels > MAX_LEVELS
        if not is_over:
            self._ceiling, self._is_full = self._above_quota(found), False
        return is_over

    def _above_quota(self, found: FolderUsage) -> FolderUsage:
        return FolderUsage(max(self._quota.bytes, found.bytes), max(self._quota.entries, found.entries), MAX_LEVELS)


def _suspects(users: Sequence[VolumeUser], growth: int) -> Sequence[VolumeUser]:
    """Return the sandboxes that have written their part of a growth; if there is none, all whose writes are unknown."""
    now = [(user, *user.writes()) for user in users]
    least = max(UNNOTICED, growth // max(1, len(users)))
    seen = [user for user, written, _ in now if written >= user.written + least]
    return seen or [user for user, _, is_all in now if not is_all]


_by_process: dict[int, dict[tuple[str, int], VolumeQuota]] = {}  # a forked child has its own


def quota_of(volume: Volume) -> VolumeQuota:
    """Return the quota of a writable volume, the same for all sandboxes of this process."""
    known = _by_process.setdefault(os.getpid(), {})
    key = volume.source, volume.max_bytes
    return known.get(key) or known.setdefault(key, VolumeQuota(volume))
