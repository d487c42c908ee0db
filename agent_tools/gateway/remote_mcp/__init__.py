"""Remote MCP servers, whose tools a request offers to its model. MCP's client is imported at the first use."""

from typing import TYPE_CHECKING

from agent_tools.lazy import lazy_exports

if TYPE_CHECKING:
    from agent_tools.gateway.remote_mcp.session import opened_session as opened_session
    from agent_tools.gateway.remote_mcp.session import session_failure as session_failure
else:
    __all__, __getattr__, __dir__ = lazy_exports(
        __name__, {"agent_tools.gateway.remote_mcp.session": "opened_session session_failure"}
    )
