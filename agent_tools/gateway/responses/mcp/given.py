"""The `mcp` tools of a request: their servers, and which of their tools are offered, and after whose approval.

The fields are those of https://platform.openai.com/docs/api-reference/responses/create. `headers` and `authorization`
are sent to the server, and neither stored nor repeated; of a URL, the response repeats the host alone.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from agent_tools.code_mode.stubs import python_name
from agent_tools.gateway.remote_mcp.reach import Reach, RemoteServer, ServerRefused
from agent_tools.gateway.remote_mcp.tool import plain_name
from agent_tools.gateway.requests.failures import invalid
from agent_tools.gateway.requests.fields import Fields
from agent_tools.gateway.responses.client_calls.tools import MAX_NAME
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


@dataclass(frozen=True)
class ToolFilter:
    """Some of a server's tools: by name, and by their own word that they only read. None leaves that open."""

    names: frozenset[str] | None = None
    read_only: bool | None = None

    def fits(self, listed: Mapping[str, Any]) -> bool:
        """Return whether a tool, as MCP lists it, is one of them."""
        if self.names is not None and listed.get("name") not in self.names:
            return False
        notes = listed.get("annotations")
        only_reads = isinstance(notes, dict) and notes.get("readOnlyHint") is True
        return self.read_only is None or self.read_only == only_reads


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


def read_server(fields: Fields, reach: Reach) -> GivenServer:
    """Read an `mcp` tool.

    Raises:
        ApiError: 400.
    """
    for name in ("connector_id", "tunnel_id"):
        if fields.given.get(name):
            raise invalid(f"'{name}' is not supported here: give the server's 'server_url'.", fields.param(name))
    callers = frozenset(map(str, fields.array("allowed_callers") or ("direct",)))
    if not callers <= {"direct", "programmatic"}:
        message = "Expected 'direct', 'programmatic' or both."
        raise invalid(message, fields.param("allowed_callers"), "invalid_value")
    label, url = fields.needed("server_label"), fields.needed("server_url")
    if not _LABEL.fullmatch(label):
        message = "A server's label has at most 64 letters, digits, '-' and '_'."
        raise invalid(message, fields.param("server_label"), "invalid_value")
    try:
        reach.target(url)
    except ServerRefused as exc:
        raise invalid(str(exc), fields.param("server_url"), "unsupported_value") from exc
    about = fields.text("server_description") or ""
    if len(about) > MAX_ABOUT:
        message = f"A server's description has at most {MAX_ABOUT:,} characters."
        raise invalid(message, fields.param("server_description"), "invalid_value")
    always, unasked = _approval(fields)
    server = RemoteServer(label, url, _headers(fields), about)
    return GivenServer(server, _allowed(fields), always, unasked, callers, _shown(fields, url))


def _headers(fields: Fields) -> dict[str, str]:
    """Return the headers that are sent; no message holds a value of them."""
    given, found = Fields(fields.object("headers") or {}, fields.param("headers")), {}
    if len(given.given) > MAX_HEADERS:
        raise invalid(f"At most {MAX_HEADERS} headers are sent.", given.path, "invalid_value")
    for name in given.given:
        value = given.text(name) or ""
        if not _HEADER.fullmatch(name) or name.lower() in _OURS or not _is_value(value):
            raise invalid("A header cannot be sent: give names and texts on one line.", given.path, "invalid_value")
        found[name] = value
    if token := fields.text("authorization"):
        if not _is_value(token):
            raise invalid("It cannot be sent as a header.", fields.param("authorization"), "invalid_value")
        found = {**{name: text for name, text in found.items() if name.lower() != "authorization"}}
        found["Authorization"] = f"Bearer {token}"
    return found


def _is_value(text: str) -> bool:
    return len(text) <= MAX_HEADER and bool(_VALUE.fullmatch(text))


def _allowed(fields: Fields) -> ToolFilter:
    value = fields.given.get("allowed_tools")
    if value is None:
        return ToolFilter()
    if isinstance(value, list):
        return ToolFilter(_names(fields, "allowed_tools"))
    if isinstance(value, dict):
        return _filter(Fields(value, fields.param("allowed_tools")))
    raise fields.wrong("allowed_tools", "an array or an object")


def _approval(fields: Fields) -> tuple[ToolFilter | None, ToolFilter | None]:
    """Return the tools that always need approval, and those that never do; without a word, all need it."""
    value = fields.given.get("require_approval")
    if value in (None, "always"):
        return None, None
    if value == "never":
        return None, ToolFilter()
    if not isinstance(value, dict):
        raise invalid("Expected 'always', 'never' or an object.", fields.param("require_approval"), "invalid_value")
    given = Fields(value, fields.param("require_approval"))
    always, never = (
        _filter(Fields(given.object(name) or {}, given.param(name))) if given.given.get(name) is not None else None
        for name in ("always", "never")
    )
    return always, ToolFilter() if always is not None and never is None else never


def _filter(given: Fields) -> ToolFilter:
    names = _names(given, "tool_names") if given.given.get("tool_names") is not None else None
    return ToolFilter(names, given.flag("read_only"))


def _names(given: Fields, name: str) -> frozenset[str]:
    values = given.array(name)
    if len(values) > MAX_NAMES or not all(isinstance(value, str) for value in values):
        raise invalid(f"Expected at most {MAX_NAMES} names of tools.", given.param(name), "invalid_value")
    return frozenset(values)


def _shown(fields: Fields, url: str) -> JsonObject:
    parts = urlsplit(url)
    more = "<redacted>" if parts.path.strip("/") or parts.query or parts.fragment else ""
    shown = {name: fields.given[name] for name in _SHOWN if fields.given.get(name) is not None}
    host = f"{parts.scheme}://{parts.netloc}/{more}"
    return {"type": "mcp", "server_url": host, "require_approval": "always", **shown}


# The names under which a model, and code, know the tools of MCP servers. Pure.
#
# Two tools never share a name, nor does a tool get another's name in a later response, whose list may be another: a
# name
# that is not made of a label and a tool's own name in one way alone ends with a mark of both.


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
