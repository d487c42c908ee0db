"""A model's server: the lines of its stream, asked for by the openai package, into the events of a response.

The input is a program (see unfold.py), each of its values one chunk; `R` as first byte: the lines themselves.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import httpx
import openai

from agent_tools.agents.turn.round import Round
from agent_tools.code_reader import read_params
from agent_tools.errors import ModelError
from agent_tools.gateway.responses.composer import Composer, ResponseContext
from agent_tools.gateway.responses.request import read_request
from agent_tools.limits import Limits
from agent_tools.models.base import ArgumentsDelta, Delta, Usage
from agent_tools.models.openai import OpenAIModel
from agent_tools.models.reply import Reply
from agent_tools.settings import Endpoint
from tests.fuzz import unfold
from tests.fuzz.oracle import MIB, Bound, Parts, Target

WORDS = ("choices", "index", "delta", "content", "tool_calls", "function", "name", "arguments", "id", "usage", "type")
WORDS += ("prompt_tokens", "completion_tokens", "prompt_tokens_details", "cached_tokens", "finish_reason", "stop")
WORDS += (
    "tool_calls",
    "reasoning_content",
    "refusal",
    "message",
    "function_call",
    "python",
    "f",
    '{"code": "',
    "error",
)
WORDS += ("extra_content", "reasoning_details", "thinking_blocks", "thinking", "text", "signature", "data")
WORDS += ("object", "chat.completion.chunk", "model", "created", "call_1", "\ud83d", "\ude00", "length", "role")
REQUEST = read_request({"model": "m", "input": "", "tools": [{"type": "function", "name": "f"}]})
MOST_UNSHOWN = MIB
"""Of what is kept of a reply, so much may leave no trace in the events, on which the gateway has its limit."""


class Model(OpenAIModel):
    """Asks a server that has its answer ready."""

    answer = b""

    @functools.cached_property
    def client(self) -> openai.OpenAI:
        transport = httpx.MockTransport(lambda _: httpx.Response(200, content=self.answer, headers=EVENTS))
        return openai.OpenAI(
            base_url="http://x/v1", api_key="none", max_retries=0, http_client=httpx.Client(transport=transport)
        )

    def connected(self) -> Any:
        return self.client


EVENTS = {"content-type": "text/event-stream"}


def unfold_stream(data: bytes) -> Parts:
    """The lines of the server."""
    return unfolded(data, WORDS)


def unfolded(data: bytes, words: tuple[str, ...]) -> Parts:
    """The lines of a server's stream, of events that know these words."""
    if data[:1] == b"R":
        return [unfold.text(data[1:])]
    values = unfold.values(data[1:], words)
    chunks = [each for value in values for each in (value if isinstance(value, list) else [value])]
    return [b"data: " + unfold.as_json(chunk) + b"\n\n" for chunk in chunks] + [b"data: [DONE]\n\n"]


def follow(parts: Parts) -> None:
    """Follow the reply as the gateway does."""
    model = _model()
    model.answer = b"".join(parts)
    follow_reply(model.reply([{"role": "user", "content": "1"}]))


def follow_reply(reply: Reply) -> None:
    """Follow a reply into the events of a response."""
    argued = 0

    def counted(deltas: Iterator[Delta]) -> Iterator[Delta]:
        nonlocal argued
        for delta in deltas:
            argued += len(delta.text) if isinstance(delta, ArgumentsDelta) else 0
            yield delta

    answer, shown = Round(1, {"python": lambda text: read_params(text, Limits()).code, "f": None}), 0
    scene = ResponseContext("cntr", lambda _: None, lambda *_: "", {"code_interpreter": "python"})
    composer = Composer({"output": []}, REQUEST, scene)
    try:
        for step in answer.read(counted(reply)):
            shown += sum(len(event.get("delta", "")) for event in composer.feed(step))
            assert argued - shown <= MOST_UNSHOWN, "arguments are kept, and are in no event"
    finally:
        with contextlib.suppress(ModelError):  # its thread ends with the answer, which nothing here can cut short
            for _ in reply:
                pass
        reply.close()
    _check(answer)


def _check(answer: Round) -> None:
    usage = Usage() + (answer.usage or Usage())
    assert all(isinstance(each, int) for each in (usage.input_tokens, usage.output_tokens)), (
        "tokens that are no numbers"
    )
    for message in answer.messages:
        str(message.content).encode()


@functools.cache
def _model() -> Model:
    return Model("m", Endpoint("http://x/v1", "none"), max_reply_bytes=MOST_UNSHOWN)


TARGET = Target(
    follow,
    unfold_stream,
    allowed=(ModelError,),
    bound=Bound(seconds=0.5, seconds_per_byte=30e-6, bytes=16 * MIB, bytes_per_byte=128),
    vocabulary=WORDS,
    words=(
        b"data: ",
        b"event: error\n",
        b": \n",
        b"\n\n",
        b"\r\n",
        b"\r",
        b'{"choices": [{"delta": {"content": "',
        b"[DONE]",
    ),
)
