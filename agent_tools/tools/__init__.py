"""Tools that a model can call. Importing this package registers the built-in ones and starts nothing."""

from agent_tools.errors import InvalidParams, ToolServiceError
from agent_tools.tools.base import BaseTool, BaseToolWithFileAccess
from agent_tools.tools.code_interpreter import CodeInterpreter
from agent_tools.tools.code_tool import CodeTool
from agent_tools.tools.file_access import FileAccess
from agent_tools.tools.function_tool import FunctionTool
from agent_tools.tools.registry import TOOL_REGISTRY, register_tool

__all__ = [
    "TOOL_REGISTRY",
    "BaseTool",
    "BaseToolWithFileAccess",
    "CodeInterpreter",
    "CodeTool",
    "FileAccess",
    "FunctionTool",
    "InvalidParams",
    "ToolServiceError",
    "register_tool",
]
