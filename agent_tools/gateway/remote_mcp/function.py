"""A tool of a remote MCP server, as a function for code in a container."""

from __future__ import annotations

import asyncio
from typing import Any

from agent_tools.code_mode.hints import NotCrossing
from agent_tools.code_mode.schema import stub_of_schema
from agent_tools.code_mode.stubs import Stub, check_name, module_source
from agent_tools.gateway.remote_mcp.connections import McpConnection
from agent_tools.gateway.remote_mcp.remote_server import RemoteFailure
from agent_tools.gateway.remote_mcp.tool import answer_text
from agent_tools.models.base import JsonObject
from agent_tools.runtime.host_calls.function import Keywords, Policy, only_keywords

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
        given = only_keywords(self.name, args, kwargs)
        answer = await asyncio.to_thread(self._connection.call, self._tool, given)
        if answer.get("isError"):
            raise RemoteFailure(answer_text(answer) or "The tool failed.", "mcp_tool_execution_error")
        structured = answer.get("structuredContent")
        return answer_text(answer) if structured is None else structured


def _stub(name: str, listed: JsonObject) -> Stub:
    """Return the stub, without types if the server's schemas cannot be expressed as types."""
    about, schema = str(listed.get("description") or ""), listed.get("inputSchema") or {}
    try:
        stub = stub_of_schema(name, about, schema, listed.get("outputSchema"))
        module_source([stub], is_async=False)
    except _ODD:
        properties = schema.get("properties") if isinstance(schema, dict) else None
        plain: JsonObject = {str(each): {} for each in properties} if isinstance(properties, dict) else {}
        stub = stub_of_schema(name, about, {"properties": plain}, {})
    return stub
