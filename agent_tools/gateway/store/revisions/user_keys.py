"""Keys whose holders name users, and values that wires keep."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "user_keys"
down_revision = "server_fields"


def upgrade() -> None:
    """Make a column and a table."""
    op.add_column("api_keys", sa.Column("for_users", sa.Boolean, nullable=False, server_default=sa.false()))
    op.create_table(
        "wire_values",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_index("ix_wire_values_owner", "wire_values", ["owner"])
