"""Keeps work_dir in sync if the engine shares no folder with this machine (guest/files/ is the other side).

Before a run, new and changed files here are copied in; after it, files that the code wrote or changed are copied out,
and deleted ones are deleted here. Regular files only. The guest's answers are bounded, and its names are checked before
anything is written.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agent_tools.errors import FileRejected
from agent_tools.limits import Limits
from agent_tools.machine import folder
from agent_tools.machine.folder import Facts, Snapshot
from agent_tools.runtime.files.guest_files import CHUNK, Conversation
from agent_tools.text import neutralise

MAX_NAME = 4096  # characters of a relative name
MARKS_PER_ENTRY = 10  # commas and brackets in an answer for each allowed entry: each can become an object
SHOWN_NAMES = 5  # names listed of files that could not be fetched
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Mirror:
    """Syncs one guest's work_dir with its copy here. Call it with the session's lock.

    `connect` takes a limit on the parts of an answer and returns a connection to a fresh file server in the guest, or
    None if there is no guest.
    """

    def __init__(
        self, path: Path, owner: tuple[int, int], limits: Limits, connect: Callable[[int], Conversation | None]
    ) -> None:
        self._path = path
        self._owner = owner
        self._limits = limits
        self._connect = connect
        self._conversation: Conversation | None = None
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
        self._in_time(self._push)

    def pull(self) -> str:
        """Copy new and changed files from the guest; return a text on files that failed, normally ''.

        Raises:
            FileRejected: it took too long, or the guest's files exceed the limits.
        """
        reasons: dict[str, str] = {}
        self._in_time(lambda: self._pull(reasons))
        shown = [f"{name} ({reason})" for name, reason in list(reasons.items())[:SHOWN_NAMES]]
        return ", ".join(shown) + (f" and {len(reasons) - SHOWN_NAMES:,} more" if len(reasons) > SHOWN_NAMES else "")

    def close(self) -> None:
        """Close the connection to the file server; the next use gets a fresh one."""
        if self._conversation:
            self._conversation.close()
            self._conversation = None

    def _in_time(self, work: Callable[[], None]) -> None:
        """Run an exchange; retry with a fresh file server if the last one is gone, as after a kernel was killed."""
        deadline = time.monotonic() + self._limits.sync_timeout
        try:
            if self._conversation is not None:
                self._conversation.deadline = deadline
                with contextlib.suppress(ConnectionError):
                    return work()
                self.close()
            self._conversation = self._connect(MARKS_PER_ENTRY * (self._limits.max_work_dir_entries + 100))
            if self._conversation:
                self._conversation.deadline = deadline
            work()
        except (OSError, ValueError, struct.error) as exc:
            self.close()
            raise FileRejected(f"the files of work_dir could not be exchanged with the sandbox ({exc})") from exc
        except BaseException:
            self.close()
            raise

    def _push(self) -> None:
        now = {name: facts for name, facts in snapshot_of(self._path, self._limits).items() if is_plain_name(name)}
        for name in self._here.keys() - now.keys():
            self._ask({"op": "delete", "name": name})
            del self._here[name]
            self._there.pop(name, None)
        for name, facts in now.items():
            if self._here.get(name) != facts:
                self._put(name, facts)

    def _pull(self, reasons: dict[str, str]) -> None:
        now = self._list()
        changed = {name: facts for name, facts in now.items() if self._there.get(name) != facts}
        self._refuse_excess(now, changed)
        self.replaced = frozenset(changed.keys() & self._here.keys())
        for name in self._there.keys() - now.keys():
            del self._there[name]
            if known := self._here.pop(name, None):
                folder.delete(self._path, name, known)
        for name, facts in changed.items():
            if reason := self._get(name, facts):
                reasons[name] = reason

    def _refuse_excess(self, now: Snapshot, changed: Snapshot) -> None:
        """Raise FileRejected before fetching if the total is too large; the fetched bytes are limited to this total."""
        total, needed = _total(now), _total(changed)
        if total > self._limits.max_work_dir_bytes:
            raise FileRejected(f"work_dir holds {total:,} bytes, more than max_work_dir_bytes")
        refuse_full_disk(self._path, needed, self._limits)
        self._may_fetch = self._limits.max_work_dir_bytes - (total - needed)

    def _put(self, name: str, facts: Facts) -> None:
        with folder.opened(self._path, name) as file:
            if file is None:  # gone since, or not a plain file
                return
            size = os.fstat(file.fileno()).st_size
            self._talk().send_head({"op": "put", "name": name, "size": size})
            left = size
            while left:
                data = file.read(min(CHUNK, left)) or bytes(min(CHUNK, left))
                self._talk().send(data)
                left -= len(data)
        self._here[name], self._there[name] = facts, _facts(self._check(self._talk().read_head(), name).get("facts"))

    def _get(self, name: str, facts: Facts) -> str:
        """Fetch a file; return why this failed, or ''. Either way it is not requested again until it changes."""
        if facts[0] > self._limits.max_file_bytes:
            self._there[name] = facts
            return f"it is larger than {self._limits.max_file_bytes:,} bytes (max_file_bytes)"
        self._talk().send_head({"op": "get", "name": name})
        head = self._talk().read_head()
        if reason := _error(head):
            self._there[name] = facts
            return reason
        if head:  # else it has been deleted since
            size = _whole(head.get("size"), min(self._limits.max_file_bytes, self._may_fetch))
            self._may_fetch -= size
            self._here[name] = folder.replace(self._path, name, self._content(size), self._owner)
            self._there[name] = facts
        return ""

    def _content(self, size: int) -> Iterator[bytes]:
        while size:
            data = self._talk().receive(min(CHUNK, size))
            size -= len(data)
            yield data

    def _list(self) -> Snapshot:
        limit = self._limits.max_work_dir_entries
        head = self._ask({"op": "list", "limit": limit})
        entries = head.get("entries")
        if not isinstance(entries, list) or len(entries) > limit:
            raise ValueError("a malformed list of files")
        if _whole(head.get("total"), 2**53) > limit:
            raise FileRejected(f"work_dir holds more than {limit:,} entries (max_work_dir_entries)")
        found = dict(_entry(entry) for entry in entries)
        if len(found) + _folders_of(found) > limit:
            raise ValueError("a list of files in more folders than there may be")
        return found

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._talk().send_head(request)
        return self._check(self._talk().read_head(), str(request.get("name", "work_dir")))

    def _check(self, head: dict[str, Any], name: str) -> dict[str, Any]:
        if reason := _error(head):
            raise FileRejected(f"{name} could not be brought into the sandbox: {reason}")
        return head

    def _talk(self) -> Conversation:
        if self._conversation is None:
            raise OSError("the sandbox ended")
        return self._conversation


def snapshot_of(path: Path, limits: Limits) -> Snapshot:
    """Return the files below a folder.

    Raises:
        FileRejected: there are more entries than `max_work_dir_entries`.
    """
    found, is_all = folder.snapshot(path, limits.max_work_dir_entries)
    if not is_all:
        raise FileRejected(f"work_dir holds more than {limits.max_work_dir_entries:,} entries (max_work_dir_entries)")
    return found


def refuse_full_disk(path: Path, needed: int, limits: Limits) -> None:
    """Check that so many bytes may be written below a folder.

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
    size, modified, inode = (_whole(value, 2**63) for value in values)
    return size, modified, inode


def _error(head: Mapping[str, Any]) -> str:
    """Return the reason in an answer that reports a failure, else ''; bounded, and safe to show."""
    reason = head.get("error", "")
    if not isinstance(reason, str):
        raise ValueError("a malformed error")
    return neutralise(reason[:200])


def _folders_of(names: Iterable[str]) -> int:
    """Count the folders that files of these names lie in."""
    count, before = 0, list[str]()
    for name in sorted(
        names, key=lambda name: name.replace("/", "\0")
    ):  # so that those of one folder follow each other
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
    return all(part not in ("", ".", "..") for part in name.split("/"))


def _whole(value: object, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError("a number out of range")
    return value


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
