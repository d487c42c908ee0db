"""Reads the `mcp` tools of a request: their servers, the offered tools, and the approvals they need.

The fields are those of https://platform.openai.com/docs/api-reference/responses/create. `headers` and `authorization`
are sent to the server, and neither stored nor repeated; of a URL, the response repeats the host alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Union
from urllib.parse import urlsplit

from pydantic import AfterValidator

from agent_tools.bodies import json_body
from agent_tools.gateway.remote_mcp.allowed_servers import AllowedServers, ServerNotAllowed
from agent_tools.gateway.remote_mcp.remote_server import RemoteServer
from agent_tools.gateway.requests.api_errors import invalid
from agent_tools.gateway.requests.container_fields import Needed
from agent_tools.gateway.requests.fields import ARRAY, OBJECT, TEXT, RequestModel, at_most, by_shape, read, wrong
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


class ToolFilter(RequestModel):
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


class _Approval(RequestModel):
    always: ToolFilter | None = None
    never: ToolFilter | None = None


class _Server(RequestModel):
    connector_id: Annotated[Any, AfterValidator(_no_connector)] = None
    tunnel_id: Annotated[Any, AfterValidator(_no_connector)] = None
    allowed_callers: Annotated[list[Any], AfterValidator(_callers)] = ["direct"]
    server_label: Annotated[Needed, AfterValidator(_label)]
    server_url: Needed
    server_description: Annotated[str, at_most(MAX_ABOUT, "A server's description")] = ""
    headers: Annotated[dict[str, str], AfterValidator(_headers), json_body.at_most(MAX_HEADERS)] = {}
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
