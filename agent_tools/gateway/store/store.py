"""The store: rows in SQLite or PostgreSQL."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from agent_tools.containers.failures import RowsAway
from agent_tools.containers.records import Record
from agent_tools.containers.rows import ANYHOW, Before, Kind, Rows
from agent_tools.gateway.compute_queue import ComputeQueue
from agent_tools.gateway.store.tables import metadata

LOCK_TIMEOUT = 10.0  # seconds in which another process may hold the lock of an SQLite file
RETRY_LOCK_TIMEOUT = 0.1  # seconds that a write waits after another one has just timed out
_log = logging.getLogger(__name__)


class Store(Rows):
    """Rows in a database. A class with some of its table's columns is read without the others.

    Others compute while a server answers, and urgent threads go first before a file is used.

    A request writes several times, so only the first write waits `timeout` seconds for the lock of an SQLite file.
    Once it has failed, the database counts as locked until a write succeeds, and other writes wait only briefly.

    On PostgreSQL, a connection fails whose other machine acknowledges nothing for `timeout` seconds; one that waits for
    an answer asks for that after as long. A server that hangs on a machine that runs is waited for.

    Attributes:
        failures: the number of transactions that failed since the start; each is in the log.
        is_file: the rows are in an SQLite file, which programs of one machine can share.
    """

    def __init__(self, url: str, timeout: float = LOCK_TIMEOUT, compute: ComputeQueue | None = None) -> None:
        self.failures = 0
        self._is_locked = False
        self._lock_timeout = timeout
        self.is_file = url.startswith("sqlite")
        compute = compute or ComputeQueue()
        self._courtesy = compute.yielding if self.is_file else compute.waiting
        self._engine = sa.create_engine(url, pool_pre_ping=not self.is_file)
        if self.is_file:
            sa.event.listen(self._engine, "connect", partial(_prepare_sqlite, timeout))
        elif self._engine.driver.startswith("psycopg"):
            sa.event.listen(self._engine, "do_connect", partial(_limit_silence, timeout))
        from agent_tools.gateway.store import schema  # slow to import: Alembic takes a quarter of the store's time

        try:
            schema.prepare(self._engine)
        except BaseException:
            self.close()
            raise

    def answers(self) -> bool:
        """Return True if the database can be read, and was not locked against the last write."""
        if self._is_locked:
            return False
        try:
            with self._transaction() as connection:
                connection.execute(sa.select(metadata.tables["responses"].c.id).limit(1)).first()
        except RowsAway:
            return False
        return True

    def add(self, *records: Record) -> None:
        """Add records, all of them or none."""
        if not records:
            return
        with self._writing() as connection:
            _insert(connection, records)

    def add_if_new(self, *records: Record) -> bool:
        """Add records and return True; add none if one like them is there already."""
        try:
            self.add(*records)
        except sa.exc.IntegrityError:
            return False
        return True

    def change(self, kind: type[Record], id_: str, where: Mapping[str, Any] = ANYHOW, **values: Any) -> bool:
        """Change columns of a record; return False if there is none that also fits `where`."""
        return self.change_and_add(kind, id_, where, (), **values)

    def change_and_add(
        self, kind: type[Record], id_: str, where: Mapping[str, Any], records: Iterable[Record], **values: Any
    ) -> bool:
        """Change columns of a record as `change` does, and add others with it: all of that, or nothing."""
        with self._writing() as connection:
            table = table_of(kind)
            fitting = (table.c.id == id_, *_fitting(table, where))
            is_changed = connection.execute(table.update().where(*fitting).values(**values)).rowcount > 0
            if is_changed:
                _insert(connection, records)
            return is_changed

    def increase(self, record: Record, *names: str) -> None:
        """Add these numbers of a record to those of the one that has its id; add the record if there is none."""
        columns = table_of(type(record)).c
        sums = {name: columns[name] + getattr(record, name) for name in names}
        if not self.change(type(record), record.id, **sums) and not self.add_if_new(record):
            self.change(type(record), record.id, **sums)

    def usage_of(self, month: str) -> list[Mapping[str, Any]]:
        """Return the rows of the view `usage_by_month` for a month, such as 2026-11, by key and user."""
        query = sa.text("SELECT * FROM usage_by_month WHERE month = :month ORDER BY key_name, user_name, owner")
        with self._transaction() as connection:
            return [dict(row._mapping) for row in connection.execute(query, {"month": month})]

    def find(self, kind: type[Kind], **where: Any) -> list[Kind]:
        """Return all records that fit, oldest first."""
        columns = table_of(kind).c
        return self._read(kind, _query(kind, where).order_by(columns.created_at, columns.id))

    def newest(self, kind: type[Kind], most: int, **where: Any) -> list[Kind]:
        """Return at most `most` matching records, newest first."""
        columns = table_of(kind).c
        order = (columns.created_at.desc(), columns.id.desc())
        return self._read(kind, _query(kind, where).order_by(*order).limit(most))

    def page(
        self, kind: type[Kind], most: int, after: str = "", *, is_descending: bool = False, **where: Any
    ) -> list[Kind]:
        """Return at most `most` matching records, ordered by id, from the one that follows the id `after`."""
        order, query = table_of(kind).c.id, _query(kind, where).limit(most)
        if after:
            query = query.where(order < after if is_descending else order > after)
        return self._read(kind, query.order_by(order.desc() if is_descending else order))

    def _read(self, kind: type[Kind], query: sa.Select[Any]) -> list[Kind]:
        with self._transaction() as connection:
            return [kind(**row._mapping) for row in connection.execute(query)]

    def amount(self, kind: type[Record], **where: Any) -> tuple[int, int]:
        """Return the number of records that fit, and the sum of their `bytes`, if they have any."""
        table = table_of(kind)
        total = sa.func.coalesce(sa.func.sum(table.c.bytes), 0) if "bytes" in table.c else sa.literal(0)
        query = sa.select(sa.func.count(), total).select_from(table).where(*_fitting(table, where))
        with self._transaction() as connection:
            number, size = connection.execute(query).one()
            return int(number), int(size)

    def delete(self, kind: type[Record], **where: Any) -> int:
        """Delete the records that fit; return their number."""
        table = table_of(kind)
        with self._writing() as connection:
            return connection.execute(table.delete().where(*_fitting(table, where))).rowcount

    def delete_owned(self, owner: str) -> set[str]:
        """Delete the rows of an owner in all tables but those of containers and keys; return their ids."""
        ids: set[str] = set()
        with self._writing() as connection:
            for name, table in metadata.tables.items():
                if "owner" in table.c and name not in ("containers", "api_keys"):
                    ids |= set(connection.execute(sa.select(table.c.id).where(table.c.owner == owner)).scalars())
                    connection.execute(table.delete().where(table.c.owner == owner))
        return ids

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """Begin a transaction that writes, and learn whether the database is locked. Errors as for `_transaction`."""
        is_locked = self._is_locked
        try:
            with self._transaction() as connection:
                if is_locked:
                    _set_lock_timeout(connection.connection, min(self._lock_timeout, RETRY_LOCK_TIMEOUT))
                try:
                    yield connection
                finally:
                    if is_locked:
                        _set_lock_timeout(connection.connection, self._lock_timeout)
            self._is_locked = False
        except RowsAway as exc:
            self._is_locked = self.is_file and "locked" in str(exc.__cause__)
            raise

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """Begin a transaction; one that fails is counted and named in the log, without what it held.

        Raises:
            RowsAway: the database is away, locked or full.
        """
        try:
            with self._courtesy(), self._engine.begin() as connection:
                yield connection
        except sa.exc.IntegrityError:
            raise  # the database works: such a row is there already
        except sa.exc.SQLAlchemyError as exc:
            self.failures += 1
            _log.error("the database failed: %s", type(exc).__name__)
            raise RowsAway from exc


def table_of(kind: type[Record]) -> sa.Table:
    """Return the table of a kind of records."""
    return metadata.tables[kind.table]


def _insert(connection: sa.Connection, records: Iterable[Record]) -> None:
    for table, group in groupby(records, lambda record: table_of(type(record))):
        connection.execute(table.insert(), [vars(record) for record in group])


def _query(kind: type[Record], where: Mapping[str, Any]) -> sa.Select[Any]:
    """Return the query of the columns of a kind of records that fit."""
    table = table_of(kind)
    columns = [table.c[field.name] for field in dataclasses.fields(kind)]
    return sa.select(*columns).where(*_fitting(table, where))


def _fitting(table: sa.Table, where: Mapping[str, Any]) -> Iterator[sa.ColumnElement[bool]]:
    for name, value in where.items():
        if isinstance(value, str):
            yield table.c[name] == _sendable(value)
        elif isinstance(value, Before):
            yield table.c[name] < value.most
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


def _prepare_sqlite(lock_timeout: float, connection: Any, _: Any) -> None:
    _set_lock_timeout(connection, lock_timeout)  # first: the next one may have to wait
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _limit_silence(timeout: float, _: Any, __: Any, ___: Any, options: dict[str, Any]) -> None:
    """Let a connection fail whose other end acknowledges nothing for `timeout` seconds, unless the URL says otherwise.

    https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS
    """
    seconds = max(2, math.ceil(timeout))  # libpq has no shorter time
    limits = {"connect_timeout": seconds, "tcp_user_timeout": seconds * 1_000}
    options.update({**limits, "keepalives_idle": seconds, "keepalives_interval": seconds, **options})


def _set_lock_timeout(connection: Any, seconds: float) -> None:
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={int(seconds * 1_000)}")
    cursor.close()
