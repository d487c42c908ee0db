"""Named keys: created, limited and revoked in the store, which every gateway reads every few seconds.

A key's owner is the same as if it stood in the setting `api_keys`, so a key that moves from there to a name keeps its
responses, containers and files. A name is used once: a revoked key stays in the table, and so does its data.
"""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass

from agent_tools.containers.keys import MIN_KEY_CHARS, digest, owner_of_digest
from agent_tools.errors import InvalidParams
from agent_tools.gateway.requests.auth import AcceptedKey, RequestKeys
from agent_tools.gateway.store.records import ApiKey
from agent_tools.gateway.store.store import Store

READ_EVERY = 2.0  # seconds
MAX_KEYS = 10_000  # in the table, including revoked ones
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
MAX_GROUP = 256  # characters
_RESERVED = re.compile(r"setting-\d+|local|sign-on")  # names that metrics have for other callers


@dataclass(frozen=True)
class KeyLimits:
    """The limits of one key; None for the gateway's own. `volumes` has names with commas between them, '' for none.

    Raises:
        InvalidParams: a limit is negative.
    """

    max_containers: int | None = None
    max_requests_per_minute: int | None = None
    volumes: str | None = None

    def __post_init__(self) -> None:
        for name in ("max_containers", "max_requests_per_minute"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 2**31:
                raise InvalidParams(f"{name}={value} is out of range: give 0 to {2**31 - 1:,}.")


class NamedKeys:
    """The named keys in a store. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def add(
        self,
        name: str,
        limits: KeyLimits,
        key: str = "",
        *,
        for_users: bool = False,
        operator: bool = False,
        group: str | None = None,
    ) -> str:
        """Create a key of this name, or register a given one; return it. Only its digest is stored.

        `for_users`: a client with the key may name the user of each request.
        `operator`: its holder, or the users of the group, see the operator's page.
        `group`: there is no key, but the identity provider's users who are in this group are let in, with these limits.

        Raises:
            InvalidParams: the name or the key cannot be used, or is used already.
        """
        if not _NAME.fullmatch(name) or _RESERVED.fullmatch(name):
            raise InvalidParams(f"{name!r:.80} is no name for a key: use up to 63 of a-z, 0-9, '.', '_' and '-'.")
        if key and len(key) < MIN_KEY_CHARS:
            raise InvalidParams(f"The key has fewer than {MIN_KEY_CHARS} characters.")
        if group is not None and not 0 < len(group) <= MAX_GROUP:
            raise InvalidParams(
                f"The group is a text of 1 to {MAX_GROUP} characters, as the provider's tokens have it."
            )
        if for_users and operator:
            raise InvalidParams("A key for users is in a server's hands, so it cannot be an operator's: make two keys.")
        if self.store.count(ApiKey) >= MAX_KEYS:
            raise InvalidParams(f"There are {MAX_KEYS:,} keys, the maximum for one database.")
        key = key or f"sk-at-{secrets.token_urlsafe(32)}"
        known = digest(key) if group is None else digest(f"group {group}")
        row = ApiKey(
            id=name,
            owner=owner_of_digest(known),
            digest=known,
            created_at=time.time(),
            max_containers=limits.max_containers,
            max_requests_per_minute=limits.max_requests_per_minute,
            volumes=limits.volumes,
            revoked_at=None,
            for_users=for_users,
            operator=operator,
            group=group,
        )
        if not self.store.add_if_new(row):
            raise InvalidParams(
                f"The name {name!r}, or this key, was used before and cannot be used again: see `keys list`."
            )
        return key

    def all(self) -> list[ApiKey]:
        """List all keys, including revoked ones, oldest first."""
        return self.store.find(ApiKey)

    def revoke(self, name: str) -> None:
        """Revoke a key: gateways refuse it once they read the table again, and end its running work.

        Raises:
            InvalidParams: there is no such key.
        """
        if self.find(name).revoked_at is None:
            self.store.change(ApiKey, name, revoked_at=time.time())

    def owner(self, name: str) -> str:
        """Return the owner that a key stands for.

        Raises:
            InvalidParams: there is no such key, or it is a group, which owns nothing.
        """
        row = self.find(name)
        if row.group is not None:
            raise InvalidParams(f"{name} is a group, whose users own what they make: name one by --owner.")
        return row.owner

    def limit(self, name: str, limits: KeyLimits) -> None:
        """Change all limits of a key.

        Raises:
            InvalidParams: there is no such key.
        """
        self.find(name)
        self.store.change(ApiKey, name, **vars(limits))

    def read_into(self, keys: RequestKeys) -> frozenset[str]:
        """Accept these named keys and no others; return the owners whose keys were revoked."""
        rows = self.store.find(ApiKey)
        revoked = {row.digest for row in rows if row.revoked_at is not None}
        accepted = [row for row in rows if row.revoked_at is None]
        return keys.accept_named(
            {row.digest: _caller(row) for row in accepted if row.group is None},
            revoked,
            {row.group: _caller(row) for row in accepted if row.group is not None},
        )

    def find(self, name: str) -> ApiKey:
        """Return a key or a group by its name.

        Raises:
            InvalidParams: there is no such key.
        """
        row = self.store.get(ApiKey, name)
        if row is None:
            raise InvalidParams(f"There is no key {name!r:.80}: `agent-tools keys list` shows all keys.")
        return row


def _caller(row: ApiKey) -> AcceptedKey:
    volumes = None if row.volumes is None else tuple(each.strip() for each in row.volumes.split(","))
    limits = row.max_containers, row.max_requests_per_minute
    return AcceptedKey(row.owner, row.id, *limits, row.for_users, volumes=volumes, operator=row.operator)
