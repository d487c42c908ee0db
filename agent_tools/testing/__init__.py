"""Doubles of a language model, for your tests and ours. They need no network, no key, and no model.

`ScriptedModel` stands in for a `Model`, `ScriptedServer` for an OpenAI-compatible server behind a real client.
`check_model` and `check_tool` check models and tools of your own against the contracts of this package.
"""

from agent_tools.testing.contract import check_model, check_tool
from agent_tools.testing.replies import ScriptedCall, ScriptedReply
from agent_tools.testing.scripted_model import RecordedRequest, ScriptedModel
from agent_tools.testing.server import ScriptedServer

__all__ = [
    "RecordedRequest",
    "ScriptedCall",
    "ScriptedModel",
    "ScriptedReply",
    "ScriptedServer",
    "check_model",
    "check_tool",
]
