"""Qwen-Agent: our code interpreter under the name of theirs. Importing this module registers it, for every agent.

Qwen-Agent takes a tool by its registered name, and an object if it is one of its own `BaseTool`.
"""

from __future__ import annotations

from agent_tools import CodeInterpreter
from agent_tools.extras import extra

with extra("qwen-agent"):
    import qwen_agent.tools  # noqa: F401 - theirs is registered first
    from qwen_agent.tools.base import BaseToolWithFileAccess, register_tool


@register_tool("code_interpreter", allow_overwrite=True)
class AgentToolsCodeInterpreter(CodeInterpreter, BaseToolWithFileAccess):  # type: ignore[misc]
    """`agent_tools.CodeInterpreter`, which is one of Qwen-Agent's tools as well."""
