"""Records of containers and files, as values: one for each, by id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Record:
    """A row of a table. `created_at` is in seconds since 1970."""

    table: ClassVar[str]
    id: str


NAMED = "u-"
ALL_VOLUMES = "*"


@dataclass(frozen=True, kw_only=True)
class ContainerRecord(Record):
    """A container. `status` is active, expiring, deleting or expired; `network` lists domains separated by spaces.

    `gateway` is the process that has its sandbox ('' for none); `generation`
    counts how often a process took it. `skills` are its own, in the format of `ContainerSpec.skills_text`. `origin` is
    the part of the gateway that made it, '' if its client did; in an origin that begins with `NAMED`, an owner has at
    most one active container of each name. `volumes` are its own, in the format of `engines.volumes.chosen` with
    spaces between them; `ALL_VOLUMES` for all that its owner may use.
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
    volumes: str = ALL_VOLUMES


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
