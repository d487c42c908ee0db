"""Sessions on other machines. Names are imported at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_tools.lazy import lazy_exports

if TYPE_CHECKING:
    from agent_tools.fleet.fleet import Fleet as Fleet
    from agent_tools.fleet.fleet import connect as connect
    from agent_tools.fleet.local import local_fleet as local_fleet
    from agent_tools.fleet.sandbox_host import SandboxHost as SandboxHost
else:
    __all__, __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "agent_tools.fleet.fleet": "Fleet connect",
            "agent_tools.fleet.sandbox_host": "SandboxHost",
            "agent_tools.fleet.local": "local_fleet",
        },
    )
