"""Code mode: host functions that user code calls by name, with types, limits and a record of every call.

Names are imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_tools.lazy import lazy_exports

if TYPE_CHECKING:
    from agent_tools.code_mode.mcp import mcp_tools as mcp_tools
    from agent_tools.code_mode.script_arguments import Arg as Arg
    from agent_tools.code_mode.template import Template as Template
    from agent_tools.code_mode.template import build_template as build_template
    from agent_tools.code_mode.toolset import Toolset as Toolset
    from agent_tools.runtime.host_calls.function import CallRequest as CallRequest
    from agent_tools.runtime.host_calls.function import Policy as Policy
else:
    __all__, __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "agent_tools.code_mode.script_arguments": "Arg",
            "agent_tools.code_mode.mcp": "mcp_tools",
            "agent_tools.code_mode.template": "Template build_template",
            "agent_tools.code_mode.toolset": "Toolset",
            "agent_tools.runtime.host_calls.function": "CallRequest Policy",
        },
    )
