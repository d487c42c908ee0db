"""The tables of the store, in SQLite or PostgreSQL: one for each kind of record, with a column for each field."""

from __future__ import annotations

from dataclasses import fields

import sqlalchemy as sa

from agent_tools.containers.records import NAMED, ContainerFile, ContainerRecord, Record, Upload, WireValue
from agent_tools.gateway.store.records import (
    ApiKey,
    ConversationItem,
    GatewayRow,
    StoredCall,
    StoredConversation,
    StoredEvents,
    StoredFingerprint,
    StoredItem,
    StoredResponse,
    StoredSkill,
    StoredSkillVersion,
    UsageRow,
)

_SUMS = ("runs", "bytes_in", "bytes_out", "input_tokens", "output_tokens")
USAGE_BY_MONTH = f"""
CREATE VIEW usage_by_month AS
SELECT substr(day, 1, 7) AS month, key_name, user_name, owner,
       CAST(sum(milliseconds) AS DOUBLE PRECISION) / 1000 AS seconds,
       {", ".join(f"CAST(sum({name}) AS BIGINT) AS {name}" for name in _SUMS)}
FROM usage GROUP BY substr(day, 1, 7), key_name, user_name, owner
"""  # noqa: S608  (the names are ours)
metadata = sa.MetaData()
_TYPES = {"str": sa.Text, "float": sa.Float, "int": sa.BigInteger, "bool": sa.Boolean, "bytes": sa.LargeBinary}


def _add_table(kind: type[Record], *indices: str, constraint: sa.UniqueConstraint | None = None) -> sa.Table:
    """Add the table of a kind of record; an index names its columns, with spaces between them."""
    columns: list[sa.Column[object]] = []
    for field in fields(kind):
        name, _, none = str(field.type).partition(" | ")
        columns.append(sa.Column(field.name, _TYPES[name], primary_key=field.name == "id", nullable=bool(none)))
    keys = [sa.Index(f"ix_{kind.table}_{each.replace(' ', '_')}", *each.split()) for each in indices]
    return sa.Table(kind.table, metadata, *columns, *keys, *([constraint] if constraint is not None else ()))


_add_table(StoredResponse, "created_at", "status", "owner bytes")  # so that no row is read to add bytes up
_add_table(StoredItem, "created_at", "response_id")
_add_table(StoredEvents, "created_at")
_add_table(StoredCall, "created_at")
_add_table(StoredFingerprint, "created_at")
_add_table(GatewayRow)
_add_table(StoredConversation, "owner", "used_at")
_add_table(ConversationItem, "conversation_id", "owner bytes")
_add_table(StoredSkill, "owner")
_add_table(StoredSkillVersion, "owner", "skill_id")
_add_table(ApiKey, "owner", constraint=sa.UniqueConstraint("digest"))
_add_table(UsageRow, "owner", "day")
_add_table(ContainerFile, "container_id", constraint=sa.UniqueConstraint("container_id", "path"))
_add_table(Upload, "owner")
_add_table(WireValue, "owner")
_containers = _add_table(ContainerRecord, "owner", "gateway")
_named = sa.text(f"status = 'active' AND origin LIKE '{NAMED}%'")
sa.Index(
    "ix_containers_named",
    *(_containers.c[name] for name in ("owner", "origin", "name")),
    unique=True,
    sqlite_where=_named,
    postgresql_where=_named,
)
