"""Named keys, with their limits."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "named_keys"
down_revision = "conversation_marks"


def upgrade() -> None:
    """Make their table."""
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False, unique=True),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("max_containers", sa.BigInteger),
        sa.Column("max_requests_per_minute", sa.BigInteger),
        sa.Column("revoked_at", sa.Float),
    )
    op.create_index("ix_api_keys_owner", "api_keys", ["owner"])
