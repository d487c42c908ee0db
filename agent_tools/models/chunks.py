"""Converts the chunks of a streamed chat completion, or a whole one, into deltas. Pure, and tolerant of servers.

The format is https://platform.openai.com/docs/api-reference/chat-streaming. Servers deviate from it: they leave out
usage and finish reasons, send content in parts, have two names for reasoning, or leave it in the text between tags.
The pieces of calls are joined below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from agent_tools.errors import ModelError
from agent_tools.models.base import Delta, Finish, Json, ReasoningDelta, RefusalDelta, TextDelta, Usage
from agent_tools.models.call_pieces import CallPieces, finish_reason
from agent_tools.models.dialect.profile import Thinking
from agent_tools.models.dialect.thinking import Said, ThinkingSplitter
from agent_tools.models.reply_limits import MAX_REPLY_BYTES, MAX_TOKENS, too_large
from agent_tools.models.server_fields import ServerFields

_SERVER_FIELDS = ("reasoning_details", "thinking_blocks", "extra_content")
"""Fields of messages that go back to the server, which has them beside reasoning that it shows."""
_REASONING = ("reasoning_content", "reasoning")
_REASONS = re.compile(r"(?:\w+_)?(?:reasoning|think(?:ing)?|thoughts?)(?:_(?:content|text|summary|blocks|details))?")
_OF_REASONING = ("text", "content", "thinking", "reasoningText", "summary")
_NUMBER = re.compile(r"[0-9]{1,15}")


class ChunkReader:
    """Reads the chunks of one reply, as dicts, in order; `finish` yields the deltas that only its end can settle.

    `limit` is the number of characters it takes, those of calls to unknown functions included. The connection has
    counted the bytes before. `thinking` tells how reasoning may stand in the text. `hear` is told what the reply shows
    of its server: the name and the value of a field of its profile.

    Attributes:
        reason: the finish reason, once the server has given it.

    Raises:
        ModelError: the reply is too large.
    """

    def __init__(
        self,
        limit: int = MAX_REPLY_BYTES,
        thinking: Thinking = "tagged",
        hear: Callable[[str, str], None] | None = None,
    ) -> None:
        self.reason: str | None = None
        self._hear = hear
        self._limit = self._left = limit
        self._more = ServerFields()
        self._pieces = CallPieces(self._more)
        self._thinking = ThinkingSplitter(thinking)
        self._logprobs: list[Json] = []  # of text that is held back
        self._usage: Usage | None = None
        self._has_choice = self._has_deltas = False

    @property
    def is_over(self) -> bool:
        """The server has given a finish reason."""
        return self.reason is not None

    @property
    def is_complete(self) -> bool:
        """The server has also sent usage."""
        return self._usage is not None

    def read(self, event: Json) -> Iterator[Delta]:
        """Yield the deltas of one chunk."""
        choices = [choice for choice in event.get("choices") or () if choice is not None]
        for holder in (event, event.get("x_groq"), *choices, *(choice.get("delta") for choice in choices)):
            if usage := _inner(holder, "usage"):
                self._usage = usage_of(usage)  # the last one counts: some servers send it with every chunk
        for choice in choices:
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
        """Yield the ends of all calls, usage if the server sent it, and the finish reason.

        Raises:
            ModelError: it is no answer, or one that failed: none of its calls is yielded.
        """
        yield from self._said(self._thinking.finish())
        if not self._has_choice:
            raise ModelError("The model's server sent an answer without a choice.", is_retryable=True)
        reason = finish_reason(self.reason)
        if not reason:
            detail = f"The model's server ended its answer with the reason {str(self.reason)[:200]!r}."
            raise ModelError("The model's server ended its answer with a failure.", detail=detail)
        if reason == "stop" and not self._pieces.calls:
            yield from self._said(self._thinking.unended())
        if self._hear and self._thinking.learned:
            self._hear("thinking", self._thinking.learned)
        yield from self._pieces.finish()
        if self._usage:
            yield self._usage
        is_called = reason == "stop" and self._pieces.calls  # servers say so also where there are no calls
        yield Finish("tool_calls" if is_called else reason, self._more.of(None))

    def _choice(self, choice: Json) -> Iterator[Delta]:
        self._has_choice = True
        delta = choice.get("delta")
        self._has_deltas = self._has_deltas or bool(delta)
        if not delta and not self._has_deltas:  # after deltas, the whole message is a repetition of them
            delta = choice.get("message") or {**choice, "content": choice.get("text")}
        delta = delta or {}
        field = next((name for name in (*_REASONING, *filter(_REASONS.fullmatch, delta)) if delta.get(name)), "")
        if field in _REASONING and self._hear:
            self._hear("reasoning", field)
        if field and (thought := _thought(delta[field])):
            yield ReasoningDelta(self._taken(thought))
        self._more.add(None, {name: delta[name] for name in _SERVER_FIELDS if delta.get(name)})
        if content := delta.get("content"):
            self._logprobs += self._tokens(choice.get("logprobs"))
            yield from self._content(content)
        if refusal := delta.get("refusal"):
            yield RefusalDelta(self._taken(_text(refusal)))
        pieces = delta.get("tool_calls") or ()
        for piece in filter(None, [pieces] if isinstance(pieces, Mapping) else pieces):
            yield from self._pieces.add(piece, self._taken)
        if delta.get("function_call"):  # how calls were sent before tools
            yield from self._pieces.add({"function": delta["function_call"]}, self._taken)
        reason = choice.get("finish_reason") or choice.get("finishReason")
        self.reason = self.reason if reason is None or str(reason).lower() in ("", "null", "none") else reason

    def _content(self, content: Any) -> Iterator[Delta]:
        """Read content: text, or an array of parts, where a part may be reasoning."""
        for part in content if isinstance(content, list) else [content]:
            if isinstance(part, Mapping) and (part.get("thinking") or part.get("type") in ("thinking", "reasoning")):
                if thought := _thought(part.get("thinking") or part):
                    yield ReasoningDelta(self._taken(thought))
            elif isinstance(part, Mapping) and part.get("name"):
                yield from self._pieces.add(part, self._taken)
            elif text := _text(part):
                yield from self._said(self._thinking.feed(self._taken(text)))
        if self._thinking.is_thinking:
            self._logprobs = []

    def _said(self, deltas: Iterable[Said]) -> Iterator[Delta]:
        """Yield reasoning and text as the splitter separates them; the answer's tokens go with its text."""
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


def _thought(value: Any, depth: int = 4) -> str:
    """Return the text of reasoning in any shape: text, blocks, or an object around it; '' for encrypted reasoning."""
    if isinstance(value, list) and depth:
        return "".join(_thought(each, depth - 1) for each in value)
    if isinstance(value, Mapping) and depth:
        return next(filter(None, (_thought(value.get(name), depth - 1) for name in _OF_REASONING)), "")
    return value if isinstance(value, str) else ""


def _text(part: Any) -> str:
    """Return the text of a part of content, or of an array of such parts; '' if it has none."""
    if isinstance(part, list):
        return "".join(_text(each) for each in part if not isinstance(each, list))
    if isinstance(part, Mapping):
        return str(part.get("text") or "")
    return str(part)


def usage_of(usage: object) -> Usage:
    """Read tokens from a `usage` object, under either API's names for them; a missing or malformed number is 0."""
    is_of_responses = _inner(usage, "input_tokens") is not None
    read, written = ("input_tokens", "output_tokens") if is_of_responses else ("prompt_tokens", "completion_tokens")
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
