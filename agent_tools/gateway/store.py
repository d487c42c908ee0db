"""What is kept: responses, items, calls, containers and files, each with its owner, in SQLite or PostgreSQL."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

metadata = sa.MetaData()

responses = sa.Table(
    "responses",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("created_at", sa.Float, nullable=False, index=True),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("background", sa.Boolean, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),  # of the columns below, of its events, and of what calls told
    sa.Column("container_id", sa.String(64)),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("input", sa.Text, nullable=False),  # a line for each item, which begins with its id
    sa.Column("conversation", sa.Text, nullable=False),
    sa.Index("ix_responses_share", "owner", "bytes"),  # so that no row is read to add them up
)
items = sa.Table(
    "items",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("created_at", sa.Float, nullable=False, index=True),
    sa.Column("response_id", sa.String(64), nullable=False, index=True),
)
under_way = sa.Table(  # responses in the background that have not ended, and whose they are
    "under_way",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("gateway", sa.Text, nullable=False),
    sa.Column("seen_at", sa.Float, nullable=False),
)
events = sa.Table(  # those of responses that were made in the background, to be streamed again
    "events",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("created_at", sa.Float, nullable=False, index=True),
    sa.Column("data", sa.LargeBinary, nullable=False),
)
calls = sa.Table(
    "calls",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("created_at", sa.Float, nullable=False, index=True),
    sa.Column("told", sa.Text, nullable=False),
)
containers = sa.Table(
    "containers",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False, index=True),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("last_active_at", sa.Float, nullable=False),
    sa.Column("idle_minutes", sa.Float, nullable=False),
    sa.Column("memory_limit", sa.String(8), nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("has_run", sa.Boolean, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False, default=0),  # of its files, when they were last counted
)
container_files = sa.Table(
    "container_files",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("container_id", sa.String(64), nullable=False, index=True),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("source", sa.String(16), nullable=False),
    sa.UniqueConstraint("container_id", "path"),
)
uploads = sa.Table(
    "uploads",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False, index=True),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("filename", sa.Text, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("purpose", sa.String(32), nullable=False),
)

StoreError = sa.exc.SQLAlchemyError
"""What a database raises that is away or full."""
MANY = 500
"""Ids in one query."""
Row = Mapping[str, Any]


class Store:
    """Rows by id. Thread-safe; every method is one transaction."""

    def __init__(self, url: str) -> None:
        self._engine = sa.create_engine(url, pool_pre_ping=not url.startswith("sqlite"))
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _prepare_sqlite)
        metadata.create_all(self._engine)

    def add(self, table: sa.Table, *rows: Row) -> None:
        """Add rows, all of them or none."""
        if rows:  # none at all would be taken for one of defaults
            with self._engine.begin() as connection:
                connection.execute(table.insert(), [dict(row) for row in rows])

    def add_if_new(self, table: sa.Table, row: Row) -> bool:
        """Add a row unless one like it is there already; whether it was added."""
        try:
            self.add(table, row)
        except sa.exc.IntegrityError:
            return False
        return True

    def change(self, table: sa.Table, id_: str, **values: Any) -> bool:
        """Change a row; whether it is there."""
        with self._engine.begin() as connection:
            done = connection.execute(table.update().where(table.c.id == id_).values(**values))
            return done.rowcount > 0

    def get(self, table: sa.Table, id_: str, *columns: str, **where: Any) -> Row | None:
        """The row of an id that also fits `where`; where columns are named, only these."""
        return next(iter(self.find(table, *columns, id=id_, **where)), None)

    def get_all(self, table: sa.Table, ids: Sequence[str], **where: Any) -> list[Row]:
        """The rows of many ids that also fit `where`; those that are not there are left out."""
        found: list[Row] = []
        for start in range(0, len(ids), MANY):
            found += self.find(table, id=ids[start : start + MANY], **where)
        return found

    def find(self, table: sa.Table, *columns: str, **where: Any) -> list[Row]:
        """All rows that fit, oldest first; a column may be one of several values. Of all columns, or those named."""
        wanted = [table.c[name] for name in columns] or list(table.c)
        query = sa.select(*wanted).order_by(table.c.created_at, table.c.id).where(*_fitting(table, where))
        with self._engine.begin() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]

    def count(self, table: sa.Table, **where: Any) -> int:
        """How many rows fit."""
        query = sa.select(sa.func.count()).select_from(table).where(*_fitting(table, where))
        with self._engine.begin() as connection:
            return int(connection.execute(query).scalar_one())

    def amount(self, table: sa.Table, **where: Any) -> tuple[int, int]:
        """How many rows fit, and what their `bytes` come to."""
        total = sa.func.coalesce(sa.func.sum(table.c.bytes), 0)
        query = sa.select(sa.func.count(), total).select_from(table).where(*_fitting(table, where))
        with self._engine.begin() as connection:
            number, size = connection.execute(query).one()
            return int(number), int(size)

    def delete(self, table: sa.Table, **where: Any) -> int:
        """Delete the rows that fit; how many."""
        statement = table.delete().where(*_fitting(table, where))
        with self._engine.begin() as connection:
            return connection.execute(statement).rowcount

    def delete_before(self, table: sa.Table, time: float, column: str = "created_at", **where: Any) -> int:
        """Delete the rows from before a time, by that column, that also fit `where`; how many."""
        statement = table.delete().where(table.c[column] < time, *_fitting(table, where))
        with self._engine.begin() as connection:
            return connection.execute(statement).rowcount

    def older_than(self, table: sa.Table, seconds: float) -> list[str]:
        """The ids of the rows made so long ago."""
        query = sa.select(table.c.id).where(table.c.created_at < time.time() - seconds)
        with self._engine.begin() as connection:
            return list(connection.execute(query).scalars())

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


def _fitting(table: sa.Table, where: Mapping[str, Any]) -> Iterator[sa.ColumnElement[bool]]:
    for name, value in where.items():
        if isinstance(value, str):
            yield table.c[name] == _sendable(value)
        else:
            yield table.c[name].in_(map(_sendable, value)) if isinstance(value, list) else table.c[name] == value


def _sendable(text: str) -> str:
    """Text that PostgreSQL takes; one that held a NUL is no id of anything."""
    return text.replace("\0", "\ufffd")


def packed(value: Any) -> str:
    """A value as a column's text: ASCII, so that no character of it can be refused."""
    return json.dumps(value, separators=(",", ":"))


def packed_lines(values: Iterable[Any]) -> str:
    """Values as a column's text, each on a line of its own."""
    return "\n".join(map(packed, values))


def _prepare_sqlite(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA busy_timeout=10000")
    cursor.close()
