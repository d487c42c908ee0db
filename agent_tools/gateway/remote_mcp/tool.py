"""A tool of an MCP server elsewhere, as a model calls it."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from agent_tools.code_mode.hints import NotCrossing
from agent_tools.code_mode.schema import stub_of_schema
from agent_tools.code_mode.stubs import Stub, check_name, module_source
from agent_tools.code_reader import load_json
from agent_tools.gateway.remote_mcp.allowed_servers import RemoteFailure
from agent_tools.gateway.remote_mcp.connection import McpConnection
from agent_tools.models.base import JsonObject
from agent_tools.runtime.host_calls.function import ArgumentError, Keywords, Policy
from agent_tools.text import shorten
from agent_tools.tools.base import BaseTool, Params

_REFUSED = re.compile(r"[^0-9A-Za-z_-]")  # in names of functions, by most servers of models
MAX_OUTPUT = 40_000  # characters of what a call returns: the first and the last half
_NO_RESULT = "(The tool returned nothing.)"


def plain_name(name: str) -> str:
    """Return a tool's name with the characters only that all servers of models take."""
    return _REFUSED.sub("_", name)


class RemoteTool(BaseTool):
    """A tool as its server lists it. `own_name` is its name there, `name` the one for the model.

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
        """Call the tool and return what it says, shortened to MAX_OUTPUT characters.

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


def answer_text(answer: JsonObject) -> str:
    """Return an answer's text: its parts, with pictures and other things named, else its structured content."""
    parts = [part for part in answer.get("content") or () if isinstance(part, dict)]
    found = "\n".join(_text(part) for part in parts)
    structured = answer.get("structuredContent")
    return json.dumps(structured, ensure_ascii=False) if structured is not None and not found else found


def _text(part: JsonObject) -> str:
    if isinstance(part.get("text"), str):
        return str(part["text"])
    resource = part.get("resource")
    if isinstance(resource, dict) and isinstance(resource.get("text"), str):
        return str(resource["text"])
    return f"[{part.get('type', 'content')!s:.40}]"


def _object_schema(schema: Any) -> JsonObject:
    """Return the schema of a tool's arguments; a malformed one becomes one without properties."""
    given = schema if isinstance(schema, dict) else {}
    return {**given, "type": "object", "properties": given.get("properties") or {}}


# A tool of an MCP server elsewhere, as a function that code in a container calls.


_ODD = (AttributeError, KeyError, TypeError, ValueError, RecursionError, NotCrossing)
"""The errors of a malformed schema."""


class RemoteFunction:
    """`name(**arguments)` in the code. The server itself checks the arguments."""

    def __init__(self, connection: McpConnection, listed: JsonObject, name: str, timeout: float) -> None:
        self._tool = str(listed["name"])
        self._connection = connection
        self.name = name
        check_name(self.name)
        self.policy = Policy(timeout=timeout)
        self.stub = _stub(self.name, listed)

    async def call(self, args: tuple[Any, ...], kwargs: Keywords) -> Any:
        """Call the tool; return its structured content, else its text.

        Raises:
            ArgumentError: an argument was given without its name.
            RemoteFailure: it failed, or could not be called.
        """
        if args:
            raise ArgumentError(f"{self.name} takes keyword arguments only.")
        given = {name: value for name, value in kwargs.items() if value is not None}
        answer = await asyncio.to_thread(self._connection.call, self._tool, given)
        if answer.get("isError"):
            raise RemoteFailure(answer_text(answer) or "The tool failed.", "mcp_tool_execution_error")
        structured = answer.get("structuredContent")
        return answer_text(answer) if structured is None else structured


def _stub(name: str, listed: JsonObject) -> Stub:
    """Return the stub; one without types if the server's schemas have none that can be written."""
    about, schema = str(listed.get("description") or ""), listed.get("inputSchema") or {}
    try:
        stub = stub_of_schema(name, about, schema, listed.get("outputSchema"))
        module_source([stub], is_async=False)
    except _ODD:
        properties = schema.get("properties") if isinstance(schema, dict) else None
        plain: JsonObject = {str(each): {} for each in properties} if isinstance(properties, dict) else {}
        stub = stub_of_schema(name, about, {"properties": plain}, {})
    return stub
