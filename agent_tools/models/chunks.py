"""The chunks of a streamed chat completion, or a whole one, read into deltas. Pure, and generous to servers.

The format is https://platform.openai.com/docs/api-reference/chat-streaming. Servers deviate from it: they leave out
usage and finish reasons, send content in parts, have two names for reasoning, or leave it in the text between tags.
Calls are another matter: call_pieces.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from agent_tools.models.base import Delta, Finish, Json, ReasoningDelta, RefusalDelta, TextDelta, Usage
from agent_tools.models.bounds import MAX_REPLY_BYTES, MAX_TOKENS, too_large
from agent_tools.models.call_pieces import CallPieces
from agent_tools.models.dialect.profile import Thinking
from agent_tools.models.dialect.thinking import Said, ThinkingSplitter
from agent_tools.models.server_fields import ServerFields

_NUMBER = re.compile(r"[0-9]{1,15}")
_CALLED = ("tool_calls", "function_call")
_SERVER_FIELDS = ("reasoning_details", "thinking_blocks", "extra_content")
"""Fields of messages that go back to the server, which has them beside reasoning that it shows."""
_REASONING = ("reasoning_content", "reasoning")


class ChunkReader:
    """Reads the chunks of one reply, as dicts, in order; `finish` yields the deltas that only its end can settle.

    `limit` is the number of characters it takes, those of calls to unknown functions included. The connection has
    counted the bytes before. `thinking` tells how reasoning may stand in the text, and `hear` is told the name of the
    field that reasoning comes in, if it has one.

    Attributes:
        reason: the finish reason, once the server has given it.

    Raises:
        ModelError: the reply is too large; see bounds.py.
    """

    def __init__(
        self, limit: int = MAX_REPLY_BYTES, thinking: Thinking = "tagged", hear: Callable[[str], None] | None = None
    ) -> None:
        self.reason: str | None = None
        self._hear = hear
        self._limit = self._left = limit
        self._more = ServerFields()
        self._pieces = CallPieces(self._taken, self._more)
        self._thinking = ThinkingSplitter(thinking)
        self._logprobs: list[Json] = []  # of text that is held back
        self._usage: Usage | None = None

    @property
    def is_over(self) -> bool:
        """The server has given a finish reason."""
        return self.reason is not None

    def read(self, event: Json) -> Iterator[Delta]:
        """Yield the deltas of one chunk."""
        if event.get("usage"):
            self._usage = usage_of(event["usage"])  # the last one counts: some servers send it with every chunk
        for choice in event.get("choices") or ():
            if choice.get("usage"):  # Moonshot has it there
                self._usage = usage_of(choice["usage"])
            if not choice.get("index"):
                yield from self._choice(choice)

    def read_whole(self, body: Json) -> Iterator[Delta]:
        """Yield the deltas of a completion that did not come as a stream."""
        for choice in body.get("choices") or ():
            message = choice.get("message") or {}
            calls = [{**call, "index": index} for index, call in enumerate(message.get("tool_calls") or ())]
            yield from self.read({"choices": [{**choice, "delta": {**message, "tool_calls": calls}}]})
        yield from self.read({"usage": body.get("usage")})

    def finish(self) -> Iterator[Delta]:
        """Yield the ends of all calls, usage if the server sent it, and the finish reason."""
        yield from self._said(self._thinking.finish())
        yield from self._pieces.finish()
        if self._usage:
            yield self._usage
        said = None if self.reason in _CALLED else self.reason  # servers say so also where there are no calls
        yield Finish(said or ("tool_calls" if self._pieces.calls else "stop"), self._more.of(None))

    def _choice(self, choice: Json) -> Iterator[Delta]:
        delta = choice.get("delta") or choice.get("message") or {}
        field = next((name for name in _REASONING if delta.get(name)), "")
        if field:
            if self._hear:
                self._hear(field)
            yield ReasoningDelta(self._taken(str(delta[field])))
        self._more.add(None, {name: delta[name] for name in _SERVER_FIELDS if delta.get(name)})
        if content := delta.get("content"):
            self._logprobs += self._tokens(choice.get("logprobs"))
            yield from self._content(content)
        if refusal := delta.get("refusal"):
            yield RefusalDelta(self._taken(_text(refusal)))
        for piece in delta.get("tool_calls") or ():
            yield from self._pieces.add(piece)
        if delta.get("function_call"):  # how calls were sent before tools
            yield from self._pieces.add({"function": delta["function_call"]})
        self.reason = choice.get("finish_reason") or self.reason

    def _content(self, content: Any) -> Iterator[Delta]:
        """Read content: text, or an array of parts, where a part may be reasoning."""
        for part in content if isinstance(content, list) else [content]:
            thought = part.get("thinking") if isinstance(part, Mapping) else None
            if thought:
                yield ReasoningDelta(self._taken(_text(thought)))
            elif text := _text(part):
                yield from self._said(self._thinking.feed(self._taken(text)))
        if self._thinking.is_thinking:
            self._logprobs = []

    def _said(self, deltas: Iterable[Said]) -> Iterator[Delta]:
        """Yield what the splitter tells apart; the answer's tokens go with its text."""
        for delta in deltas:
            if isinstance(delta, TextDelta) and self._logprobs:
                delta = TextDelta(delta.text, tuple(self._logprobs))
                self._logprobs = []
            elif isinstance(delta, ReasoningDelta):
                self._logprobs = []
            yield delta

    def _tokens(self, logprobs: Any) -> list[Json]:
        content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
        found = [each for each in content if isinstance(each, Mapping)] if isinstance(content, list) else []
        return [each for each in found if self._taken(str(each.get("token") or " "))]

    def _taken(self, text: str) -> str:
        self._left -= len(text)
        if self._left < 0:
            raise too_large(f"more than {self._limit:,} bytes")
        return text


def _text(part: Any) -> str:
    """Return the text of a part of content, or of an array of such parts; '' if it has none."""
    if isinstance(part, list):
        return "".join(_text(each) for each in part if not isinstance(each, list))
    if isinstance(part, Mapping):
        return str(part.get("text") or "")
    return str(part)


def usage_of(usage: object, read: str = "prompt_tokens", written: str = "completion_tokens") -> Usage:
    """Read tokens from a `usage` object, under an API's names for them; a missing or malformed number is 0."""
    return Usage(
        _tokens(usage, read),
        _tokens(usage, written),
        _tokens(_inner(usage, f"{read}_details"), "cached_tokens"),
        _tokens(_inner(usage, f"{written}_details"), "reasoning_tokens"),
    )


def _inner(counts: object, name: str) -> object:
    return counts.get(name) if isinstance(counts, Mapping) else None


def _tokens(counts: object, name: str) -> int:
    number = _inner(counts, name)
    number = int(number) if isinstance(number, float) and number.is_integer() else number
    number = int(number) if isinstance(number, str) and _NUMBER.fullmatch(number) else number
    return number if type(number) is int and 0 <= number <= MAX_TOKENS else 0
