"""The tools of an MCP server as host functions: `inputSchema` and `outputSchema` become the stub's types."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any

import fastjsonschema

from agent_tools.code_mode.schema import stub_of_schema
from agent_tools.code_mode.stubs import Stub, check_name
from agent_tools.runtime.host_function import ArgumentError, Policy


async def mcp_tools(
    session: Any, *, prefix: str = "", include: Sequence[str] = ("*",), policy: Policy | None = None
) -> list[McpFunction]:
    """The tools of a connected `mcp.ClientSession`.

    The session belongs to its event loop: run the code from there (`await tool.acall(...)`, `async with template...`).

    Args:
        session: connected and initialized.
        prefix: put before every name.
        include: patterns of the tools' own names, as of files.
        policy: for all of them.
    """
    found: list[McpFunction] = []
    cursor = None
    while True:
        page = await session.list_tools(cursor)
        wanted = (tool for tool in page.tools if any(fnmatch.fnmatchcase(tool.name, each) for each in include))
        found.extend(McpFunction(session, tool, prefix, policy) for tool in wanted)
        cursor = page.nextCursor
        if not cursor:
            return found


def _refuse(uri: str) -> Any:
    raise fastjsonschema.JsonSchemaDefinitionException(f"{uri[:200]}: schemas are not fetched")


_NO_FETCHING = dict.fromkeys(("http", "https", "ftp", "file"), _refuse)


class McpError(Exception):
    """The MCP server says that its tool failed."""


class McpFunction:
    """One tool of an MCP server."""

    def __init__(self, session: Any, tool: Any, prefix: str, policy: Policy | None) -> None:
        self.name = prefix + tool.name.replace("-", "_")
        check_name(self.name)
        self.policy = policy or Policy()
        result = getattr(tool, "outputSchema", None)  # servers of 2025-03 and before have none
        self.stub: Stub = stub_of_schema(self.name, tool.description or "", tool.inputSchema, result)
        self._session = session
        self._tool = tool
        self._check = fastjsonschema.compile(tool.inputSchema, handlers=_NO_FETCHING, use_default=False)

    async def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Check the arguments by the schema and call the tool; its structured content, else its text."""
        if args:
            raise ArgumentError(f"{self.name} takes keyword arguments only.")
        given = {name: value for name, value in kwargs.items() if value is not None}
        try:
            self._check(given)
        except fastjsonschema.JsonSchemaException as exc:
            raise ArgumentError(f"{self.name}: {exc.message}") from exc
        answer = await self._session.call_tool(self._tool.name, given)
        text = "\n".join(part.text for part in answer.content if getattr(part, "text", None))
        if answer.isError:
            raise McpError(text or f"{self._tool.name} failed")
        structured = getattr(answer, "structuredContent", None)
        return text if structured is None else structured
