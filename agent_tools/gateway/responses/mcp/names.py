"""The names under which a model knows the tools of MCP servers. Pure."""

from __future__ import annotations

from agent_tools.gateway.remote_mcp.tool import plain_name
from agent_tools.gateway.responses.client_calls.tools import name_for_model


def model_name(label: str, name: str) -> str:
    """Return the name of a server's tool for the model, in characters that all servers of models take."""
    return name_for_model(plain_name(name), label)
