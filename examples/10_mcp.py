"""The tools of an MCP server, called from the code in the sandbox. The server is this very file."""

import asyncio
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from typing_extensions import TypedDict

from agent_tools.code_mode import Toolset, build_template, mcp_tools


class Issue(TypedDict):
    """An issue of the tracker."""

    number: int
    title: str
    votes: int


def serve() -> None:
    try:
        from mcp.server.mcpserver import MCPServer
    except ImportError:  # its name before version 2
        from mcp.server.fastmcp import FastMCP as MCPServer
    server = MCPServer("tracker")

    @server.tool()
    def get_issue(number: int) -> Issue:
        """One issue."""
        return {"number": number, "title": f"Issue {number}", "votes": number * 7 % 10}

    server.run()


CODE = """
import asyncio

async def main():
    issues = await asyncio.gather(*[tracker_get_issue(number=number) for number in range(1, 9)])
    best = sorted(issues, key=lambda issue: -issue["votes"])[:3]
    return [f"{issue['title']}: {issue['votes']} votes" for issue in best]
"""


async def main() -> None:
    started = StdioServerParameters(command=sys.executable, args=[__file__, "serve"])
    async with stdio_client(started) as (reader, writer), ClientSession(reader, writer) as session:
        await session.initialize()
        tools = Toolset(await mcp_tools(session, prefix="tracker_"))
        print(tools.stubs())
        template = await build_template(hostcalls=tools)
        async with template.create() as sandbox:
            await sandbox.load_script(CODE)
            print(await sandbox.run("main"))


if sys.argv[1:] == ["serve"]:
    serve()
else:
    asyncio.run(main())
