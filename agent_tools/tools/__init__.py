"""Tools that a model can call. Importing this package registers the built-in ones and starts nothing."""

from agent_tools.errors import InvalidParams, ToolServiceError
from agent_tools.tools.base import (
    TOOL_REGISTRY,
    BaseTool,
    BaseToolWithFileAccess,
    CodeTool,
    FunctionTool,
    register_tool,
)
from agent_tools.tools.code_interpreter import CodeInterpreter
from agent_tools.tools.file_access import FileAccess

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
