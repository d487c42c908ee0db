"""The configuration of each client for this server: a table, and the text made from it. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from agent_tools.extras import requirement

NAME = "python"  # of the server, for the client
TOOL_SECONDS = 600  # that Codex gives a call


@dataclass(frozen=True)
class McpClient:
    """A client: its name, the place of its configuration, and the configuration for a command."""

    title: str
    where: str
    written: Callable[[Sequence[str]], str]


def _servers(key: str, **more: Any) -> Callable[[Sequence[str]], str]:
    """Return a function that writes JSON with the server under this key."""

    def written(command: Sequence[str]) -> str:
        return json.dumps({key: {NAME: {**more, "command": command[0], "args": list(command[1:])}}}, indent=2)

    return written


def _toml(command: Sequence[str]) -> str:
    program, *args = command
    written = partial(json.dumps, ensure_ascii=False)  # JSON's strings are TOML's, too, but for pairs of escapes
    lines = (f"command = {written(program)}", f"args = {written(args)}", f"tool_timeout_sec = {TOOL_SECONDS}")
    return "\n".join((f"[mcp_servers.{NAME}]", *lines))


def _added(command: Sequence[str]) -> str:
    return f"claude mcp add {NAME} -- {shlex.join(command)}"


_DESKTOP = (
    "~/Library/Application Support/Claude/claude_desktop_config.json on macOS, "
    "%APPDATA%\\Claude\\claude_desktop_config.json on Windows"
)
CLIENTS = {
    "claude-desktop": McpClient("Claude Desktop", _DESKTOP, _servers("mcpServers")),
    "claude-code": McpClient("Claude Code", "a terminal", _added),
    "cursor": McpClient("Cursor", "~/.cursor/mcp.json, or .cursor/mcp.json of a project", _servers("mcpServers")),
    "vscode": McpClient("VS Code", ".vscode/mcp.json", _servers("servers", type="stdio")),
    "codex": McpClient("Codex", "~/.codex/config.toml", _toml),
    "windsurf": McpClient("Windsurf", "~/.codeium/windsurf/mcp_config.json", _servers("mcpServers")),
    "lm-studio": McpClient("LM Studio", "mcp.json (Program > Install > Edit mcp.json)", _servers("mcpServers")),
}


def uvx_command() -> tuple[str, ...]:
    """Return the command with which `uvx` installs and starts a server from the source of this installation."""
    return ("uvx", "--from", requirement("mcp"), "agent-tools", "mcp")
