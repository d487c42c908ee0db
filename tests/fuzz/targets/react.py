"""The text of a model that is told to write thoughts and actions, in pieces."""

from __future__ import annotations

from agent_tools.agents.react.parser import ReActParser
from agent_tools.models.base import ArgumentsDelta, CallComplete, CallStarted
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target
from tests.fuzz.pieces import pieces_of, texts

LABELS = (
    "Thought:",
    "Action:",
    "Action Input:",
    "Observation:",
    "Final Answer:",
    "```",
    "python",
)


def read_reply(parts: Parts) -> None:
    """Read it; calls are numbered, begun before they are written, and complete in order."""
    parser = ReActParser({"python": False, "search": False})
    begun, complete = 0, 0
    for deltas in (*(parser.feed(text) for text in texts(parts)), parser.finish()):
        for delta in deltas:
            match delta:
                case CallStarted(index):
                    assert index == begun
                    begun += 1
                case ArgumentsDelta(index):
                    assert index == begun - 1
                case CallComplete(index):
                    assert index == complete
                    complete += 1
    assert begun == complete == parser.calls


TARGET = Target(
    read_reply,
    lambda data: pieces_of(data),
    words=(
        *(label.encode() for label in LABELS),
        "：".encode(),
        b"**",
        b"\n\n",
        b'{"code": "1"}',
        unfold.repeat(1, 12),
    ),
)
