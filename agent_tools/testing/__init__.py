"""Doubles of a language model, for tests: yours and ours. They need no network, no key, and no model.

`ScriptedModel` stands in for a `Model`, `ScriptedServer` for an OpenAI-compatible server with a real client in front.
`check_model` and `check_tool` hold models and tools of your own to the contracts ours keep.
"""

from agent_tools.testing.contract import check_model, check_tool
from agent_tools.testing.model import Asked, ScriptedModel
from agent_tools.testing.script import ScriptedCall, ScriptedReply
from agent_tools.testing.server import ScriptedServer

__all__ = ["Asked", "ScriptedCall", "ScriptedModel", "ScriptedReply", "ScriptedServer", "check_model", "check_tool"]
