"""Files: what clients upload, and what lies in containers, each under an id."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from agent_tools.gateway import store as tables
from agent_tools.gateway.containers.containers import Containers
from agent_tools.gateway.ids import new_id
from agent_tools.gateway.requests.failures import ApiError, full, invalid, not_found
from agent_tools.gateway.store import Row, Store
from agent_tools.gateway.sweeping import failures
from agent_tools.runtime.files import folder
from agent_tools.runtime.files.folder import safe_name

CHUNK = 1 << 20
MAX_LISTED = 10_000
SHOWN_DIR = "/mnt/data"


class Uploads:
    """Files that clients uploaded, by id; kept for `retention` seconds."""

    def __init__(self, containers: Containers, store: Store) -> None:
        self._config = containers.config
        self._shares = containers.shares
        self._lock = threading.Lock()
        self._store = store
        self._dir = self._config.data_dir / "uploads"
        self._dir.mkdir(parents=True, exist_ok=True, mode=0o700)

    def add(self, owner: str, filename: str, purpose: str, content: BinaryIO) -> Row:
        """Keep a file.

        Raises:
            ApiError: it is too large, there are too many, or they are too large in all; 507.
        """
        self._shares.check_disk(content.seek(0, os.SEEK_END))
        content.seek(0)
        id_ = new_id("file")
        path = self._dir / id_
        try:
            with open(path, "xb") as kept:
                size = _copy(content, kept, self._config.max_upload_bytes)
            row = {
                "id": id_,
                "owner": owner,
                "created_at": time.time(),
                "filename": safe_name(filename),
                "bytes": size,
                "purpose": purpose[:32],
            }
            with self._lock:  # two at once could each find room for one
                self._shares.uploads_left(owner, size)
                self._store.add(tables.uploads, row)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return row

    def find(self, owner: str, id_: str) -> Row:
        """A file of this owner.

        Raises:
            ApiError: 404.
        """
        row = self._store.get(tables.uploads, id_, owner=owner)
        if row is None:
            raise not_found("file", id_)
        return row

    def path(self, row: Row) -> Path:
        """Where its content is."""
        return self._dir / str(row["id"])

    def all_of(self, owner: str) -> list[Row]:
        """All files of an owner, oldest first."""
        return self._store.find(tables.uploads, owner=owner)

    def delete(self, id_: str) -> None:
        """Forget a file."""
        (self._dir / id_).unlink(missing_ok=True)
        self._store.delete(tables.uploads, id=id_)

    def sweep(self) -> int:
        """Forget what is older than it may be; how many files that failed for."""
        old = self._store.older_than(tables.uploads, self._config.retention)
        return sum(failures(partial(self.delete, id_)) for id_ in old)


class ContainerFiles:
    """The files in containers. What code wrote gets an id when it is first seen."""

    def __init__(self, containers: Containers, store: Store, uploads: Uploads) -> None:
        self._containers = containers
        self._store = store
        self._uploads = uploads

    def put(self, container_id: str, filename: str, content: BinaryIO) -> Row:
        """Write a file; one of that name is replaced.

        Raises:
            ApiError: it is too large, or cannot be written.
        """
        path, config, name = self._containers.folder(container_id), self._containers.config, safe_name(filename)
        limit = min(config.max_upload_bytes, config.max_container_bytes - self._containers.measure(container_id))
        left = self._left(container_id)
        chunks = _bounded(content, limit) if limit <= left else _bounded(content, left, _beyond_share(left))
        try:
            folder.replace(path, name, chunks, self._containers.runtime.engine.guest(path).outside)
        except OSError as exc:
            raise invalid(f"{name} cannot be written: {os.strerror(exc.errno or 0).lower()}.", "file") from exc
        self._containers.measure(container_id)
        self._containers.touch(container_id)
        self._store.delete(tables.container_files, container_id=container_id, path=name)
        return self._named(container_id, name, "user")

    def _left(self, container_id: str) -> int:
        """What the container's owner may still put into containers, as far as the disk goes, too."""
        row = self._store.get(tables.containers, container_id, "owner")
        self._containers.shares.check_disk()
        return self._containers.shares.containers_left(row["owner"]) if row else 0

    def put_upload(self, owner: str, container_id: str, file_id: str) -> Row:
        """Copy an uploaded file in."""
        row = self._uploads.find(owner, file_id)
        with open(self._uploads.path(row), "rb") as content:
            return self.put(container_id, str(row["filename"]), content)

    def listed(self, container_id: str) -> list[tuple[Row, int]]:
        """The files that are there, oldest id first, with their sizes in bytes."""
        found, _ = folder.snapshot(self._containers.folder(container_id), MAX_LISTED)
        known = {row["path"]: row for row in self._store.find(tables.container_files, container_id=container_id)}
        for name in sorted(found.keys() - known.keys()):
            known[name] = self._named(container_id, name, "assistant")
        return [(row, found[name][0]) for name, row in known.items() if name in found]

    def named(self, container_id: str, name: str) -> Row | None:
        """The file of this name, if it is there; the name may be anything a model wrote."""
        if not name or name.startswith("/") or ".." in name.split("/") or "\0" in name:
            return None
        with folder.opened(self._containers.folder(container_id), name) as file:
            if file is None:
                return None
        return self._named(container_id, name, "assistant")

    @contextmanager
    def opened(self, container_id: str, file_id: str) -> Iterator[tuple[Row, BinaryIO]]:
        """A file and its content.

        Raises:
            ApiError: 404.
        """
        row = self._store.get(tables.container_files, file_id, container_id=container_id)
        if row is None:
            raise not_found("container file", file_id)
        with folder.opened(self._containers.folder(container_id), str(row["path"])) as file:
            if file is None:
                raise not_found("container file", file_id)
            self._containers.touch(container_id)
            yield row, file

    def delete(self, container_id: str, file_id: str) -> None:
        """Delete a file.

        Raises:
            ApiError: 404.
        """
        with self.opened(container_id, file_id) as (row, _):
            path = self._containers.folder(container_id)
            if known := folder.snapshot(path, MAX_LISTED)[0].get(str(row["path"])):
                folder.delete(path, str(row["path"]), known)
        self._containers.measure(container_id)
        self._store.delete(tables.container_files, id=file_id)

    def _named(self, container_id: str, name: str, source: str) -> Row:
        known = self._store.find(tables.container_files, container_id=container_id, path=name)
        if known:
            return known[0]
        row = {
            "id": new_id("cfile"),
            "container_id": container_id,
            "created_at": time.time(),
            "path": name,
            "source": source,
        }
        if not self._store.add_if_new(tables.container_files, row):  # another request has just named it
            return self._named(container_id, name, source)
        return row


def _beyond_share(left: int) -> ApiError:
    return full(f"Files in your containers may grow by {left:,} bytes; delete containers, or files in them.")


def _bounded(content: BinaryIO, limit: int, too_large: ApiError | None = None) -> Iterator[bytes]:
    left = limit = max(0, limit)
    while chunk := content.read(CHUNK):
        left -= len(chunk)
        if left < 0:
            message = f"The file is larger than {limit:,} bytes."
            raise too_large or ApiError(413, message, param="file", code="file_too_large")
        yield chunk


def _copy(content: BinaryIO, kept: BinaryIO, limit: int) -> int:
    for chunk in _bounded(content, limit):
        kept.write(chunk)
    return kept.tell()
