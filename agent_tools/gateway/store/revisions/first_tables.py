"""The tables as they were when revisions began. A database that is older keeps what it holds.

Its table of background responses may have its first name, and its containers may have no networks yet.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "first_tables"
down_revision = None

_ID = sa.String(64)


def upgrade() -> None:
    """Make what is missing."""
    connection = op.get_bind()
    there = set(sa.inspect(connection).get_table_names())
    if "under_way" in there and "background" not in there:
        op.rename_table("under_way", "background")
    if "containers" in there and "network" not in _columns(connection, "containers"):
        op.add_column("containers", sa.Column("network", sa.Text, nullable=False, server_default=""))
    _tables().create_all(connection)


def _columns(connection: sa.Connection, table: str) -> set[str]:
    return {column["name"] for column in sa.inspect(connection).get_columns(table)}


def _tables() -> sa.MetaData:
    metadata = sa.MetaData()
    _responses(metadata)
    _containers(metadata)
    return metadata


def _responses(metadata: sa.MetaData) -> None:
    sa.Table(
        "responses",
        metadata,
        sa.Column("id", _ID, primary_key=True),
        sa.Column("owner", _ID, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False, index=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("background", sa.Boolean, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("container_id", _ID),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("body", "input", "conversation")),
        sa.Index("ix_responses_share", "owner", "bytes"),
    )
    for name, column in (
        ("items", sa.Column("response_id", _ID, nullable=False, index=True)),
        ("calls", sa.Column("told", sa.Text, nullable=False)),
    ):
        sa.Table(
            name,
            metadata,
            sa.Column("id", _ID, primary_key=True),
            sa.Column("owner", _ID, nullable=False),
            sa.Column("created_at", sa.Float, nullable=False, index=True),
            column,
        )
    sa.Table(
        "background",
        metadata,
        sa.Column("id", _ID, primary_key=True),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("gateway", sa.Text, nullable=False),
        sa.Column("seen_at", sa.Float, nullable=False),
    )
    sa.Table(
        "events",
        metadata,
        sa.Column("id", _ID, primary_key=True),
        sa.Column("created_at", sa.Float, nullable=False, index=True),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )


def _containers(metadata: sa.MetaData) -> None:
    sa.Table(
        "containers",
        metadata,
        sa.Column("id", _ID, primary_key=True),
        sa.Column("owner", _ID, nullable=False, index=True),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("last_active_at", sa.Float, nullable=False),
        sa.Column("idle_minutes", sa.Float, nullable=False),
        sa.Column("memory_limit", sa.String(8), nullable=False),
        sa.Column("network", sa.Text, nullable=False, server_default=""),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("has_run", sa.Boolean, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
    )
    sa.Table(
        "container_files",
        metadata,
        sa.Column("id", _ID, primary_key=True),
        sa.Column("container_id", _ID, nullable=False, index=True),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
        sa.UniqueConstraint("container_id", "path"),
    )
    sa.Table(
        "uploads",
        metadata,
        sa.Column("id", _ID, primary_key=True),
        sa.Column("owner", _ID, nullable=False, index=True),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("filename", sa.Text, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
    )
