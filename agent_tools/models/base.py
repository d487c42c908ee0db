"""The contract of a language model: messages in, deltas out."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, Union, runtime_checkable

from agent_tools.messages import Message

Json = Mapping[str, Any]
"""A JSON object that is read: a chunk, an event, a message of chat completions."""
JsonObject = dict[str, Any]
"""A JSON object that the caller may change."""
FunctionDefinition = Json
"""A function that a model may call: `name`, `description`, `parameters`."""
Options = Json
"""Request fields of chat completions by name: `temperature`, `tool_choice`, `stop`."""
Conversation = Sequence[Union[Message, Json]]
"""Messages; a dict among them has the shape of chat completions already and is sent as it is."""


@dataclass(frozen=True)
class TextDelta:
    """A piece of the answer. `logprobs` are those of its tokens, as the server gave them, if it was asked for any."""

    text: str
    logprobs: tuple[Json, ...] = ()


@dataclass(frozen=True)
class RefusalDelta(TextDelta):
    """A piece of the text with which the model refuses to answer; it need not have the requested format."""


@dataclass(frozen=True)
class ReasoningDelta:
    """A piece of the model's reasoning before its answer."""

    text: str


@dataclass(frozen=True)
class CallStarted:
    """The model began to write a call. `index` numbers the calls of one reply; `name` is complete."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class ArgumentsDelta:
    """A piece of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True)
class CallComplete:
    """A call is written to its end; `arguments` are all pieces joined. `more` has the server's own fields."""

    index: int
    id: str
    name: str
    arguments: str
    more: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Usage:
    """Tokens, as the server counted them. Usages add up."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0  # of the input, those read from the server's cache
    reasoning_tokens: int = 0  # of the output, those spent on reasoning

    @property
    def total_tokens(self) -> int:
        """Return the tokens of input and output together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


@dataclass(frozen=True)
class Finish:
    """The reply is over. `reason` is chat completions' word: stop, length, tool_calls, content_filter.

    `more` has fields of the reply's message that only its server knows: it wants them back with the message.
    """

    reason: str
    more: Json = field(default_factory=dict)


Delta = Union[TextDelta, ReasoningDelta, CallStarted, ArgumentsDelta, CallComplete, Usage, Finish]


@runtime_checkable
class Model(Protocol):
    """A language model that answers one conversation at a time per iterator; iterators are independent."""

    def reply(
        self,
        messages: Conversation,
        tools: Sequence[FunctionDefinition] = (),
        options: Options | None = None,
    ) -> Iterator[Delta]:
        """Ask the model; its answer comes in pieces, with `Usage` (at most one) and `Finish` (exactly one) at the end.

        A call is one CallStarted, any number of ArgumentsDelta, and one CallComplete. If the iterator has a `close`, it
        closes the connection; where it may be called from another thread, it also ends a `next` that waits.

        Args:
            messages: the conversation.
            tools: the functions that the model may call.
            options: request fields for this reply; they win over the model's own.

        Raises:
            ModelError: the model could not be asked, or its reply was cut off.
        """
        ...


def new_call_id() -> str:
    """Return an id for a call that came without one."""
    return f"call_{uuid.uuid4().hex[:24]}"


def abandon(reply: Iterator[Delta]) -> None:
    """Close a reply, from any thread. A plain generator that is at work ends after its next piece instead."""
    if close := getattr(reply, "close", None):
        with suppress(ValueError):
            close()
