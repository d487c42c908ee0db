"""A tool of an MCP server elsewhere, as a function that code in a container calls."""

from __future__ import annotations

import asyncio
from typing import Any

from agent_tools.code_mode.hints import NotCrossing
from agent_tools.code_mode.schema import stub_of_schema
from agent_tools.code_mode.stubs import Stub, check_name, module_source
from agent_tools.gateway.remote_mcp.connection import Connection
from agent_tools.gateway.remote_mcp.server import RemoteFailure
from agent_tools.gateway.remote_mcp.tool import told
from agent_tools.models.base import JsonObject
from agent_tools.runtime.host_calls.function import ArgumentError, Keywords, Policy

_ODD = (AttributeError, KeyError, TypeError, ValueError, RecursionError, NotCrossing)
"""The errors of a schema that is none."""


class RemoteFunction:
    """`name(**arguments)` in the code. The server itself checks the arguments."""

    def __init__(self, connection: Connection, listed: JsonObject, name: str, timeout: float) -> None:
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
            raise RemoteFailure(told(answer) or "The tool failed.", "mcp_tool_execution_error")
        structured = answer.get("structuredContent")
        return told(answer) if structured is None else structured


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
