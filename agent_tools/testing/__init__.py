"""Doubles of a language model, for tests: yours and ours. They need no network, no key, and no model.

`ScriptedModel` stands in for a `Model`, `ScriptedServer` for an OpenAI-compatible server with a real client in front.
"""

from agent_tools.testing.model import Asked, ScriptedModel
from agent_tools.testing.script import ScriptedCall, ScriptedReply
from agent_tools.testing.server import ScriptedServer

__all__ = ["Asked", "ScriptedCall", "ScriptedModel", "ScriptedReply", "ScriptedServer"]
