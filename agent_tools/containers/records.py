"""Records of containers and files, as values: one for each, by id."""

from __future__ import annotations

import secrets
import threading
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from agent_tools.containers.config import ContainersConfig
from agent_tools.containers.failures import ContainerElsewhere, ContainerExpired, DiskFull, StorageFull
from agent_tools.machine import folder


@dataclass(frozen=True, kw_only=True)
class Record:
    """A row of a table. `created_at` is in seconds since 1970."""

    table: ClassVar[str]
    id: str


NAMED = "u-"


@dataclass(frozen=True, kw_only=True)
class ContainerRecord(Record):
    """A container. `status` is active, expiring, deleting or expired; `network` lists domains separated by spaces.

    `gateway` is the process that has its sandbox ('' for none); `generation`
    counts how often a process took it. `skills` are its own, in the format of `ContainerSpec.skills_text`. `origin` is
    the part of the gateway that made it, '' if its client did; in an origin that begins with `NAMED`, an owner has at
    most one active container of each name.
    """

    table = "containers"
    owner: str
    created_at: float
    name: str
    last_active_at: float
    idle_minutes: float
    memory_limit: str
    network: str
    status: str
    has_run: bool
    bytes: int
    gateway: str = ""
    generation: int = 0
    origin: str = ""
    skills: str = ""


@dataclass(frozen=True, kw_only=True)
class ContainerFile(Record):
    """A file in a container. `source` is user or assistant; `upload_id` is '' if it is not a copy of an upload."""

    table = "container_files"
    container_id: str
    created_at: float
    path: str
    source: str
    upload_id: str = ""


@dataclass(frozen=True, kw_only=True)
class WireValue(Record):
    """A value that a wire stores for an owner, as JSON.

    `id` is a digest of the wire, the owner and the value's name.
    """

    table = "wire_values"
    owner: str
    created_at: float
    value: str


@dataclass(frozen=True, kw_only=True)
class Upload(Record):
    """A file that a client uploaded. `expires_at` is in seconds since 1970, None if the client set no end."""

    table = "uploads"
    owner: str
    created_at: float
    filename: str
    bytes: int
    purpose: str
    expires_at: float | None = None


# Ids of objects: a prefix and hex digits of the system's randomness, at most 64 characters.


def new_id(prefix: str) -> str:
    """Return a fresh id, such as `resp_...`, `cntr_...`, `cfile_...`."""
    return f"{prefix}_{secrets.token_hex(24)}"


# Rows store records by id. These are in memory, for a single process; a database has the same methods.


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

    Attributes:
        failure: the exception that is raised while the rows cannot be reached.
    """

    failure: type[Exception]

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

    failure = LookupError  # never raised

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


# Leases: among the processes that share rows, only one at a time has the sandbox of a container.
#
# Theory of operation
#     A container's row names its holder, the process that has its sandbox, and counts in `generation` how often a
#     process took it. Acquiring and releasing are single conditional updates of the row, so of two processes that try
#     at once one fails. A holder keeps the container while it is alive, even if it is idle, since it has the variables.
#
#     A holder that parks a container, its variables saved, has it no longer, so any process may take it then. From a
#     holder that is gone the container is taken, with its last saved variables. One that only seemed gone finds another
#     generation in the row, and drops its sandbox.


class ContainerLeases:
    """The leases of one process, `holder`. Thread-safe.

    `name_of` returns the name of another holder that runs and serves its containers, '' if it does not.
    """

    def __init__(self, rows: Rows, holder: str = "here", name_of: Callable[[str], str] = lambda _: "") -> None:
        self.holder = holder
        self._name_of = name_of
        self._rows = rows

    def holds(self, row: ContainerRecord) -> bool:
        """Return True if this process has the sandbox of a container."""
        return row.gateway == self.holder

    def holder_elsewhere(self, row: ContainerRecord) -> str:
        """Return the name of the living process that has a container's sandbox; '' for this process or none."""
        return self._name_of(row.gateway) if row.gateway and not self.holds(row) else ""

    def check_holder(self, row: ContainerRecord) -> None:
        """Check that no other process has a container's sandbox. Raises ContainerElsewhere."""
        if name := self.holder_elsewhere(row):
            raise ContainerElsewhere(name)

    def take(self, id_: str, now: float) -> ContainerRecord | None:
        """Acquire a container for a call; return its previous row, with the new generation.

        Return None if another process has just changed its row.

        Raises:
            ContainerExpired: the container has ended.
            ContainerElsewhere: another process has it.
        """
        row = self._rows.get(ContainerRecord, id_, status="active")
        if row is None:
            raise ContainerExpired()
        self.check_holder(row)
        generation = row.generation + (not self.holds(row))
        as_it_was = {"status": "active", "gateway": row.gateway, "generation": row.generation}
        taken = {"gateway": self.holder, "generation": generation, "has_run": True, "last_active_at": now}
        is_taken = self._rows.change(ContainerRecord, id_, as_it_was, **taken)
        return replace(row, generation=generation) if is_taken else None

    def give_up(self, id_: str) -> None:
        """Release a container that has no sandbox in this process any more."""
        self._rows.change(ContainerRecord, id_, {"gateway": self.holder}, gateway="")

    def of_this_process(self) -> list[ContainerRecord]:
        """List the rows of the containers whose sandbox this process has."""
        return self._rows.find(ContainerRecord, gateway=self.holder)


# Quotas of each owner for containers and uploads, and the free disk space for all.

_WITH_FILES = ["active", "expiring", "deleting"]  # statuses of containers whose files are still there


class Shares:
    """Checks quotas before anything is stored. Thread-safe. `free` returns the free bytes of a path's disk."""

    def __init__(self, config: ContainersConfig, rows: Rows, free: Callable[[Path], int] = folder.free) -> None:
        self.free = free
        self._config = config
        self._rows = rows
        self._lock = threading.Lock()
        self._arriving: Counter[str] = Counter()  # bytes of uploads under way, by owner

    def check_disk(self, needed: int = 0) -> None:
        """Check that the disk of `data_dir` has room for this many more bytes.

        Raises:
            DiskFull: it does not.
        """
        if self.free(self._config.data_dir) - needed < self._config.min_disk_free:
            raise DiskFull("The gateway's disk is nearly full (min_disk_free), so nothing more is kept: try later.")

    def uploads_left(self, owner: str, needed: int = 1) -> int:
        """Return how many bytes an owner may still upload; at least the bytes needed.

        Raises:
            StorageFull: the owner has the maximum of files, or fewer bytes are left.
        """
        mend = "Delete some of them (DELETE /v1/files/{id})."
        number, size = self._rows.amount(Upload, owner=owner)
        if number >= self._config.max_uploads:
            raise StorageFull(f"You have {self._config.max_uploads:,} files, the maximum for a key. {mend}")
        left = self._config.max_uploads_bytes - size
        if left < needed:
            most = self._config.max_uploads_bytes
            raise StorageFull(f"Your files take {size:,} bytes of the {most:,} that they may. {mend}")
        return left

    def containers_left(self, owner: str) -> int:
        """Return how many bytes may still be added to the files in an owner's containers.

        Raises:
            StorageFull: no bytes are left.
        """
        left = self.containers_room(owner)
        if left <= 0:
            message = (
                f"The files in your containers take all {self._config.max_containers_bytes:,} bytes that they may."
            )
            raise StorageFull(f"{message} Delete containers (DELETE /v1/containers/{{id}}) or files in them.")
        return left

    def containers_room(self, owner: str) -> int:
        """Return the bytes that `containers_left` returns; negative if the files are larger than allowed."""
        _, size = self._rows.amount(ContainerRecord, owner=owner, status=_WITH_FILES)
        return self._config.max_containers_bytes - size

    def spool(self) -> Path:
        """Return the folder in which uploads are kept while they arrive."""
        path = self._config.data_dir / "arriving"
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    @contextmanager
    def arriving(self, owner: str, left: int) -> Iterator[Callable[[int], None]]:
        """Count an upload while it arrives, with the owner's other uploads; call the result with each piece's bytes.

        Raises:
            StorageFull: the uploads together exceed the share.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            with self._lock:
                self._arriving[owner] += size
                taken += size
                arriving = self._arriving[owner]
            if arriving > left:
                raise StorageFull("This upload exceeds your share: delete some of your files, or send less at once.")

        try:
            yield take
        finally:
            with self._lock:
                self._arriving[owner] -= taken
                if not self._arriving[owner]:
                    del self._arriving[owner]
