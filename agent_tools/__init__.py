"""A self-hosted code interpreter for LLM agents. Names are resolved at first use; importing does nothing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_tools.code_mode.template import build_template
    from agent_tools.code_mode.toolset import Toolset
    from agent_tools.errors import AgentToolsError, InvalidParams, ModelError, ToolServiceError
    from agent_tools.execution import Execution
    from agent_tools.messages import ContentItem, FunctionCall, Message
    from agent_tools.models.choose import get_chat_model
    from agent_tools.runtime.host_calls.function import Policy
    from agent_tools.settings import Limits
    from agent_tools.tools.base import BaseTool, BaseToolWithFileAccess
    from agent_tools.tools.code_interpreter import CodeInterpreter
    from agent_tools.tools.registry import TOOL_REGISTRY, register_tool

__version__ = "0.1.0"

_HOMES = {
    "AgentToolsError": "errors",
    "BaseTool": "tools.base",
    "BaseToolWithFileAccess": "tools.base",
    "CodeInterpreter": "tools.code_interpreter",
    "ContentItem": "messages",
    "Execution": "execution",
    "FunctionCall": "messages",
    "InvalidParams": "errors",
    "Limits": "settings",
    "Message": "messages",
    "ModelError": "errors",
    "Policy": "runtime.host_calls.function",
    "TOOL_REGISTRY": "tools.registry",
    "ToolServiceError": "errors",
    "Toolset": "code_mode.toolset",
    "build_template": "code_mode.template",
    "get_chat_model": "models.choose",
    "register_tool": "tools.registry",
}

__all__ = [
    "TOOL_REGISTRY",
    "AgentToolsError",
    "BaseTool",
    "BaseToolWithFileAccess",
    "CodeInterpreter",
    "ContentItem",
    "Execution",
    "FunctionCall",
    "InvalidParams",
    "Limits",
    "Message",
    "ModelError",
    "Policy",
    "ToolServiceError",
    "Toolset",
    "build_template",
    "get_chat_model",
    "register_tool",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
