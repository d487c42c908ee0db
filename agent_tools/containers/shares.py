"""Quotas of each owner for containers and uploads, and the free disk space for all."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agent_tools.containers.config import ContainersConfig
from agent_tools.containers.container_locks import ContainerLocks
from agent_tools.containers.failures import DiskFull, StorageFull
from agent_tools.containers.records import ContainerRecord, Upload
from agent_tools.containers.rows import Rows
from agent_tools.machine import folder

_WITH_FILES = ["active", "expiring", "deleting"]  # statuses of containers whose files are still there


class Shares:
    """Checks quotas before anything is stored. Thread-safe. `free` returns the free bytes of a path's disk.

    Attributes:
        pending: returns the bytes that an owner's incomplete uploads will have; they count as uploaded.
        reserving: locked by owner while room for a file is looked for and taken: two at once could find the same.
    """

    def __init__(self, config: ContainersConfig, rows: Rows, free: Callable[[Path], int] = folder.free) -> None:
        self.free = free
        self.pending: Callable[[str], int] = lambda _: 0
        self.reserving = ContainerLocks()
        self._config = config
        self._rows = rows
        self._lock = threading.Lock()
        self._arriving: Counter[str] = Counter()  # bytes of uploads under way, by owner or by incomplete upload

    def check_disk(self, needed: int = 0) -> None:
        """Check that the disk of `data_dir` has room for this many more bytes.

        Raises:
            DiskFull: it does not.
        """
        if self.free(self._config.data_dir) - needed < self._config.min_disk_free:
            raise DiskFull("The gateway's disk is nearly full (min_disk_free), so nothing more is kept: try later.")

    def uploads_left(self, owner: str, needed: int = 1) -> int:
        """Return how many bytes an owner may still upload; at least the bytes needed.

        Raises:
            StorageFull: the owner has the maximum of files, or fewer bytes are left.
        """
        mend = "Delete some of them (DELETE /v1/files/{id})."
        number, size = self._rows.amount(Upload, owner=owner)
        if number >= self._config.max_uploads:
            raise StorageFull(f"You have {self._config.max_uploads:,} files, the maximum for a key. {mend}")
        size += self.pending(owner)
        left = self._config.max_uploads_bytes - size
        if left < needed:
            most = self._config.max_uploads_bytes
            raise StorageFull(f"Your files and uploads take {size:,} bytes of the {most:,} that they may. {mend}")
        return left

    def containers_left(self, owner: str) -> int:
        """Return how many bytes may still be added to the files in an owner's containers.

        Raises:
            StorageFull: no bytes are left.
        """
        left = self.containers_room(owner)
        if left <= 0:
            message = (
                f"The files in your containers take all {self._config.max_containers_bytes:,} bytes that they may."
            )
            raise StorageFull(f"{message} Delete containers (DELETE /v1/containers/{{id}}) or files in them.")
        return left

    def containers_room(self, owner: str) -> int:
        """Return the bytes that `containers_left` returns; negative if the files are larger than allowed."""
        _, size = self._rows.amount(ContainerRecord, owner=owner, status=_WITH_FILES)
        return self._config.max_containers_bytes - size

    def spool(self) -> Path:
        """Return the folder in which uploads are kept while they arrive."""
        path = self._config.data_dir / "arriving"
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    @contextmanager
    def arriving(self, share: str, left: int) -> Iterator[Callable[[int], None]]:
        """Count an upload while it arrives, with others of this share; call the result with each piece's bytes.

        Raises:
            StorageFull: the uploads together exceed the share.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            with self._lock:
                self._arriving[share] += size
                taken += size
                arriving = self._arriving[share]
            if arriving > left:
                raise StorageFull("This upload exceeds your share: delete some of your files, or send less at once.")

        try:
            yield take
        finally:
            with self._lock:
                self._arriving[share] -= taken
                if not self._arriving[share]:
                    del self._arriving[share]
