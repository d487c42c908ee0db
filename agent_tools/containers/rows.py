"""Rows store records by id. These are in memory, for a single process; a database has the same methods."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from agent_tools.containers.records import NAMED, ContainerRecord, Record

MANY = 500  # ids in one query
ANYHOW: Mapping[str, Any] = {}  # a `where` that matches every record
Kind = TypeVar("Kind", bound=Record)


@dataclass(frozen=True)
class Before:
    """A value of `where` that matches smaller numbers."""

    most: float


class Rows(Protocol):
    """Records by id. Thread-safe; every method is one transaction.

    `where` maps columns to values; a list matches any of its values, `Before` all smaller numbers.

    Raises:
        RowsAway: the rows cannot be reached.
    """

    @abstractmethod
    def add(self, *records: Record) -> None:
        """Add records, all of them or none."""

    @abstractmethod
    def add_if_new(self, *records: Record) -> bool:
        """Add records and return True; add none and return False if one of them exists already."""

    @abstractmethod
    def change(self, kind: type[Record], id_: str, where: Mapping[str, Any] = ANYHOW, **values: Any) -> bool:
        """Change columns of a record; return False if there is none that also fits `where`."""

    @abstractmethod
    def find(self, kind: type[Kind], **where: Any) -> list[Kind]:
        """Return all records that fit, oldest first."""

    @abstractmethod
    def amount(self, kind: type[Record], **where: Any) -> tuple[int, int]:
        """Return the number of records that fit, and the sum of their `bytes`, if they have any."""

    @abstractmethod
    def delete(self, kind: type[Record], **where: Any) -> int:
        """Delete the records that fit; return their number."""

    def get(self, kind: type[Kind], id_: str, **where: Any) -> Kind | None:
        """Return the record of an id that also fits `where`."""
        return next(iter(self.find(kind, id=id_, **where)), None)

    def get_all(self, kind: type[Kind], ids: Sequence[str], **where: Any) -> list[Kind]:
        """Return the records of many ids that also fit `where`; unknown ids are left out."""
        found: list[Kind] = []
        for start in range(0, len(ids), MANY):
            found += self.find(kind, id=ids[start : start + MANY], **where)
        return found

    def count(self, kind: type[Record], **where: Any) -> int:
        """Return the number of records that fit."""
        return self.amount(kind, **where)[0]


class MemoryRows(Rows):
    """Rows that end with the process.

    SQLite's `:memory:` behind `Store` would do as much, but adds 0.8 s of SQLAlchemy's import to the 1.8 s of processor
    time in which the MCP server, which needs no database, starts.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[type[Record], dict[str, Any]] = {}

    def add(self, *records: Record) -> None:
        """Add records."""
        with self._lock:
            for record in records:
                self._tables.setdefault(type(record), {})[record.id] = record

    def add_if_new(self, *records: Record) -> bool:
        """Add records and return True; add none if one has the id of another, or the name of a named container."""
        with self._lock:
            for record in records:
                table = self._tables.get(type(record), {})
                if record.id in table or any(_same_name(record, each) for each in table.values()):
                    return False
            for record in records:
                self._tables.setdefault(type(record), {})[record.id] = record
            return True

    def change(self, kind: type[Record], id_: str, where: Mapping[str, Any] = ANYHOW, **values: Any) -> bool:
        """Change columns of a record; return False if there is none that also fits `where`."""
        with self._lock:
            table = self._tables.get(kind, {})
            if id_ not in table or not _fits_all(table[id_], where):
                return False
            table[id_] = replace(table[id_], **values)
            return True

    def find(self, kind: type[Kind], **where: Any) -> list[Kind]:
        """Return all records that fit, oldest first."""
        with self._lock:
            table = self._tables.get(kind, {})
            id_ = where.get("id")
            near = [table[id_]] if isinstance(id_, str) and id_ in table else list(table.values())
        return [row for row in near if _fits_all(row, where)]

    def amount(self, kind: type[Record], **where: Any) -> tuple[int, int]:
        """Return the number of records that fit, and the sum of their `bytes`."""
        found = self.find(kind, **where)
        return len(found), sum(getattr(row, "bytes", 0) for row in found)

    def delete(self, kind: type[Record], **where: Any) -> int:
        """Delete the records that fit; return their number."""
        found = self.find(kind, **where)
        with self._lock:
            return sum(self._tables[kind].pop(row.id, None) is not None for row in found)


def _same_name(one: Record, other: Record) -> bool:
    if not (isinstance(one, ContainerRecord) and isinstance(other, ContainerRecord) and one.origin.startswith(NAMED)):
        return False
    names = ("owner", "origin", "name", "status")
    return one.status == "active" and all(getattr(one, name) == getattr(other, name) for name in names)


def _fits_all(row: Record, where: Mapping[str, Any]) -> bool:
    return all(_fits(getattr(row, name), value) for name, value in where.items())


def _fits(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, Before):
        return value is not None and bool(value < wanted.most)
    return value in wanted if isinstance(wanted, list) else bool(value == wanted)
