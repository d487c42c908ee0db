"""Keeps work_dir the same on both sides of an engine that shares no folder with this machine (guest/files.py serves).

Before a run, what is new or changed here goes in; after it, what the code wrote, changed or deleted comes out. Regular
files only. What the guest says is bounded before it is held, and its names are checked before anything is written.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agent_tools.errors import FileRejected
from agent_tools.runtime import folder
from agent_tools.runtime.folder import Snapshot
from agent_tools.settings import Limits

CHUNK = 256 * 1024
MAX_HEAD_BYTES = 32 * 1024 * 1024
MAX_NAME = 1024  # characters of a relative name


class Mirror:
    """One guest's work_dir and its likeness here. Used by the thread whose turn it is.

    `connect` gives a socket to a fresh file server in the guest, None when there is none to be had.
    """

    def __init__(
        self, path: Path, owner: tuple[int, int], limits: Limits, connect: Callable[[], socket.socket | None]
    ) -> None:
        self._path = path
        self._owner = owner
        self._limits = limits
        self._connect = connect
        self._socket: socket.socket | None = None
        self._deadline = 0.0
        self._here: Snapshot = {}
        self._there: Snapshot = {}

    def push(self) -> None:
        """Bring the guest's folder up to what is here.

        Raises:
            FileRejected: it could not be done in time, or there is no room in there.
        """
        with self._in_time():
            now = self._snapshot()
            for name in self._here.keys() - now.keys():
                self._ask({"op": "delete", "name": name})
            for name, facts in now.items():
                if self._here.get(name) != facts:
                    self._put(name)
            if now != self._here:
                self._here, self._there = now, self._list()

    def pull(self) -> None:
        """Bring what is here up to the guest's folder.

        Raises:
            FileRejected: it could not be done in time, or what the code wrote cannot be taken.
        """
        with self._in_time():
            now = self._list()
            total = sum(size for size, _, _ in now.values())
            if total > self._limits.max_work_dir_bytes:
                raise FileRejected(f"work_dir holds {total:,} bytes, more than max_work_dir_bytes")
            for name in self._there.keys() - now.keys():
                folder.delete(self._path, name)
            for name, facts in now.items():
                if self._there.get(name) != facts:
                    self._get(name)
            if now != self._there:
                self._there, self._here = now, self._snapshot()

    def close(self) -> None:
        """Hang up on the file server; the next use gets a fresh one."""
        if self._socket:
            self._socket.close()
            self._socket = None

    @contextlib.contextmanager
    def _in_time(self) -> Iterator[None]:
        self._deadline = time.monotonic() + self._limits.sync_timeout
        if self._socket is None:
            self._socket = self._connect()
        try:
            yield
        except (OSError, ValueError, struct.error) as exc:
            self.close()
            raise FileRejected(f"the files of work_dir could not be exchanged with the sandbox ({exc})") from exc
        except BaseException:
            self.close()
            raise

    def _put(self, name: str) -> None:
        with folder.opened(self._path, name) as file:
            if file is None:  # gone since, or not a plain file
                return
            size = os.fstat(file.fileno()).st_size
            self._send_head({"op": "put", "name": name, "size": size})
            left = size
            while left:
                data = file.read(min(CHUNK, left)) or bytes(min(CHUNK, left))
                self._send(data)
                left -= len(data)
        self._check(self._read_head(), name)

    def _get(self, name: str) -> None:
        self._send_head({"op": "get", "name": name})
        head = self._read_head()
        if "error" in head:  # gone since
            return
        size = _whole(head.get("size"), self._limits.max_file_bytes)
        folder.replace(self._path, name, self._content(size), self._owner)

    def _content(self, size: int) -> Iterator[bytes]:
        while size:
            data = self._receive(min(CHUNK, size))
            size -= len(data)
            yield data

    def _snapshot(self) -> Snapshot:
        limit = self._limits.max_work_dir_entries
        found, is_all = folder.snapshot(self._path, limit)
        if not is_all:
            raise FileRejected(f"work_dir holds more than {limit:,} entries (max_work_dir_entries)")
        return {name: facts for name, facts in found.items() if is_plain_name(name)}

    def _list(self) -> Snapshot:
        limit = self._limits.max_work_dir_entries
        head = self._ask({"op": "list", "limit": limit})
        entries = head.get("entries")
        if not isinstance(entries, list) or len(entries) > limit:
            raise ValueError("a malformed list of files")
        if _whole(head.get("total"), 2**53) > limit:
            raise FileRejected(f"work_dir holds more than {limit:,} entries (max_work_dir_entries)")
        return dict(_entry(entry) for entry in entries)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._send_head(request)
        head = self._read_head()
        self._check(head, str(request.get("name", "")))
        return head

    def _check(self, head: dict[str, Any], name: str) -> None:
        if "error" in head:
            raise FileRejected(f"{name} could not be brought into the sandbox: {str(head['error'])[:200]}")

    def _send_head(self, head: dict[str, Any]) -> None:
        data = json.dumps(head).encode()
        self._send(struct.pack(">I", len(data)) + data)

    def _read_head(self) -> dict[str, Any]:
        size = struct.unpack(">I", self._receive_all(4))[0]
        if size > MAX_HEAD_BYTES:
            raise ValueError("an answer that is too long")
        try:
            head = json.loads(self._receive_all(size))
        except RecursionError as exc:
            raise ValueError("an answer that is nested too deep") from exc
        if not isinstance(head, dict):
            raise ValueError("an answer that is not an object")
        return head

    def _receive_all(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            data += self._receive(min(CHUNK, size - len(data)))
        return bytes(data)

    def _receive(self, most: int) -> bytes:
        data = self._ready_socket().recv(most)
        if not data:
            raise OSError("the sandbox hung up")
        return data

    def _send(self, data: bytes) -> None:
        self._ready_socket().sendall(data)

    def _ready_socket(self) -> socket.socket:
        if self._socket is None:
            raise OSError("the sandbox ended")
        self._socket.settimeout(max(0.001, self._deadline - time.monotonic()))
        return self._socket


def _entry(entry: Any) -> tuple[str, tuple[int, int, int]]:
    name, *facts = entry
    if not is_plain_name(name) or len(facts) != 3:
        raise ValueError("a malformed entry in the list of files")
    size, modified, inode = (_whole(fact, 2**63) for fact in facts)
    return name, (size, modified, inode)


def is_plain_name(name: object) -> bool:
    """Whether this is a relative name without a way out."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        return False
    return (
        all(part not in ("", ".", "..") for part in Path(name).parts) and not name.startswith("/") and "//" not in name
    )


def _whole(value: object, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError("a number out of range")
    return value
