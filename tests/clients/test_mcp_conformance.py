"""The protocol's conformance suite and the MCP Inspector, as they are, before the server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mcp_door.test_http import new_server

__all__ = ["new_server"]

MODULES = Path(__file__).parent / "node" / "node_modules" / ".bin"
NODE = Path(sys.executable).with_name("node")
SCENARIOS = (
    *("server-initialize", "server-session-lifecycle", "server-stateless", "ping", "tools-list", "resources-list"),
    *("prompts-list", "dns-rebinding-protection", "http-header-validation", "caching", "server-sse-multiple-streams"),
    "sep-2164-resource-not-found",
)
"""Those that ask for nothing but the protocol. The others call tools and prompts of a server made for the suite.

All run in one process, which takes longer to start than any of them takes."""
OF_ITS_OWN_SERVER = "Not testable: server does not list the diagnostic tool"


def node(tool: str, *args: str | Path) -> str:
    assert MODULES.is_dir(), "run scripts/lib/node first"
    command = [NODE, MODULES / tool, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout


def test_the_conformance_suite_finds_nothing(new_server: Callable[..., str], tmp_path: Path) -> None:
    node("conformance", "server", "--url", new_server(), "--suite", "all", "-o", tmp_path)
    for scenario in SCENARIOS:
        (report,) = tmp_path.glob(f"server-{scenario}-[0-9]*/checks.json")
        checks = json.loads(report.read_text())
        failed = [each for each in checks if each["status"] not in ("SUCCESS", "SKIPPED", "INFO")]
        ours = [each for each in failed if not each.get("errorMessage", "").startswith(OF_ITS_OWN_SERVER)]
        assert ours == [], scenario
        assert sum(each["status"] == "SUCCESS" for each in checks) >= 2, scenario


def test_the_inspector_lists_and_calls_over_http(new_server: Callable[..., str]) -> None:
    at = ("--cli", new_server(), "--transport", "http", "--method")
    tools: Any = json.loads(node("mcp-inspector", *at, "tools/list"))["tools"]
    assert [tool["name"] for tool in tools][:2] == ["run_python", "wait"]
    answer = json.loads(
        node("mcp-inspector", *at, "tools/call", "--tool-name", "run_python", "--tool-arg", "code=40 + 2")
    )
    assert answer["structuredContent"]["result"] == "42"
    assert answer["content"][0]["text"].startswith("container: cntr_")


@pytest.mark.docker
def test_the_inspector_starts_it_on_stdio_and_calls(docker_runtime: object) -> None:
    call = ("--method", "tools/call", "--tool-name", "run_python", "--tool-arg", "code=40 + 2")
    answer = json.loads(node("mcp-inspector", "--cli", sys.executable, "-m", "agent_tools", "mcp", *call))
    assert answer["structuredContent"]["result"] == "42"
