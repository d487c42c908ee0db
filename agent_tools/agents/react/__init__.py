"""Reasoning and acting in text, for models without tool calls. Names are imported at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_tools.lazy import lazy_exports

if TYPE_CHECKING:
    from agent_tools.agents.react.agent import ReActChat as ReActChat
else:
    __all__, __getattr__, __dir__ = lazy_exports(__name__, {"agent_tools.agents.react.agent": "ReActChat"})
