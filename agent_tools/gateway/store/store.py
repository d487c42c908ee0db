"""The store: records by id, each with its owner, in SQLite or PostgreSQL."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

import sqlalchemy as sa

from agent_tools.gateway.store.records import Record
from agent_tools.gateway.store.schema import prepare

StoreError = sa.exc.SQLAlchemyError  # raised while the database is away or full
MANY = 500  # ids in one query
_Kind = TypeVar("_Kind", bound=Record)


class Store:
    """Records by id. Thread-safe; every method is one transaction.

    `where` names columns and their values, where a list means any of its values.
    """

    def __init__(self, url: str) -> None:
        self._engine = sa.create_engine(url, pool_pre_ping=not url.startswith("sqlite"))
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _prepare_sqlite)
        prepare(self._engine)

    def add(self, *records: Record) -> None:
        """Add records, all of them or none."""
        if not records:
            return
        with self._engine.begin() as connection:
            for table, group in groupby(records, lambda record: record.table):
                connection.execute(table.insert(), [vars(record) for record in group])

    def add_if_new(self, record: Record) -> bool:
        """Add a record and return True, unless one like it is there already."""
        try:
            self.add(record)
        except sa.exc.IntegrityError:
            return False
        return True

    def change(self, kind: type[Record], id_: str, **values: Any) -> bool:
        """Change columns of a record; return False if it is not there."""
        with self._engine.begin() as connection:
            done = connection.execute(kind.table.update().where(kind.table.c.id == id_).values(**values))
            return done.rowcount > 0

    def get(self, kind: type[_Kind], id_: str, **where: Any) -> _Kind | None:
        """Return the record of an id that also fits `where`."""
        return next(iter(self.find(kind, id=id_, **where)), None)

    def get_all(self, kind: type[_Kind], ids: Sequence[str], **where: Any) -> list[_Kind]:
        """Return the records of many ids that also fit `where`; those that are not there are left out."""
        found: list[_Kind] = []
        for start in range(0, len(ids), MANY):
            found += self.find(kind, id=ids[start : start + MANY], **where)
        return found

    def find(self, kind: type[_Kind], **where: Any) -> list[_Kind]:
        """Return all records that fit, oldest first."""
        table = kind.table
        query = sa.select(*_columns(kind)).order_by(table.c.created_at, table.c.id).where(*_fitting(table, where))
        with self._engine.begin() as connection:
            return [kind(**row._mapping) for row in connection.execute(query)]

    def count(self, kind: type[Record], **where: Any) -> int:
        """Return the number of records that fit."""
        query = sa.select(sa.func.count()).select_from(kind.table).where(*_fitting(kind.table, where))
        with self._engine.begin() as connection:
            return int(connection.execute(query).scalar_one())

    def amount(self, kind: type[Record], **where: Any) -> tuple[int, int]:
        """Return the number of records that fit, and the sum of their `bytes`."""
        total = sa.func.coalesce(sa.func.sum(kind.table.c.bytes), 0)
        query = sa.select(sa.func.count(), total).select_from(kind.table).where(*_fitting(kind.table, where))
        with self._engine.begin() as connection:
            number, size = connection.execute(query).one()
            return int(number), int(size)

    def delete(self, kind: type[Record], **where: Any) -> int:
        """Delete the records that fit; return their number."""
        statement = kind.table.delete().where(*_fitting(kind.table, where))
        with self._engine.begin() as connection:
            return connection.execute(statement).rowcount

    def delete_before(self, kind: type[Record], time: float, column: str = "created_at", **where: Any) -> int:
        """Delete the records from before a time, by that column, that also fit `where`; return their number."""
        statement = kind.table.delete().where(kind.table.c[column] < time, *_fitting(kind.table, where))
        with self._engine.begin() as connection:
            return connection.execute(statement).rowcount

    def older_than(self, kind: type[Record], seconds: float) -> list[str]:
        """Return the ids of the records made so long ago."""
        query = sa.select(kind.table.c.id).where(kind.table.c.created_at < time.time() - seconds)
        with self._engine.begin() as connection:
            return list(connection.execute(query).scalars())

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


def _columns(kind: type[Record]) -> list[sa.Column[Any]]:
    return [kind.table.c[field.name] for field in dataclasses.fields(kind)]


def _fitting(table: sa.Table, where: Mapping[str, Any]) -> Iterator[sa.ColumnElement[bool]]:
    for name, value in where.items():
        if isinstance(value, str):
            yield table.c[name] == _sendable(value)
        else:
            yield table.c[name].in_(map(_sendable, value)) if isinstance(value, list) else table.c[name] == value


def _sendable(text: str) -> str:
    """Return text that PostgreSQL accepts; an id with a NUL belongs to nothing."""
    return text.replace("\0", "\ufffd")


def packed(value: Any) -> str:
    """Return a value as a column's text: ASCII, so that the database refuses no character of it."""
    return json.dumps(value, separators=(",", ":"))


def packed_lines(values: Iterable[Any]) -> str:
    """Return values as a column's text, each on a line of its own."""
    return "\n".join(map(packed, values))


def _prepare_sqlite(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA busy_timeout=10000")
    cursor.close()
