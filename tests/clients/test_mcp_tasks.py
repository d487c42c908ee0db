"""The protocol's own client for tasks (`@modelcontextprotocol/ext-tasks`), before the gateway's MCP server."""

from __future__ import annotations

import json
import subprocess

from agent_tools.containers.mount import Mount
from agent_tools.mcp.asgi_app import PATH, application
from agent_tools.mcp.config import McpLimits
from agent_tools.mcp.handles import Stock
from tests.clients.test_node import NODE, SCRIPTS
from tests.gateway.conftest import NewGateway


def test_long_calls_are_tasks_and_every_answer_fits_the_published_schema(new_gateway: NewGateway) -> None:
    def mounted(containers, rows):  # type: ignore[no-untyped-def]
        return application(Stock(containers, rows), lambda _: None, McpLimits(answer_within=0.5))

    gateway = new_gateway({}, mounts=[Mount(PATH, mounted)])
    environment = {"MCP_URL": f"{gateway.url}{PATH}"}
    done = subprocess.run(
        [NODE, SCRIPTS / "mcp_tasks.mjs"], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["late"]["structuredContent"]["stdout"] == "late\n"
    assert (report["failed"]["isError"], report["failed"]["structuredContent"]["ok"]) == (True, False)
    assert {"working", "completed", "cancelled", "tasks/cancel", "tasks/update"} <= set(report["statuses"])
