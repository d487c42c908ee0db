"""What is printed for each client starts this server, and what the registry is told is true."""

from __future__ import annotations

import ast
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agent_tools import __version__
from agent_tools.cli import cli
from agent_tools.cli.mcp_config import CLIENTS, uvx_command
from agent_tools.machine.own_command import OWN_COMMAND

ROOT = Path(__file__).parents[3]
AWKWARD = ("/opt/my tools/agent-tools", "mcp", "--set", 'memory="4g"')


def command_in(client: str, text: str) -> list[str]:
    """Return the command that a client reads from its configuration."""
    if client == "claude-code":
        words = shlex.split(text)
        assert words[:5] == ["claude", "mcp", "add", "python", "--"]
        return words[5:]
    if client == "codex":
        head, *lines = text.splitlines()
        assert head == "[mcp_servers.python]"
        values: dict[str, Any] = {
            name: ast.literal_eval(value) for name, value in (line.split(" = ", 1) for line in lines)
        }
        assert values["tool_timeout_sec"] > 45
        return [values["command"], *values["args"]]
    servers = json.loads(text)["servers" if client == "vscode" else "mcpServers"]
    assert servers["python"].get("type") == ("stdio" if client == "vscode" else None)
    return [servers["python"]["command"], *servers["python"]["args"]]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("command", [uvx_command(), AWKWARD], ids=["uvx", "awkward"])
def test_a_client_reads_the_command_that_was_written(client: str, command: tuple[str, ...]) -> None:
    assert command_in(client, CLIENTS[client].written(command)) == list(command)


@pytest.mark.parametrize("client", CLIENTS)
def test_the_command_line_prints_what_starts_this_installation(client: str) -> None:
    shown = CliRunner().invoke(cli, ["mcp", "config", client])
    assert command_in(client, shown.stdout.strip()) == [*OWN_COMMAND, "mcp"]
    assert CLIENTS[client].title in shown.stderr


def test_the_registry_is_told_this_version_and_a_command_of_ours() -> None:
    told = json.loads((ROOT / "server.json").read_text())
    (package,) = told["packages"]
    project = (ROOT / "pyproject.toml").read_text()
    assert (told["version"], package["version"]) == (__version__, __version__)
    assert f'name = "{package["identifier"]}"' in project
    assert f'{package["identifier"]} = "agent_tools.cli:main"' in project, "uvx starts the command of that name"
    assert package["runtimeArguments"][0]["value"] == f"{package['identifier']}[mcp]=={__version__}"
    assert [each["value"] for each in package["packageArguments"]] == ["mcp"]
    assert f"mcp-name: {told['name']}" in (ROOT / "README.md").read_text(), "the registry looks for it"
    assert len(told["description"]) <= 100
