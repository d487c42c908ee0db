"""A model's server that speaks the Responses API: the lines of its stream, or one object, into a response's events.

The input is a program (see unfold.py), each of its values one event; `R` as first byte: the lines themselves.
"""

from __future__ import annotations

import functools

from agent_tools.errors import ModelError
from agent_tools.models.openai_responses import ResponsesModel
from agent_tools.settings import Endpoint
from tests.fuzz.oracle import MIB, Bound, Parts, Target
from tests.fuzz.targets import upstream

WORDS = ("type", "response.output_text.delta", "response.output_text.done", "response.refusal.delta", "delta", "text")
WORDS += ("response.refusal.done", "refusal", "response.output_item.added", "response.output_item.done", "item", "id")
WORDS += ("response.function_call_arguments.delta", "output_index", "function_call", "call_id", "name", "arguments")
WORDS += ("response.reasoning_text.delta", "response.reasoning_summary_text.delta", "reasoning", "summary", "message")
WORDS += ("response.reasoning_summary_part.added", "summary_index", "response.completed", "response.incomplete", "f")
WORDS += ("response.failed", "error", "response", "output", "usage", "input_tokens", "output_tokens", "python", "code")
WORDS += ("incomplete_details", "reason", "content", "output_text", "logprobs", "token", "\ud83d", '{"code": "', "role")


class Model(upstream.Model, ResponsesModel):
    """Asks a server that has its answer ready."""


def follow(parts: Parts) -> None:
    """Follow the reply as the gateway does."""
    model = _model()
    model.answer = b"".join(parts)
    upstream.follow_reply(model.reply([{"role": "user", "content": "1"}]))


def unfold_stream(data: bytes) -> Parts:
    """The lines of the server."""
    return upstream.unfolded(data, WORDS)


@functools.cache
def _model() -> Model:
    return Model("m", Endpoint("http://x/v1", "none"), max_reply_bytes=upstream.MOST_UNSHOWN)


TARGET = Target(
    follow,
    unfold_stream,
    allowed=(ModelError,),
    bound=Bound(seconds=0.5, seconds_per_byte=30e-6, bytes=16 * MIB, bytes_per_byte=128),
    vocabulary=WORDS,
    words=(
        b"data: ",
        b"\n\n",
        b'data: {"type": "response.output_text.delta", "delta": "a"}\n\n',
        b'data: {"type": "response.output_item.added", "output_index": 1, "item": ',
        b'{"type": "function_call", "call_id": "c", "name": "python", "arguments": "',
        b'data: {"type": "response.completed", "response": {"output": [',
    ),
)
