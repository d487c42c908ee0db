"""A self-hosted code interpreter for LLM agents. Names are imported at first use."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from agent_tools.lazy import lazy_exports
from agent_tools.version import __version__ as __version__

if sys.platform == "win32":
    raise ImportError("agent_tools needs Linux: on Windows, use it in WSL2 (`wsl --install`), with Docker there.")

if TYPE_CHECKING:
    from agent_tools.code_mode.template import build_template as build_template
    from agent_tools.code_mode.toolset import Toolset as Toolset
    from agent_tools.errors import AgentToolsError as AgentToolsError
    from agent_tools.errors import InvalidParams as InvalidParams
    from agent_tools.errors import ModelError as ModelError
    from agent_tools.errors import SandboxGone as SandboxGone
    from agent_tools.errors import ToolServiceError as ToolServiceError
    from agent_tools.limits import Limits as Limits
    from agent_tools.messages import ContentItem as ContentItem
    from agent_tools.messages import FunctionCall as FunctionCall
    from agent_tools.messages import Message as Message
    from agent_tools.models.choice import get_chat_model as get_chat_model
    from agent_tools.results.commands import CommandResult as CommandResult
    from agent_tools.results.execution import Execution as Execution
    from agent_tools.runtime.host_calls.function import Policy as Policy
    from agent_tools.sandbox.async_sandbox import AsyncSandbox as AsyncSandbox
    from agent_tools.sandbox.sandbox import Sandbox as Sandbox
    from agent_tools.tools.base import BaseTool as BaseTool
    from agent_tools.tools.base import BaseToolWithFileAccess as BaseToolWithFileAccess
    from agent_tools.tools.code_interpreter import CodeInterpreter as CodeInterpreter
    from agent_tools.tools.registry import TOOL_REGISTRY as TOOL_REGISTRY
    from agent_tools.tools.registry import register_tool as register_tool
else:
    __all__, __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "agent_tools.code_mode.template": "build_template",
            "agent_tools.code_mode.toolset": "Toolset",
            "agent_tools.errors": "AgentToolsError InvalidParams ModelError SandboxGone ToolServiceError",
            "agent_tools.results.commands": "CommandResult",
            "agent_tools.results.execution": "Execution",
            "agent_tools.messages": "ContentItem FunctionCall Message",
            "agent_tools.models.choice": "get_chat_model",
            "agent_tools.runtime.host_calls.function": "Policy",
            "agent_tools.sandbox.async_sandbox": "AsyncSandbox",
            "agent_tools.sandbox.sandbox": "Sandbox",
            "agent_tools.limits": "Limits",
            "agent_tools.tools.code_interpreter": "CodeInterpreter",
            "agent_tools.tools.base": "BaseTool BaseToolWithFileAccess",
            "agent_tools.tools.registry": "TOOL_REGISTRY register_tool",
        },
    )
