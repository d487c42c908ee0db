"""Access to the files of containers by names relative to work_dir. Links that code made are never followed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO

from agent_tools.containers.containers import Containers
from agent_tools.containers.failures import FileNotWritten, FileTooLarge, StorageFull
from agent_tools.containers.records import ContainerRecord
from agent_tools.containers.rows import Rows
from agent_tools.machine import folder
from agent_tools.results.files import FileInfo, FileKind

CHUNK_BYTES = 1 << 20
MAX_LISTED = 10_000


class Contents:
    """Reads and writes files of containers on the host, whether the container has a sandbox or not."""

    def __init__(self, containers: Containers[Any], rows: Rows) -> None:
        self._containers = containers
        self._rows = rows

    def put(self, container_id: str, name: str, content: BinaryIO) -> None:
        """Write a file, or replace the one of that name.

        Raises:
            ContainersError: it is too large, no storage is left, or the file cannot be written.
        """
        path, config = self._containers.folder(container_id), self._containers.config
        room, left = config.max_container_bytes - self._containers.measure(container_id), self._left(container_id)
        reasons = {config.max_upload_bytes: None, room: _beyond_container(room), left: _beyond_share(left)}
        limit = min(reasons)
        if content.seek(0, os.SEEK_END) > max(0, limit):
            raise reasons[limit] or FileTooLarge(f"The file is larger than {limit:,} bytes.")
        content.seek(0)
        try:
            folder.replace(
                path, name, iter(partial(content.read, CHUNK_BYTES), b""), self._containers.runtime.guest(path).host_ids
            )
        except (OSError, ValueError) as exc:
            reason = os.strerror(getattr(exc, "errno", None) or 0).lower() if isinstance(exc, OSError) else "a bad name"
            raise FileNotWritten(f"{name[:200]} cannot be written: {reason}.") from exc
        self._containers.measure(container_id)

    def listed(self, container_id: str) -> tuple[folder.Snapshot, bool]:
        """Return the files among the first `MAX_LISTED` entries, and whether these are all.

        A file whose name is not UTF-8 is left out, since no request can name it.
        """
        path = self._containers.folder(container_id)
        found, is_whole = folder.snapshot(path, MAX_LISTED)
        unnamed = {name for name in found if "\\" in name and not os.path.lexists(path / name)}
        return {name: facts for name, facts in found.items() if name not in unnamed}, is_whole and not unnamed

    @contextmanager
    def opened(self, container_id: str, name: str) -> Iterator[BinaryIO | None]:
        """Open a file for reading; None if there is none. The name is untrusted."""
        if not _is_inside(name):
            yield None
            return
        with folder.opened(self._containers.folder(container_id), name) as content:
            yield content

    def entries(self, container_id: str, name: str) -> list[FileInfo] | None:
        """Return the entries of a folder by name, '' for work_dir; None if there is none, or a link leads there.

        Raises:
            FileTooLarge: it has more than `MAX_LISTED` entries.
        """
        if not (name == "" or _is_inside(name)):
            return None
        found = []
        try:
            path = self._containers.folder(container_id)
            with folder.open_parent(path, f"{name}/any" if name else "any") as (fd, _), os.scandir(fd) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        found.append(_info(entry.name, name, entry.stat(follow_symlinks=False)))
                    if len(found) > MAX_LISTED:
                        raise FileTooLarge(f"The folder has more than {MAX_LISTED:,} entries.")
        except OSError:
            return None
        return sorted(found, key=lambda each: each.name)

    def stat(self, container_id: str, name: str) -> FileInfo | None:
        """Return a file or folder, or a link itself; None if there is none."""
        if not _is_inside(name):
            return None
        try:
            last, found = self._facts(container_id, name)
        except OSError:
            return None
        return _info(last, name.rpartition("/")[0], found)

    def is_gone(self, container_id: str, name: str) -> bool:
        """Return whether there certainly is nothing of this name, where it might only be unreadable now."""
        try:
            self._facts(container_id, name)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            pass
        return False

    def _facts(self, container_id: str, name: str) -> tuple[str, os.stat_result]:
        """Return the last part of a name, and the facts of what it names, a link itself. Raises OSError."""
        with folder.open_parent(self._containers.folder(container_id), name) as (fd, last):
            return last, os.stat(last, dir_fd=fd, follow_symlinks=False)

    def delete(self, container_id: str, name: str) -> None:
        """Delete a file; a missing file is not an error."""
        with self.opened(container_id, name) as content:
            known = folder.facts_of(content) if content else None
        if known:
            folder.delete(self._containers.folder(container_id), name, known)
        self._containers.measure(container_id)

    def _left(self, container_id: str) -> int:
        """Return the bytes that the container's owner may still put into containers, if the disk has room."""
        container = self._rows.get(ContainerRecord, container_id)
        self._containers.shares.check_disk()
        return self._containers.shares.containers_left(container.owner) if container else 0


def _is_inside(name: str) -> bool:
    return bool(name) and not name.startswith("/") and ".." not in name.split("/") and "\0" not in name


def _info(name: str, parent: str, found: os.stat_result) -> FileInfo:
    kinds: dict[int, FileKind] = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
    kind = kinds.get(stat.S_IFMT(found.st_mode), "other")
    path = f"{parent}/{name}" if parent else name
    return FileInfo(name, path, kind, found.st_size, found.st_mtime, stat.S_IMODE(found.st_mode))


def _beyond_container(room: int) -> FileTooLarge:
    grow = f"The container may grow by {max(0, room):,} bytes more (max_container_bytes)"
    return FileTooLarge(f"{grow}; delete files in it, or let code do that.")


def _beyond_share(left: int) -> StorageFull:
    return StorageFull(f"Files in your containers may grow by {left:,} bytes; delete containers, or files in them.")
