"""The table of named keys, and its rows as values."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from agent_tools.containers.records import Record
from agent_tools.gateway.store.tables import metadata

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False, index=True),
    sa.Column("digest", sa.String(64), nullable=False, unique=True),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("max_containers", sa.BigInteger),
    sa.Column("max_requests_per_minute", sa.BigInteger),
    sa.Column("revoked_at", sa.Float),
    sa.Column("for_users", sa.Boolean, nullable=False, server_default=sa.false()),
)


@dataclass(frozen=True, kw_only=True)
class ApiKey(Record):
    """A named key: `id` is the name, `digest` the SHA-256 of the key. A limit of None is the gateway's own.

    The holder of a key that is `for_users` may name the user for whom it asks.
    """

    table = "api_keys"
    owner: str
    digest: str
    created_at: float
    max_containers: int | None
    max_requests_per_minute: int | None
    revoked_at: float | None
    for_users: bool = False
