"""vLLM's own client of tool servers, out of its wheel; only vLLM's logger and its other tools are stood in for."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import sys
import types
from importlib.metadata import version
from typing import Any

for name, content in {
    "vllm": {},
    "vllm.logger": {"init_logger": logging.getLogger},
    "vllm.entrypoints": {},
    "vllm.entrypoints.mcp": {},
    "vllm.entrypoints.mcp.tool": dict.fromkeys(("HarmonyBrowserTool", "HarmonyPythonTool", "Tool"), object),
}.items():
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(content)
spec: Any = importlib.util.spec_from_file_location("tool_server", os.environ["TOOL_SERVER"])
tool_server: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool_server)


async def main() -> None:
    """Use the server as vLLM does for two responses, and for two of one chat."""
    server = tool_server.MCPToolServer()
    await server.add_tool_server(
        f"key:{os.environ['GATEWAY_KEY']}@{os.environ['GATEWAY'].removeprefix('http://')}/vllm"
    )
    assert server.has_tool("python")
    description = server.get_tool_description("python")
    assert "stateful" in description.description
    assert description.tools == []
    for headers, expected in ((None, "NameError"), ({"x-chat-id": "c"}, "41")):
        async with server.new_session("python", "resp_1", headers) as session:
            assert (await session.call_tool("python", {"code": "x = 41; print(x)"})).content[0].text == "41"
            await session.call_tool("cleanup_session", {})
        async with server.new_session("python", "resp_2", headers) as session:
            assert expected in (await session.call_tool("python", {"code": "print(x)"})).content[0].text
    print(f"vLLM's MCPToolServer: works (openai-harmony {version('openai-harmony')}, mcp {version('mcp')})")


asyncio.run(main())
