"""The sandbox API for programs: code, commands and files in one container. Names are imported at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_tools.lazy import lazy_exports

if TYPE_CHECKING:
    from agent_tools.sandbox.async_sandbox import AsyncSandbox as AsyncSandbox
    from agent_tools.sandbox.sandbox import Sandbox as Sandbox
else:
    __all__, __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "agent_tools.sandbox.async_sandbox": "AsyncSandbox",
            "agent_tools.sandbox.sandbox": "Sandbox",
        },
    )
