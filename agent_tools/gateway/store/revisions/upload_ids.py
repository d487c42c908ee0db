"""The upload that a file in a container is a copy of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "upload_ids"
down_revision = "stored_conversations"


def upgrade() -> None:
    """Make its column."""
    op.add_column("container_files", sa.Column("upload_id", sa.String(64), nullable=False, server_default=""))
