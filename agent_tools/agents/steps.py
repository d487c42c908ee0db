"""The steps of a turn, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Union

from agent_tools.messages import Content, Message, text_of
from agent_tools.models.base import ReasoningDelta as ReasoningDelta
from agent_tools.models.base import RefusalDelta as RefusalDelta
from agent_tools.models.base import TextDelta as TextDelta
from agent_tools.models.base import Usage
from agent_tools.results.execution import Execution, Output
from agent_tools.tools.command_tool import CommandNews


@dataclass(frozen=True)
class Call:
    """A call as the model wrote it. `id` is unique in the turn; `arguments` is text, JSON or not.

    `note` tells the model how the call was read, if that was not as it was written.
    """

    id: str
    name: str
    arguments: str
    note: str = ""


@dataclass(frozen=True)
class CallBegun:
    """The model began to write a call."""

    id: str
    name: str


@dataclass(frozen=True)
class CallDelta:
    """The model wrote a piece of a call's arguments. `code` is the piece of code in it, for a tool that runs code."""

    id: str
    arguments: str
    code: str = ""


@dataclass(frozen=True)
class CallReady:
    """A call is written. `code` is the code that will run; None if the tool runs no code, or the call has none."""

    call: Call
    code: str | None = None


@dataclass(frozen=True)
class CallRunning:
    """The tool of a call begins its work."""

    id: str
    name: str


@dataclass(frozen=True)
class CallOutput:
    """The running code yielded an output."""

    id: str
    output: Output


@dataclass(frozen=True)
class CallCommand:
    """A command that the tool runs printed something, or has ended."""

    id: str
    news: CommandNews


@dataclass(frozen=True)
class CallDone:
    """A call is answered. `content` is the answer for the model; `failure` is the exception that stopped the tool."""

    call: Call
    content: Content
    execution: Execution | None = None
    failure: Exception | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        """Return the text of the content."""
        return text_of(self.content)


@dataclass(frozen=True)
class RoundDone:
    """The model was asked once, and its calls of our tools were answered.

    `messages` are those that the round adds to the conversation; `usage` is None if the server did not report it;
    `reason` is the model's finish reason; '' if the model was interrupted.
    """

    number: int
    messages: tuple[Message, ...]
    usage: Usage | None
    reason: str


@dataclass(frozen=True)
class Finished:
    """The turn is over; always the last step, unless an error is raised.

    `reason` is the model's finish reason, or: `pending`, the caller has calls to answer; `rounds`, the model reached
    the limit of rounds or calls; `cancelled`; `deadline`. `usage` is the sum over all rounds.
    """

    reason: str
    usage: Usage
    pending: tuple[Call, ...] = ()


Step = Union[
    TextDelta,
    ReasoningDelta,
    CallBegun,
    CallDelta,
    CallReady,
    CallRunning,
    CallOutput,
    CallCommand,
    CallDone,
    RoundDone,
    Finished,
]
