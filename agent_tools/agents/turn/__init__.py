"""One turn: the loop between a model and its tools, and how a reply is read. Names are imported at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_tools.lazy import lazy_exports

if TYPE_CHECKING:
    from agent_tools.agents.turn.loop import ToolLoop as ToolLoop
    from agent_tools.agents.turn.loop import Turn as Turn
else:
    __all__, __getattr__, __dir__ = lazy_exports(__name__, {"agent_tools.agents.turn.loop": "ToolLoop Turn"})
