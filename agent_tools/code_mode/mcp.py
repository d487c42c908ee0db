"""Make host functions of an MCP server's tools: `inputSchema` and `outputSchema` become the stub's types."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any

from mcp.types import PaginatedRequestParams

from agent_tools.argument_schema import argument_check
from agent_tools.code_mode.functions import SchemaFunction
from agent_tools.code_mode.mcp_answer import answer_text
from agent_tools.errors import AgentToolsError
from agent_tools.runtime.host_calls.aside import aside
from agent_tools.runtime.host_calls.function import ArgumentError, Keywords, Policy

WireMessage = dict[str, Any]


async def mcp_tools(
    session: Any, *, prefix: str = "", include: Sequence[str] = ("*",), policy: Policy | None = None
) -> list[McpFunction]:
    """Return the tools of a connected `mcp.ClientSession`; `get-user` becomes `get_user` in the guest.

    The session belongs to its event loop: run the code from there (`await tool.acall(...)`, `async with template...`).

    Args:
        session: connected and initialized.
        prefix: added before every name in the guest.
        include: patterns for the tools' own names, with wildcards as for files.
        policy: the policy of all the functions.
    """
    found: list[McpFunction] = []
    params = None
    while True:
        page = _plain(await session.list_tools(params=params))
        wanted = (tool for tool in page["tools"] if any(fnmatch.fnmatchcase(tool["name"], each) for each in include))
        found.extend(McpFunction(session, tool, prefix, policy) for tool in wanted)
        if not page.get("nextCursor"):
            return found
        params = PaginatedRequestParams(cursor=page["nextCursor"])


def _plain(message: Any) -> WireMessage:
    """Return a message with the names of the protocol: the SDK's attribute names differ between versions."""
    return message.model_dump(by_alias=True)  # type: ignore[no-any-return]


class McpError(AgentToolsError):
    """The MCP server reports that its tool failed."""


class McpFunction(SchemaFunction):
    """One tool of an MCP server."""

    def __init__(self, session: Any, tool: WireMessage, prefix: str, policy: Policy | None) -> None:
        schema, doc, returns = tool["inputSchema"], tool.get("description") or "", tool.get("outputSchema")
        super().__init__(prefix + tool["name"], doc, schema, self._called, returns, policy)
        self._session = session
        self._tool_name: str = tool["name"]
        self._check = argument_check(schema)

    async def _called(self, given: Keywords) -> Any:
        """Check the arguments by the schema, call the tool, and return its structured content, else its text.

        The text has a note for a part without text, such as `[image]`.
        """
        try:
            await aside(self._check, given)
        except ValueError as exc:
            raise ArgumentError(f"{self.name}: {exc}") from exc
        answer = _plain(await self._session.call_tool(self._tool_name, given))
        if answer.get("isError"):
            raise McpError(answer_text(answer) or f"{self._tool_name} failed")
        structured = answer.get("structuredContent")
        return answer_text(answer) if structured is None else structured
