"""Keeps a folder in sync with one in the guest (guest/files/ is the other side): work_dir, if the engine shares none.

Before a run, new and changed files here are copied in; after it, files that the code wrote or changed are copied out,
and deleted ones are deleted here. Regular files only. The guest's answers are bounded, and its names are checked before
anything is written.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import posixpath
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from agent_tools.errors import FileRejected, SandboxGone
from agent_tools.limits import Limits
from agent_tools.machine import folder
from agent_tools.machine.folder import Facts, Snapshot
from agent_tools.runtime.files.file_conversation import Conversation, FileServiceError, pieces
from agent_tools.runtime.files.guest_files import GuestFiles, whole

WORK_DIR = "."  # as the guest knows it
MAX_NAME = 4096  # characters of a relative name
MAX_PART = 255  # characters of a part of it: Linux allows as many bytes
SHOWN_NAMES = 5  # names listed of files that could not be fetched
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_OF_ONE_NAME = frozenset(
    (
        *(errno.EACCES, errno.EPERM, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY),
        *(errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ),
    )
)
"""Errors of the host for one name, beside which other files can be written."""
T = TypeVar("T")


class Mirror:
    """Syncs one guest's work_dir, or another folder, with its copy here. Call it with the session's lock.

    Files whose names `skips` accepts stay where they are.
    """

    def __init__(
        self,
        path: Path,
        owner: tuple[int, int],
        limits: Limits,
        files: GuestFiles,
        folder: str = WORK_DIR,
        skips: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._path = path
        self._folder = folder
        self._noun = "work_dir" if folder == WORK_DIR else folder
        self._skips = skips
        self._owner = owner
        self._limits = limits
        self.files = files
        self._here: Snapshot = {}
        self._there: Snapshot = {}
        self._may_fetch = 0  # bytes
        self.replaced: frozenset[str] = frozenset()
        """The names of files here that the last pull has replaced by new ones."""

    def push(self) -> None:
        """Copy new and changed files to the guest.

        Raises:
            FileRejected: it took too long, or there is no room in the sandbox.
        """
        self._exchange(self._push)

    def pull(self) -> str:
        """Copy new and changed files from the guest; return a text on files that failed, normally ''.

        Raises:
            FileRejected: it took too long, or the guest's files exceed the limits.
        """
        failed = self._exchange(self._pull)
        more = f" and {len(failed) - SHOWN_NAMES:,} more" if len(failed) > SHOWN_NAMES else ""
        return ", ".join(failed[:SHOWN_NAMES]) + more

    def succeed(self, last: Mirror) -> None:
        """Take over from the last guest's mirror; files that this guest lacks are sent again. Errors as for `pull`."""
        now, _ = self._exchange(self._list)
        self._here = {name: facts for name, facts in last._here.items() if name in now}
        self._there = {name: facts for name, facts in last._there.items() if name in now}

    def _exchange(self, work: Callable[[Conversation], T]) -> T:
        """Do work with a file server; do it again with another if that one ends, as when code has killed it."""
        deadline = time.monotonic() + self._limits.sync_timeout
        try:
            with contextlib.suppress(SandboxGone):
                return self._try(work, deadline)
            return self._try(work, deadline)
        except (OSError, SandboxGone) as exc:
            reason = getattr(exc, "strerror", None) or exc
            raise FileRejected(f"the files of {self._noun} could not be exchanged with the sandbox ({reason})") from exc

    def _try(self, work: Callable[[Conversation], T], deadline: float) -> T:
        with self.files.asking(self._noun) as talk:
            talk.deadline = deadline
            return work(talk)

    def _push(self, talk: Conversation) -> None:
        found = snapshot_of(self._path, self._limits, self._noun)
        now = {name: facts for name, facts in found.items() if is_plain_name(name) and not self._skips(name)}
        for name in self._here.keys() - now.keys():
            with contextlib.suppress(FileServiceError):  # it is gone there as well, or is a folder by now
                talk.ask({"op": "remove", "path": self._there_at(name), "recursive": False})
            del self._here[name]
            self._there.pop(name, None)
        for name, facts in now.items():
            if self._here.get(name) != facts:
                self._put(talk, name, facts)

    def _pull(self, talk: Conversation) -> list[str]:
        """Fetch files; return texts on those that could not be fetched: the name of each, with the reason."""
        now, unread = self._list(talk)
        changed = {name: facts for name, facts in now.items() if self._there.get(name) != facts}
        self._refuse_excess(now, changed)
        self.replaced = frozenset(changed.keys() & self._here.keys())
        for name in () if unread else self._there.keys() - now.keys():
            del self._there[name]
            if known := self._here.pop(name, None):
                folder.delete(self._path, name, known)
        failed = [f"folders ({unread:,} could not be read)"] if unread else []
        for name, facts in changed.items():
            if reason := self._get(talk, name, facts):
                failed.append(f"{name} ({reason})")
        return failed

    def _refuse_excess(self, now: Snapshot, changed: Snapshot) -> None:
        """Raise FileRejected before fetching if the total is too large; the fetched bytes are limited to this total."""
        most = self._limits.max_file_bytes
        total, needed = _total(now), _total({name: facts for name, facts in changed.items() if facts[0] <= most})
        if total > self._limits.max_work_dir_bytes:
            raise FileRejected(f"{self._noun} holds {total:,} bytes, more than max_work_dir_bytes")
        refuse_full_disk(self._path, needed, self._limits)
        self._may_fetch = self._limits.max_work_dir_bytes - (total - needed)

    def _put(self, talk: Conversation, name: str, facts: Facts) -> None:
        with folder.opened(self._path, name) as file:
            if file is None:  # gone since, or not a plain file
                return
            try:
                answer = talk.ask({"op": "put", "path": self._there_at(name)}, pieces(file))
            except FileServiceError as exc:
                raise FileRejected(f"{name} could not be brought into the sandbox: {exc.error.strerror}") from exc
        self._here[name], self._there[name] = facts, _facts(answer.get("facts"))

    def _get(self, talk: Conversation, name: str, facts: Facts) -> str:
        """Fetch a file; return why this failed, or ''. Either way it is not requested again until it changes."""
        if facts[0] > self._limits.max_file_bytes:
            self._there[name] = facts
            return f"it is larger than {self._limits.max_file_bytes:,} bytes (max_file_bytes)"
        most = min(self._limits.max_file_bytes, self._may_fetch)
        try:
            talk.ask({"op": "read", "path": self._there_at(name), "offset": 0, "most": most + 1})
            self._here[name] = self._written(name, talk.content(most))
        except FileServiceError as exc:
            if exc.error.errno == errno.ENOENT:  # it has been deleted since
                return ""
            self._there[name] = facts
            return str(exc.error.strerror)
        self._there[name] = facts
        self._may_fetch -= self._here[name][0]
        return ""

    def _written(self, name: str, chunks: Iterator[bytes]) -> Facts:
        """Write a file here; raise FileServiceError if none can have this name, after its content was read."""
        try:
            return folder.replace(self._path, name, chunks, self._owner)
        except OSError as exc:
            if exc.errno not in _OF_ONE_NAME:
                raise
            for _ in chunks:
                pass
            raise FileServiceError(OSError(exc.errno, f"{exc.strerror}, on the host", name)) from exc

    def _list(self, talk: Conversation) -> tuple[Snapshot, int]:
        """Return the files there, and how many entries could not be read, among them folders with files."""
        limit = self._limits.max_work_dir_entries
        head = talk.ask({"op": "list", "path": self._folder, "limit": limit})
        entries = head.get("entries")
        if not isinstance(entries, list) or len(entries) > limit:
            raise ValueError("a malformed list of files")
        if whole(head.get("total")) > limit:
            raise FileRejected(f"{self._noun} holds more than {limit:,} entries (max_work_dir_entries)")
        found = dict(_entry(entry) for entry in entries)
        if len(found) + _folders_of(found) > limit:
            raise ValueError("a list of files in more folders than there may be")
        return {name: facts for name, facts in found.items() if not self._skips(name)}, whole(head.get("unread", 0))

    def _there_at(self, name: str) -> str:
        return posixpath.join(self._folder, name)


def snapshot_of(path: Path, limits: Limits, noun: str) -> Snapshot:
    """Return the files below a folder.

    Raises:
        FileRejected: there are more entries than `max_work_dir_entries`.
    """
    found, is_all = folder.snapshot(path, limits.max_work_dir_entries)
    if not is_all:
        raise FileRejected(f"{noun} holds more than {limits.max_work_dir_entries:,} entries (max_work_dir_entries)")
    return found


def refuse_full_disk(path: Path, needed: int, limits: Limits) -> None:
    """Check that this many bytes may be written below a folder.

    Raises:
        FileRejected: they would leave too little disk free.
    """
    free = folder.free(path)
    if needed and free - needed < min(limits.min_disk_free, free // 2):
        raise FileRejected(f"fetching {needed:,} bytes would leave too little disk free (min_disk_free)")


def _entry(entry: object) -> tuple[str, Facts]:
    if not isinstance(entry, list) or len(entry) != 4 or not is_plain_name(entry[0]):
        raise ValueError("a malformed entry in the list of files")
    return entry[0], _facts(entry[1:])


def _facts(values: object) -> Facts:
    if not isinstance(values, list) or len(values) != 3:
        raise ValueError("malformed facts of a file")
    size, modified, inode = (whole(value) for value in values)
    return size, modified, inode


def _folders_of(names: Iterable[str]) -> int:
    """Count the folders that files of these names lie in. Raises ValueError: a file lies in a file."""
    count, before = 0, list[str]()
    ordered = sorted(names, key=lambda name: name.replace("/", "\0"))  # so that those of one folder follow each other
    if any(name.startswith(f"{file}/") for file, name in itertools.pairwise(ordered)):
        raise ValueError("a file in a file")
    for name in ordered:
        folders = name.split("/")[:-1]
        shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(folders, before))
        count += len(folders) - sum(1 for _ in shared)
        before = folders
    return count


def _total(files: Snapshot) -> int:
    return sum(size for size, _, _ in files.values())


def is_plain_name(name: object) -> bool:
    """Return whether this is a safe relative name: not too deep, not leading out, without control characters."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or _UNSAFE.search(name):
        return False
    if name.count("/") > folder.MAX_DEPTH:  # the guest lists none that are deeper, nor are they here
        return False
    return all(part not in ("", ".", "..") and len(part) <= MAX_PART for part in name.split("/"))


def fetched(mirror: Mirror, has_ended: Callable[[], bool]) -> str:
    """Pull the files of a run; return a text on files that could not be fetched, else ''."""
    missing = ""
    if not has_ended():
        try:
            missing = mirror.pull()
        except FileRejected as exc:
            missing = str(exc)
    if has_ended():
        return "files written by this run: the sandbox ended before they could be fetched"
    return f"changes to files: {missing}" if missing else ""
