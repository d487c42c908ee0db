"""What a language model is to this package: messages in, deltas out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Union, runtime_checkable

from agent_tools.messages import Message

Conversation = Sequence[Union[Message, Mapping[str, Any]]]
"""Messages; a dict among them is in the shape of chat completions already and is sent as it is."""


@dataclass(frozen=True)
class TextDelta:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True)
class ReasoningDelta:
    """A piece of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True)
class CallBegun:
    """The model began to write a call. `index` counts the calls of one reply; `name` is whole."""

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
    """A call is written to its end; `arguments` are all pieces joined."""

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Usage:
    """Tokens, as the server counted them. Usages add up."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Of the input: read from the server's cache."""
    reasoning_tokens: int = 0
    """Of the output: reasoning."""

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
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
    """The reply is over. `reason` is chat completions' word: stop, length, tool_calls, content_filter."""

    reason: str


Delta = Union[TextDelta, ReasoningDelta, CallBegun, ArgumentsDelta, CallComplete, Usage, Finish]


@runtime_checkable
class Model(Protocol):
    """A language model that answers one conversation at a time per iterator; iterators are independent."""

    def reply(
        self,
        messages: Conversation,
        tools: Sequence[Mapping[str, Any]] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Iterator[Delta]:
        """Ask the model; its answer comes in pieces, `Usage` (at most one) and `Finish` (exactly one) at the end.

        Calls come as CallBegun, any number of ArgumentsDelta, CallComplete. If the iterator has a `close`, it gives the
        connection up; where it may be called from another thread it also ends a `next` that waits.

        Args:
            messages: the conversation.
            tools: functions it may call: `name`, `description`, `parameters`.
            options: chat completions' request fields for this reply, over the model's own (`tool_choice`, `stop`, ...).

        Raises:
            ModelError: it could not be asked, or did not answer to the end.
        """
        ...
