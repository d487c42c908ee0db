"""The gateways that are alive, and which of them has the sandbox of each container."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "leases"
down_revision = "named_keys"

_ID = sa.String(64)


def upgrade() -> None:
    """Make their table, and the columns of containers."""
    for column in (
        sa.Column("gateway", _ID, nullable=False, server_default=""),
        sa.Column("wanted_by", _ID, nullable=False, server_default=""),
        sa.Column("generation", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("origin", sa.String(16), nullable=False, server_default=""),
    ):
        op.add_column("containers", column)
    op.create_index("ix_containers_gateway", "containers", ["gateway"])
    op.create_table(
        "gateways",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("seen_at", sa.Float, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("folder", _ID, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
    )
