"""Code mode: host functions that the code in a sandbox calls by name, with types, limits and a record of every call."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_tools.code_mode.args import Arg
    from agent_tools.code_mode.mcp import mcp_tools
    from agent_tools.code_mode.template import Template, build_template
    from agent_tools.code_mode.toolset import Toolset
    from agent_tools.runtime.host_calls.function import CallRequest, Policy

_HOMES = {
    "Arg": "agent_tools.code_mode.args",
    "CallRequest": "agent_tools.runtime.host_calls.function",
    "Policy": "agent_tools.runtime.host_calls.function",
    "Template": "agent_tools.code_mode.template",
    "Toolset": "agent_tools.code_mode.toolset",
    "build_template": "agent_tools.code_mode.template",
    "mcp_tools": "agent_tools.code_mode.mcp",
}

__all__ = ["Arg", "CallRequest", "Policy", "Template", "Toolset", "build_template", "mcp_tools"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
