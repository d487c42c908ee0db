"""The files in containers by their names, which are relative to work_dir. No link that code made is ever followed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from agent_tools.containers.containers import Containers
from agent_tools.containers.failures import ContainersError, FileNotWritten, FileTooLarge, StorageFull
from agent_tools.containers.records import Container, Rows
from agent_tools.machine import folder

CHUNK = 1 << 20
MAX_LISTED = 10_000


class Contents:
    """Reads and writes them on the host, whether the container has a sandbox or not."""

    def __init__(self, containers: Containers[Any], rows: Rows) -> None:
        self._containers = containers
        self._rows = rows

    def put(self, container_id: str, name: str, content: BinaryIO) -> None:
        """Write a file; one of that name is replaced.

        Raises:
            ContainersError: it is too large, no storage is left, or the file cannot be written.
        """
        path, config = self._containers.folder(container_id), self._containers.config
        room, left = config.max_container_bytes - self._containers.measure(container_id), self._left(container_id)
        reasons = {config.max_upload_bytes: None, room: _beyond_container(room), left: _beyond_share(left)}
        limit = min(reasons)
        chunks = bounded(content, limit, reasons[limit])
        try:
            folder.replace(path, name, chunks, self._containers.runtime.guest(path).outside)
        except (OSError, ValueError) as exc:
            reason = os.strerror(getattr(exc, "errno", None) or 0).lower() if isinstance(exc, OSError) else "a bad name"
            raise FileNotWritten(f"{name[:200]} cannot be written: {reason}.") from exc
        self._containers.measure(container_id)

    def listed(self, container_id: str) -> tuple[folder.Snapshot, bool]:
        """Return the files among the first `MAX_LISTED` entries, and whether there are no more entries."""
        return folder.snapshot(self._containers.folder(container_id), MAX_LISTED)

    @contextmanager
    def opened(self, container_id: str, name: str) -> Iterator[BinaryIO | None]:
        """Open a file for reading; None if there is none. The name may be anything that anybody wrote."""
        if not name or name.startswith("/") or ".." in name.split("/") or "\0" in name:
            yield None
            return
        with folder.opened(self._containers.folder(container_id), name) as content:
            yield content

    def delete(self, container_id: str, name: str) -> None:
        """Delete a file; one that is not there is no error."""
        with self.opened(container_id, name) as content:
            known = folder.facts_of(content) if content else None
        if known:
            folder.delete(self._containers.folder(container_id), name, known)
        self._containers.measure(container_id)

    def _left(self, container_id: str) -> int:
        """Return the bytes that the container's owner may still put into containers, if the disk has room."""
        container = self._rows.get(Container, container_id)
        self._containers.shares.check_disk()
        return self._containers.shares.containers_left(container.owner) if container else 0


def _beyond_container(room: int) -> FileTooLarge:
    grow = f"The container may grow by {max(0, room):,} bytes more (max_container_bytes)"
    return FileTooLarge(f"{grow}; delete files in it, or let code do that.")


def _beyond_share(left: int) -> StorageFull:
    return StorageFull(f"Files in your containers may grow by {left:,} bytes; delete containers, or files in them.")


def bounded(content: BinaryIO, limit: int, too_large: ContainersError | None = None) -> Iterator[bytes]:
    """Yield content in chunks, up to so many bytes.

    Raises:
        ContainersError: there are more.
    """
    left = limit = max(0, limit)
    while chunk := content.read(CHUNK):
        left -= len(chunk)
        if left < 0:
            raise too_large or FileTooLarge(f"The file is larger than {limit:,} bytes.")
        yield chunk
