"""All tables, as they are until the first release. From then on this file lists them, and never changes again."""

from __future__ import annotations

from alembic import op

from agent_tools.gateway.store.tables import USAGE_BY_MONTH, metadata

revision = "first_tables"
down_revision = None


def upgrade() -> None:
    """Create the tables, and the view of them."""
    metadata.create_all(op.get_bind())
    op.execute(USAGE_BY_MONTH)
