"""A tool of a remote MCP server, for the model and for code."""

from __future__ import annotations

import re
from typing import Any

from agent_tools.code_mode.mcp_answer import answer_text
from agent_tools.gateway.remote_mcp.connections import McpConnection
from agent_tools.gateway.remote_mcp.remote_server import RemoteFailure
from agent_tools.json_reader import load_json
from agent_tools.models.base import JsonObject
from agent_tools.text import shorten
from agent_tools.tools.base import BaseTool, Params

_REFUSED = re.compile(r"[^0-9A-Za-z_-]")  # in names of functions, by most servers of models
MAX_OUTPUT = 40_000  # characters of what a call returns: the first and the last half
_NO_RESULT = "(The tool returned nothing.)"


def plain_name(name: str) -> str:
    """Return a tool's name with only the characters that all model servers accept."""
    return _REFUSED.sub("_", name)


class RemoteTool(BaseTool):
    """A tool of a server. `own_name` is its name there, `name` the one for the model.

    Attributes:
        needs_approval: a person is asked before each call.
    """

    def __init__(self, connection: McpConnection, listed: JsonObject, name: str, needs_approval: bool) -> None:
        self.name = name
        self.own_name = str(listed["name"])
        self.label = connection.server.label
        about = connection.server.about
        self.description = "\n\n".join(filter(None, [str(listed.get("description") or ""), about]))
        self.needs_approval = needs_approval
        self._connection = connection
        super().__init__()
        self.parameters = _object_schema(listed.get("inputSchema"))

    def call(self, params: Params, **kwargs: Any) -> str:
        """Call the tool and return its answer, shortened to MAX_OUTPUT characters.

        Raises:
            RemoteFailure: it failed, or could not be called.
        """
        try:
            arguments = load_json(params) if isinstance(params, str) and params.strip() else params or {}
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise RemoteFailure("The arguments are no JSON object.", "mcp_tool_execution_error")
        answer = self._connection.call(self.own_name, arguments)
        text = shorten(answer_text(answer), MAX_OUTPUT)
        if answer.get("isError"):
            raise RemoteFailure(text or "The tool failed.", "mcp_tool_execution_error")
        return text or _NO_RESULT


def _object_schema(schema: Any) -> JsonObject:
    """Return the schema of a tool's arguments; a malformed one becomes one without properties."""
    given = schema if isinstance(schema, dict) else {}
    return {**given, "type": "object", "properties": given.get("properties") or {}}
