"""The server as a program starts it: its configuration, and the two ways to serve."""

from agent_tools.mcp.config import read_config
from agent_tools.mcp.http import serve as over_http
from agent_tools.mcp.stdio import serve as over_stdio

__all__ = ["over_http", "over_stdio", "read_config"]
