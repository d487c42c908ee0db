"""A tool of a remote MCP server, as a function for code in a container."""

from __future__ import annotations

import asyncio
from typing import Any

from agent_tools.code_mode.functions import SchemaFunction
from agent_tools.code_mode.mcp_answer import answer_text
from agent_tools.gateway.remote_mcp.connections import McpConnection
from agent_tools.gateway.remote_mcp.remote_server import RemoteFailure
from agent_tools.models.base import JsonObject
from agent_tools.runtime.host_calls.function import Keywords, Policy


def remote_function(connection: McpConnection, listed: JsonObject, name: str, timeout: float) -> SchemaFunction:
    """Return `name(**arguments)` for the code, without types if the server's schemas cannot be expressed as types.

    The server itself checks the arguments. The result is its structured content, else its text; the code gets a
    RemoteFailure if the tool failed, or could not be called.
    """

    async def call(given: Keywords) -> Any:
        answer = await asyncio.to_thread(connection.call, str(listed["name"]), given)
        if answer.get("isError"):
            raise RemoteFailure(answer_text(answer) or "The tool failed.", "mcp_tool_execution_error")
        structured = answer.get("structuredContent")
        return answer_text(answer) if structured is None else structured

    about, schema, policy = str(listed.get("description") or ""), listed.get("inputSchema") or {}, Policy(timeout)
    return SchemaFunction(name, about, schema, call, listed.get("outputSchema"), policy)
