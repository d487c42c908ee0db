"""Models and tools working together. Names are resolved at first use; importing this starts nothing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_tools.agents.assistant import Assistant
    from agent_tools.agents.base import Agent
    from agent_tools.agents.cancel import Cancel
    from agent_tools.agents.fncall import FnCallAgent
    from agent_tools.agents.react import ReActChat
    from agent_tools.agents.turn import Turn
    from agent_tools.agents.two_agents import FileAccessAgent, PythonExecAgent, TwoAgents

_HOMES = {
    "Agent": "base",
    "Assistant": "assistant",
    "Cancel": "cancel",
    "FileAccessAgent": "two_agents",
    "FnCallAgent": "fncall",
    "PythonExecAgent": "two_agents",
    "ReActChat": "react",
    "Turn": "turn",
    "TwoAgents": "two_agents",
}

__all__ = [
    "Agent",
    "Assistant",
    "Cancel",
    "FileAccessAgent",
    "FnCallAgent",
    "PythonExecAgent",
    "ReActChat",
    "Turn",
    "TwoAgents",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
