"""The rows of the store as values. A class with some of its table's columns is read without the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import sqlalchemy as sa

from agent_tools.gateway.store import tables


@dataclass(frozen=True, kw_only=True)
class Record:
    """A row of `table`."""

    table: ClassVar[sa.Table]


@dataclass(frozen=True, kw_only=True)
class Container(Record):
    """A container; its `status` is active, expiring, deleting or expired, its `network` domains between spaces."""

    table = tables.containers
    id: str
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


@dataclass(frozen=True, kw_only=True)
class ContainerFile(Record):
    """A file in a container; its `source` is user or assistant."""

    table = tables.container_files
    id: str
    container_id: str
    created_at: float
    path: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Upload(Record):
    """A file that a client uploaded."""

    table = tables.uploads
    id: str
    owner: str
    created_at: float
    filename: str
    bytes: int
    purpose: str


@dataclass(frozen=True, kw_only=True)
class ResponseHead(Record):
    """The short columns of a response."""

    table = tables.responses
    id: str
    owner: str
    status: str
    background: bool
    bytes: int


@dataclass(frozen=True, kw_only=True)
class ResponseBody(Record):
    """A response's body, as JSON."""

    table = tables.responses
    id: str
    status: str
    body: str


@dataclass(frozen=True, kw_only=True)
class ResponseInput(Record):
    """A response's input: a line of JSON for each item."""

    table = tables.responses
    id: str
    input: str


@dataclass(frozen=True, kw_only=True)
class ResponseEnd(Record):
    """The columns of a response that the next one builds on."""

    table = tables.responses
    id: str
    status: str
    container_id: str | None
    conversation: str


@dataclass(frozen=True, kw_only=True)
class StoredResponse(Record):
    """A whole response."""

    table = tables.responses
    id: str
    owner: str
    created_at: float
    status: str
    background: bool
    bytes: int
    container_id: str | None
    body: str
    input: str
    conversation: str


@dataclass(frozen=True, kw_only=True)
class StoredItem(Record):
    """The place of an output item: the response it is in."""

    table = tables.items
    id: str
    owner: str
    created_at: float
    response_id: str


@dataclass(frozen=True, kw_only=True)
class StoredCall(Record):
    """The result of a call as the model was told of it."""

    table = tables.calls
    id: str
    owner: str
    created_at: float
    told: str


@dataclass(frozen=True, kw_only=True)
class StoredEvents(Record):
    """All events of a response that was made in the background."""

    table = tables.events
    id: str
    created_at: float
    data: bytes


@dataclass(frozen=True, kw_only=True)
class BackgroundClaim(Record):
    """The gateway that makes a response in the background, and its last sign of life."""

    table = tables.background
    id: str
    created_at: float
    gateway: str
    seen_at: float
