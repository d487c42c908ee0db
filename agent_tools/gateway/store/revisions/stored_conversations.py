"""The conversations that clients make, and their items."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "stored_conversations"
down_revision = "leases"


def upgrade() -> None:
    """Make their tables."""
    op.create_table(
        "conversations",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("used_at", sa.Float, nullable=False),
        sa.Column("notes", sa.Text, nullable=False),
        sa.Column("container_id", sa.String(64)),
    )
    op.create_index("ix_conversations_owner", "conversations", ["owner"])
    op.create_index("ix_conversations_used_at", "conversations", ["used_at"])
    op.create_table(
        "conversation_items",
        sa.Column("id", sa.String(80), primary_key=True),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("conversation_id", sa.String(64), nullable=False),
        sa.Column("item_id", sa.String(64), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("item", sa.Text, nullable=False),
        sa.Column("told", sa.Text, nullable=False),
    )
    op.create_index("ix_conversation_items_conversation_id", "conversation_items", ["conversation_id"])
    op.create_index("ix_conversation_items_share", "conversation_items", ["owner", "bytes"])
