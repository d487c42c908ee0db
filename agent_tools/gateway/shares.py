"""What each key may keep, and how much of the disk is left for everyone: asked before anything is kept."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agent_tools.gateway import store as tables
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.requests.failures import ApiError, full
from agent_tools.gateway.store import Store
from agent_tools.runtime.files import folder

_WITH_FILES = ["active", "expiring", "deleting"]  # containers whose files are still there


class Shares:
    """Thread-safe. `free` gives the bytes that are left on a path's disk."""

    def __init__(self, config: GatewayConfig, store: Store, free: Callable[[Path], int] = folder.free) -> None:
        self.free = free
        self._config = config
        self._store = store
        self._lock = threading.Lock()
        self._arriving: Counter[str] = Counter()  # bytes of uploads under way, by owner

    def check_disk(self, needed: int = 0) -> None:
        """Whether so many bytes more leave enough of the disk of `data_dir`.

        Raises:
            ApiError: 507.
        """
        if self.free(self._config.data_dir) - needed < self._config.min_disk_free:
            message = "The gateway's disk is nearly full (min_disk_free), so nothing more is kept: try again later."
            raise ApiError(507, message, code="insufficient_storage")

    def check_responses(self, owner: str) -> None:
        """Whether an owner may have another response kept.

        Raises:
            ApiError: 400, what is kept is the owner's whole share; 507.
        """
        mend = "Delete some (DELETE /v1/responses/{id}), or send 'store': false."
        number, size = self._store.amount(tables.responses, owner=owner)
        if number >= self._config.max_stored_responses:
            raise full(f"You have {self._config.max_stored_responses:,} stored responses, as many as you may. {mend}")
        if size >= self._config.max_stored_bytes:
            most = self._config.max_stored_bytes
            raise full(f"Your stored responses come to {most:,} bytes, as many as they may. {mend}")
        self.check_responses_disk()

    def check_responses_disk(self) -> None:
        """Whether the disk has room for responses; a database elsewhere has one of its own.

        Raises:
            ApiError: 507.
        """
        if not self._config.database:
            self.check_disk()

    def uploads_left(self, owner: str, needed: int = 1) -> int:
        """Bytes that an owner's uploads may still grow by, which are at least those that are needed.

        Raises:
            ApiError: 400, there are as many as there may be, or fewer bytes are left.
        """
        mend = "Delete some of them (DELETE /v1/files/{id})."
        number, size = self._store.amount(tables.uploads, owner=owner)
        if number >= self._config.max_uploads:
            raise full(f"You have {self._config.max_uploads:,} files, as many as you may. {mend}")
        left = self._config.max_uploads_bytes - size
        if left < needed:
            raise full(f"Your files come to {size:,} bytes, and may to {self._config.max_uploads_bytes:,}. {mend}")
        return left

    def containers_left(self, owner: str) -> int:
        """Bytes that the files in an owner's containers may still grow by.

        Raises:
            ApiError: 400, they are the owner's whole share.
        """
        left = self.containers_room(owner)
        if left <= 0:
            message = f"The files in your containers come to {self._config.max_containers_bytes:,} bytes, as many as"
            raise full(f"{message} they may. Delete containers (DELETE /v1/containers/{{id}}) or files in them.")
        return left

    def containers_room(self, owner: str) -> int:
        """Likewise; below 0 if they are more than they may be."""
        _, size = self._store.amount(tables.containers, owner=owner, status=_WITH_FILES)
        return self._config.max_containers_bytes - size

    @contextmanager
    def arriving(self, owner: str, left: int) -> Iterator[Callable[[int], None]]:
        """Count an upload while it arrives, beside the owner's others; what is given takes the bytes of each piece.

        Raises:
            ApiError: 400, all that arrives is more than is left.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            with self._lock:
                self._arriving[owner] += size
                taken += size
                arriving = self._arriving[owner]
            if arriving > left:
                raise full("What you send goes beyond your share: delete some of your files, or send less at once.")

        try:
            yield take
        finally:
            with self._lock:
                self._arriving[owner] -= taken
                if not self._arriving[owner]:
                    del self._arriving[owner]
