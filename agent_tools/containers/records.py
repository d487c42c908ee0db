"""Records of containers and files, as values: one for each, by id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Record:
    """A row of a table. `created_at` is in seconds since 1970."""

    table: ClassVar[str]
    id: str


@dataclass(frozen=True, kw_only=True)
class Container(Record):
    """A container; its `status` is active, expiring, deleting or expired, its `network` domains between spaces.

    `gateway` is the process that has its sandbox and `wanted_by` one that waits for it, '' for none; `generation`
    counts the times that one took it. `origin` is the part of the gateway that made it, '' if its client did.
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
    wanted_by: str = ""
    generation: int = 0
    origin: str = ""


@dataclass(frozen=True, kw_only=True)
class ContainerFile(Record):
    """A file in a container; its `source` is user or assistant, its `upload_id` '' if it is none's copy."""

    table = "container_files"
    container_id: str
    created_at: float
    path: str
    source: str
    upload_id: str = ""


@dataclass(frozen=True, kw_only=True)
class Upload(Record):
    """A file that a client uploaded."""

    table = "uploads"
    owner: str
    created_at: float
    filename: str
    bytes: int
    purpose: str
