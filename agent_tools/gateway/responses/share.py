"""The share of each owner in stored responses, asked before one is stored."""

from __future__ import annotations

from agent_tools.containers.quotas import Shares
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.requests.failures import full
from agent_tools.gateway.store.records import StoredResponse
from agent_tools.gateway.store.store import Store


class ResponseShare:
    """Thread-safe. `shares` knows the disk."""

    def __init__(self, config: GatewayConfig, store: Store, shares: Shares) -> None:
        self._config = config
        self._store = store
        self._shares = shares

    def check(self, owner: str) -> None:
        """Check that an owner may have another response stored.

        Raises:
            ApiError: 400, what is stored is the owner's whole share.
            DiskFull: nothing more is stored for anyone.
        """
        mend = "Delete some (DELETE /v1/responses/{id}), or send 'store': false."
        number, size = self._store.amount(StoredResponse, owner=owner)
        if number >= self._config.max_stored_responses:
            raise full(f"You have {self._config.max_stored_responses:,} stored responses, the maximum. {mend}")
        if size >= self._config.max_stored_bytes:
            raise full(f"Your stored responses take all {self._config.max_stored_bytes:,} bytes that they may. {mend}")
        self.check_disk()

    def check_disk(self) -> None:
        """Check that the disk has room for responses; a database elsewhere has a disk of its own.

        Raises:
            DiskFull: it has none.
        """
        if not self._config.database:
            self._shares.check_disk()
