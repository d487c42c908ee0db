"""Reads the `mcp` tools of a request: their servers, the offered tools, and the approvals they need.

The fields are those of https://platform.openai.com/docs/api-reference/responses/create. `headers` and `authorization`
are sent to the server, and neither stored nor repeated; of a URL, the response repeats the host alone.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Union
from urllib.parse import urlsplit

from pydantic import AfterValidator

from agent_tools.code_mode.stubs import python_name
from agent_tools.gateway.remote_mcp.allowed_servers import AllowedServers, RemoteServer, ServerNotAllowed
from agent_tools.gateway.remote_mcp.tool import plain_name
from agent_tools.gateway.requests.failures import invalid
from agent_tools.gateway.requests.fields import ARRAY, OBJECT, TEXT, Given, Needed, at_most, by_shape, read, wrong
from agent_tools.gateway.responses.client_tools import MAX_NAME
from agent_tools.models.base import JsonObject

MAX_HEADERS = 32
MAX_HEADER = 8_192  # characters of a header's value, or of `authorization`
MAX_NAMES = 512  # of tools in a filter
MAX_ABOUT = 4_096  # characters of a server's description
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")  # RFC 9110, 5.6.2
_VALUE = re.compile(r"[\x20-\x7e]*")
_OURS = frozenset(("host", "content-length", "transfer-encoding", "connection", "accept-encoding", "upgrade", "te"))
_SHOWN = ("server_label", "server_description", "allowed_tools", "require_approval", "allowed_callers")
_APPROVAL = "Expected 'always', 'never' or an object."


def _no_connector(value: Any) -> Any:
    if value:
        raise wrong("'{name}' is not supported here: give the server's 'server_url'.", None)
    return value


def _callers(callers: list[Any]) -> frozenset[str]:
    found = frozenset(map(str, callers or ("direct",)))
    if not found <= {"direct", "programmatic"}:
        raise wrong("Expected 'direct', 'programmatic' or both.")
    return found


def _label(label: str) -> str:
    if not _LABEL.fullmatch(label):
        raise wrong("A server's label has at most 64 letters, digits, '-' and '_'.")
    return label


def _headers(headers: dict[str, str]) -> dict[str, str]:
    """Check the headers that are sent; no message holds a value of them."""
    if len(headers) > MAX_HEADERS:
        raise wrong(f"At most {MAX_HEADERS} headers are sent.")
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or name.lower() in _OURS or not _is_value(value):
            raise wrong("A header cannot be sent: give names and texts on one line.")
    return headers


def _token(token: str) -> str:
    if not _is_value(token):
        raise wrong("It cannot be sent as a header.")
    return token


def _is_value(text: str) -> bool:
    return len(text) <= MAX_HEADER and bool(_VALUE.fullmatch(text))


def _names(values: list[Any]) -> frozenset[str]:
    if len(values) > MAX_NAMES or not all(isinstance(value, str) for value in values):
        raise wrong(f"Expected at most {MAX_NAMES} names of tools.")
    return frozenset(values)


def _word(word: str) -> str:
    if word not in ("always", "never"):
        raise wrong(_APPROVAL)
    return word


_Names = Annotated[list[Any], AfterValidator(_names)]


class ToolFilter(Given):
    """Some of a server's tools, by name and by their read-only hint. None accepts both values of the hint."""

    tool_names: _Names | None = None
    read_only: bool | None = None

    def fits(self, listed: Mapping[str, Any]) -> bool:
        """Return whether a tool, as MCP lists it, is one of them."""
        if self.tool_names is not None and listed.get("name") not in self.tool_names:
            return False
        notes = listed.get("annotations")
        only_reads = isinstance(notes, dict) and notes.get("readOnlyHint") is True
        return self.read_only is None or self.read_only == only_reads


class _Approval(Given):
    always: ToolFilter | None = None
    never: ToolFilter | None = None


class _Server(Given):
    connector_id: Annotated[Any, AfterValidator(_no_connector)] = None
    tunnel_id: Annotated[Any, AfterValidator(_no_connector)] = None
    allowed_callers: Annotated[list[Any], AfterValidator(_callers)] = ["direct"]
    server_label: Annotated[Needed, AfterValidator(_label)]
    server_url: Needed
    server_description: Annotated[str, at_most(MAX_ABOUT, "A server's description")] = ""
    headers: Annotated[dict[str, str], AfterValidator(_headers)] = {}
    authorization: Annotated[str, AfterValidator(_token)] = ""
    allowed_tools: Annotated[
        Union[Annotated[_Names, ARRAY], Annotated[ToolFilter, OBJECT]], by_shape("an array or an object")
    ] = ToolFilter()
    require_approval: Annotated[
        Union[Annotated[str, AfterValidator(_word), TEXT], Annotated[_Approval, OBJECT]],
        by_shape(_APPROVAL, "invalid_value"),
    ] = "always"

    @property
    def sent(self) -> dict[str, str]:
        """The headers that are sent to the server."""
        if not self.authorization:
            return self.headers
        others = {name: text for name, text in self.headers.items() if name.lower() != "authorization"}
        return {**others, "Authorization": f"Bearer {self.authorization}"}

    @property
    def approval(self) -> tuple[ToolFilter | None, ToolFilter | None]:
        """The tools that always need approval, and the tools that never do; by default, all need it."""
        given = self.require_approval
        if isinstance(given, str):
            return None, None if given == "always" else ToolFilter()
        return given.always, ToolFilter() if given.always is not None and given.never is None else given.never


@dataclass(frozen=True)
class GivenServer:
    """A server of a request. A tool is called without a person's approval if `unasked` has it.

    Attributes:
        allowed: the tools that are offered.
        always: tools that need approval although `unasked` has them all; None without such.
        unasked: tools that need none.
        callers: `direct` if the model calls its tools, `programmatic` if code does.
        shown: what the response repeats.
    """

    server: RemoteServer
    allowed: ToolFilter
    always: ToolFilter | None
    unasked: ToolFilter | None
    callers: frozenset[str]
    shown: JsonObject

    def needs_approval(self, listed: Mapping[str, Any]) -> bool:
        """Return whether a person is asked before a call of this tool, as MCP lists it."""
        if self.always is not None and self.always.fits(listed):
            return True
        return self.unasked is None or not self.unasked.fits(listed)


def read_server(tool: Mapping[str, Any], servers: AllowedServers, path: str) -> GivenServer:
    """Read an `mcp` tool."""
    given = read(_Server, tool, path)
    try:
        servers.target(given.server_url)
    except ServerNotAllowed as exc:
        raise invalid(str(exc), f"{path}.server_url", "unsupported_value") from exc
    server = RemoteServer(given.server_label, given.server_url, given.sent, given.server_description)
    allowed = given.allowed_tools
    fits = allowed if isinstance(allowed, ToolFilter) else ToolFilter.model_construct(tool_names=allowed)
    parts = urlsplit(given.server_url)
    more = "<redacted>" if parts.path.strip("/") or parts.query or parts.fragment else ""
    shown = {name: tool[name] for name in _SHOWN if tool.get(name) is not None}
    host = {"server_url": f"{parts.scheme}://{parts.netloc}/{more}"}
    shown = {"type": "mcp", **host, "require_approval": "always", **shown}
    return GivenServer(server, fits, *given.approval, frozenset(given.allowed_callers), shown)


# The names under which a model, and code, know the tools of MCP servers. Pure.
#
# Two tools never share a name, and no tool gets another's name in a later response, which may list other tools: an
# ambiguous name ends with a hash of label and tool name.


_BETWEEN = "__"


def model_name(label: str, name: str) -> str:
    """Return the name of a server's tool for the model, in characters that all servers of models take."""
    plain = plain_name(name)
    whole = f"{label}{_BETWEEN}{plain}"
    is_clear = plain == name and _BETWEEN not in label and not label.endswith("_")
    return whole if is_clear and len(whole) <= MAX_NAME else _marked(whole, label, name)


def code_name(label: str, name: str, *, is_marked: bool = False) -> str:
    """Return the name of the function by which code calls a server's tool; a marked one is no other tool's."""
    plain = unicodedata.normalize("NFKC", python_name(f"{label}_{name}"))  # as Python reads it
    whole = f"mcp{plain}" if plain.startswith("_") else plain
    return _marked(whole, label, name) if is_marked else whole


def _marked(whole: str, label: str, name: str) -> str:
    mark = hashlib.sha256(f"{label}\n{name}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{whole[: MAX_NAME - 9]}_{mark}"


# Decisions of a person on calls, and the calls of a conversation that they belong to. Pure.


REQUEST, RESPONSE = "mcp_approval_request", "mcp_approval_response"
MAX_REASON = 2_000  # characters that the model gets


@dataclass(frozen=True)
class Decision:
    """An answer to a request. `name` is the tool's own, of the server `label`; `is_new` if it came with this input."""

    request_id: str
    is_approved: bool
    reason: str
    label: str = ""
    name: str = ""
    arguments: str = ""
    is_new: bool = True

    @property
    def refusal(self) -> str:
        """The model's answer to a call that the user did not approve."""
        return f"The user did not approve this call. {self.reason[:MAX_REASON]}".strip()


class _Answer(Given):
    approve: bool
    approval_request_id: Needed
    reason: str = ""


def read_decisions(items: Sequence[Mapping[str, Any]], path: str = "input") -> list[tuple[Decision, str]]:
    """Return the decisions among items, each with its item's path.

    Raises:
        ApiError: 400, one of them is malformed.
    """
    found = []
    for index, item in enumerate(items):
        if item.get("type") == RESPONSE:
            given = read(_Answer, item, f"{path}[{index}]")
            found.append((Decision(given.approval_request_id, given.approve, given.reason), f"{path}[{index}]"))
    return found


def executed(items: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the ids of requests whose calls are among the items, since they were made."""
    return frozenset(str(item.get("approval_request_id")) for item in items if item.get("type") == "mcp_call")


def asked(items: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the ids of the requests for approval among the items."""
    return frozenset(str(item.get("id")) for item in items if item.get("type") == REQUEST)


@dataclass(frozen=True)
class OpenCall:
    """A call in messages that has no answer yet; one belongs at `index` among them."""

    index: int
    id: str
    name: str
    arguments: str


def open_calls(messages: Sequence[JsonObject]) -> Iterator[OpenCall]:
    """Yield the calls without an answer, the last ones first, so that answers can be put in as they come."""
    for place in range(len(messages) - 1, -1, -1):
        calls = messages[place].get("tool_calls") or ()
        end = place + 1
        while end < len(messages) and messages[end].get("role") == "tool":
            end += 1
        answered = {message.get("tool_call_id") for message in messages[place + 1 : end]}
        for call in reversed(list(calls)):
            if call["id"] not in answered:
                yield OpenCall(end, call["id"], call["function"]["name"], call["function"]["arguments"])


def answer(call: OpenCall, text: str) -> JsonObject:
    """Return the message that answers a call."""
    return {"role": "tool", "tool_call_id": call.id, "content": text}
