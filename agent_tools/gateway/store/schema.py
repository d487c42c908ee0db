"""The tables of a database as this version needs them: made where they are missing, renamed where a name is old."""

from __future__ import annotations

import sqlalchemy as sa

from agent_tools.gateway.store.tables import metadata

OLD_NAMES = {"under_way": "background"}


def prepare(engine: sa.Engine) -> None:
    """Make what is missing; a table with an old name keeps what it holds. Gateways may do so at the same time."""
    for old, new in OLD_NAMES.items():
        _rename(engine, old, new)
    metadata.create_all(engine)


def _rename(engine: sa.Engine, old: str, new: str) -> None:
    try:
        with engine.begin() as connection:
            names = sa.inspect(connection).get_table_names()
            if old in names and new not in names:
                connection.execute(sa.text(f"ALTER TABLE {old} RENAME TO {new}"))
    except sa.exc.DBAPIError:
        if new not in sa.inspect(engine).get_table_names():  # else another gateway was quicker
            raise
