"""Fields that only the model's server knows, beside the items that they belong to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "server_fields"
down_revision = "upload_ids"


def upgrade() -> None:
    """Make their columns."""
    for table in ("calls", "conversation_items"):
        op.add_column(table, sa.Column("server_fields", sa.Text, nullable=False, server_default=""))
