"""The tables of a database as this version needs them: made, renamed, and given the columns that came later."""

from __future__ import annotations

import sqlalchemy as sa

from agent_tools.gateway.store.tables import metadata

OLD_NAMES = {"under_way": "background"}


def prepare(engine: sa.Engine) -> None:
    """Make what is missing; a table with an old name keeps what it holds. Gateways may do so at the same time."""
    for old, new in OLD_NAMES.items():
        _rename(engine, old, new)
    metadata.create_all(engine)
    for table in metadata.tables.values():
        _add_columns(engine, table)


def _add_columns(engine: sa.Engine, table: sa.Table) -> None:
    """Add the columns that an older version's table lacks; those have a default of the server's."""
    for column in table.columns:
        if column.name in _columns(engine, table):
            continue
        described = sa.schema.CreateColumn(column).compile(dialect=engine.dialect)
        try:
            with engine.begin() as connection:
                connection.execute(sa.text(f"ALTER TABLE {table.name} ADD COLUMN {described}"))
        except sa.exc.DBAPIError:
            if column.name not in _columns(engine, table):  # else another gateway was quicker
                raise


def _columns(engine: sa.Engine, table: sa.Table) -> set[str]:
    return {found["name"] for found in sa.inspect(engine).get_columns(table.name)}


def _rename(engine: sa.Engine, old: str, new: str) -> None:
    try:
        with engine.begin() as connection:
            names = sa.inspect(connection).get_table_names()
            if old in names and new not in names:
                connection.execute(sa.text(f"ALTER TABLE {old} RENAME TO {new}"))
    except sa.exc.DBAPIError:
        if new not in sa.inspect(engine).get_table_names():  # else another gateway was quicker
            raise
