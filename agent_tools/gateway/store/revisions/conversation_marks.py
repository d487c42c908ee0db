"""The marks by which conversations are known again, and the container of each."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "conversation_marks"
down_revision = "first_tables"


def upgrade() -> None:
    """Make their table."""
    op.create_table(
        "marks",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("container_id", sa.String(64)),
        sa.Column("asked", sa.String(64), nullable=False),
    )
    op.create_index("ix_marks_created_at", "marks", ["created_at"])
