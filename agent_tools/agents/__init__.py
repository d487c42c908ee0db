"""Agents: models and tools working together. Names are imported at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_tools.lazy import lazy_exports

if TYPE_CHECKING:
    from agent_tools.agents.assistant import Assistant as Assistant
    from agent_tools.agents.base import Agent as Agent
    from agent_tools.agents.cancel import Cancel as Cancel
    from agent_tools.agents.fncall import FnCallAgent as FnCallAgent
    from agent_tools.agents.react.agent import ReActChat as ReActChat
    from agent_tools.agents.turn.loop import ToolLoop as ToolLoop
    from agent_tools.agents.two_agents import FileAccessAgent as FileAccessAgent
    from agent_tools.agents.two_agents import PythonExecAgent as PythonExecAgent
    from agent_tools.agents.two_agents import TwoAgents as TwoAgents
else:
    __all__, __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "agent_tools.agents.assistant": "Assistant",
            "agent_tools.agents.base": "Agent",
            "agent_tools.agents.cancel": "Cancel",
            "agent_tools.agents.fncall": "FnCallAgent",
            "agent_tools.agents.react.agent": "ReActChat",
            "agent_tools.agents.turn.loop": "ToolLoop",
            "agent_tools.agents.two_agents": "FileAccessAgent PythonExecAgent TwoAgents",
        },
    )
