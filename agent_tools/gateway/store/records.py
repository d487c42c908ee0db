"""Dataclasses for the rows of responses, conversations and keys.

A class with some of its table's columns is read without the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent_tools.containers.records import Record


@dataclass(frozen=True, kw_only=True)
class ResponseHead(Record):
    """The short columns of a response."""

    table = "responses"
    owner: str
    created_at: float
    status: str
    background: bool
    gateway: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class ResponseBody(Record):
    """A response's body, as JSON."""

    table = "responses"
    status: str
    body: str


@dataclass(frozen=True, kw_only=True)
class ResponseInput(Record):
    """A response's input: a line of JSON for each item."""

    table = "responses"
    input: str


@dataclass(frozen=True, kw_only=True)
class ResponseEnd(Record):
    """The columns of a response that the next one builds on.

    `tools` is JSON: the tools that items of the conversation have brought, which no client sends again.
    """

    table = "responses"
    status: str
    container_id: str | None
    conversation: str
    tools: str = "[]"


@dataclass(frozen=True, kw_only=True)
class ResponseTurn(Record):
    """The input of a response, one line of JSON for each item, and its body, which names the response before."""

    table = "responses"
    body: str
    input: str


@dataclass(frozen=True, kw_only=True)
class StoredResponse(ResponseEnd, ResponseTurn, ResponseHead):  # whose columns come first
    """A whole response. `bytes` counts its texts, its events, and the results of calls that the model read.

    `gateway` is the id of the gateway that makes it.
    """


@dataclass(frozen=True, kw_only=True)
class StoredItem(Record):
    """The place of an output item: the response it is in."""

    table = "items"
    owner: str
    created_at: float
    response_id: str


@dataclass(frozen=True, kw_only=True)
class StoredCall(Record):
    """Fields of an item that clients do not see: a call's result for the model, and fields of the model's server."""

    table = "calls"
    owner: str
    created_at: float
    tool_answer: str
    server_fields: str = ""


@dataclass(frozen=True, kw_only=True)
class StoredEvents(Record):
    """All events of a response that was made in the background."""

    table = "events"
    created_at: float
    data: bytes


@dataclass(frozen=True, kw_only=True)
class StoredFingerprint(Record):
    """A conversation's fingerprint and its container: '' if it had none, None if several conversations share it.

    `asked` is set in the row of an answer that was gone on from: the fingerprint of the request that did so first.
    """

    table = "fingerprints"
    owner: str
    created_at: float
    container_id: str | None
    asked: str


@dataclass(frozen=True, kw_only=True)
class GatewayRow(Record):
    """A gateway that is alive: the id of its `data_dir`, and its last heartbeat.

    `process` is the JSON of its `Owner.labels`, `address` is its host name and port, by which it is named to people.
    """

    table = "gateways"
    created_at: float
    seen_at: float
    process: str
    folder: str
    address: str


@dataclass(frozen=True, kw_only=True)
class StoredConversation(Record):
    """A conversation that a client made: `metadata` is JSON, `container_id` that of its latest call."""

    table = "conversations"
    owner: str
    created_at: float
    used_at: float
    metadata: str
    container_id: str | None


@dataclass(frozen=True, kw_only=True)
class ConversationPlace(Record):
    """The place of an item in a conversation: `id` ends with its number there, `bytes` is its size."""

    table = "conversation_items"
    created_at: float
    conversation_id: str
    item_id: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class ConversationText(Record):
    """An item of a conversation: its own id, and its JSON."""

    table = "conversation_items"
    item_id: str
    item: str


@dataclass(frozen=True, kw_only=True)
class ConversationItem(ConversationPlace):
    """An item of a conversation: its JSON, and the answer that the model got if it is a call; '' otherwise.

    `server_fields` are those of its model's server, as JSON.
    """

    owner: str
    item: str
    tool_answer: str
    server_fields: str = ""


@dataclass(frozen=True, kw_only=True)
class StoredSkill(Record):
    """A skill that a client uploaded: `last_number` is the newest number of a version, which never comes again."""

    table = "skills"
    owner: str
    created_at: float
    name: str
    default_number: int
    last_number: int


@dataclass(frozen=True, kw_only=True)
class StoredSkillVersion(Record):
    """A version of a skill. Its zip is the upload of this id."""

    table = "skill_versions"
    owner: str
    created_at: float
    skill_id: str
    number: int
    description: str


@dataclass(frozen=True, kw_only=True)
class ApiKey(Record):
    """A named key: `id` is the name, `digest` the SHA-256 of the key. A limit of None means the gateway's own.

    A client with a `for_users` key may name the user of each request. `group` is none's key: it lets the users of a
    group in, with these limits. `volumes` has names with commas between them. `operator`: see `AcceptedKey`.
    """

    table = "api_keys"
    owner: str
    digest: str
    created_at: float
    max_containers: int | None
    max_requests_per_minute: int | None
    revoked_at: float | None
    for_users: bool = False
    group: str | None = None
    volumes: str | None = None
    operator: bool = False


@dataclass(frozen=True, kw_only=True)
class UsageRow(Record):
    """Usage of one day (UTC) by one user of a key, or by one who has signed on: docs/usage.md has the columns."""

    table = "usage"
    created_at: float
    day: str
    owner: str
    key_name: str
    user_name: str
    runs: int = 0
    milliseconds: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
