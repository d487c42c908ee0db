"""Converts one reply of the model into steps: its text, its calls in any notation, and its usage."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from agent_tools.agents.steps import Call, CallBegun, CallDelta, CallReady, Step
from agent_tools.agents.turn.call_gate import CallGate
from agent_tools.agents.turn.call_reader import MAX_NAME_CHARS, ReadCalls, calls_after, calls_in, declared_name
from agent_tools.agents.turn.code_stream import CodeReader, CodeStream
from agent_tools.agents.turn.surrogates import without_halves
from agent_tools.code_fences import python_blocks
from agent_tools.errors import InvalidParams
from agent_tools.growing_text import GrowingText
from agent_tools.messages import ASSISTANT, CALL_ID, SERVER_FIELDS, FunctionCall, Message
from agent_tools.models import base
from agent_tools.models.base import Delta, Finish, Json, ReasoningDelta, RefusalDelta, TextDelta, Usage, new_call_id
from agent_tools.models.dialect.framing import behind_tokens
from agent_tools.models.reply_limits import refuse_more_calls

REPAIRED = "Note: the call was written as text with errors, and read as it was meant. Write valid JSON in calls."


@dataclass
class _UnfinishedCall:
    """A call that the model is writing; `code` reads the code in it, if its tool runs code."""

    id: str
    read_code: CodeReader | None
    code: CodeStream


@dataclass
class Round:
    """One reply, read so far.

    `declared` maps the functions that may be called to what reads code from their arguments, None if they run none;
    without any, calls are ignored, and only noted in `wanted_calls`. `python_blocks` names the function that fenced
    Python is a call of, or is ''. `schemas` are those of the functions' parameters, for arguments that come as text.
    The text of a draft is no answer: it is kept back, and shown as reasoning if calls or a refusal come after it.
    """

    number: int
    declared: Mapping[str, CodeReader | None]
    python_blocks: str = ""
    used_ids: set[str] = field(default_factory=set)
    schemas: Mapping[str, Json | None] = field(default_factory=dict)
    is_draft: bool = False
    text: GrowingText = field(default_factory=GrowingText)
    reasoning: GrowingText = field(default_factory=GrowingText)
    calls: list[Call] = field(default_factory=list)
    usage: Usage | None = None
    reason: str = ""
    wanted_calls: bool = False
    more: Json = field(default_factory=dict)  # fields of the message that go back to the model's server
    more_of_calls: dict[str, Json] = field(default_factory=dict)  # by the calls' ids

    def __post_init__(self) -> None:
        self._gate: CallGate | None = CallGate(self.declared) if self.declared else None
        self._thoughts = CallGate(self.declared, in_prose=True) if self.declared else None
        self._beside: list[FunctionCall] = []  # calls as text, before others
        self._unfinished: dict[int, _UnfinishedCall] = {}
        self._logprobs: list[Json] = []  # of text that is held back

    def read(self, deltas: Iterator[Delta]) -> Iterator[Step]:
        """Yield the steps of the reply as it arrives. It is complete if `reason` is set afterwards."""
        for delta in without_halves(deltas):
            match delta:
                case RefusalDelta(text):
                    yield from self._refuse(text)
                case TextDelta(text, logprobs):
                    self._logprobs += logprobs
                    if text.strip():
                        yield from self._end_thoughts()
                    yield from self._say(self._gate.feed(text) if self._gate else text)
                case ReasoningDelta(text):
                    yield from self._think(self._thoughts.feed(text) if self._thoughts else text)
                case Usage():
                    self.usage = delta
                case Finish(reason, more):
                    self.reason = reason
                    self.more = more
                case _:
                    self.wanted_calls = True
                    if self.declared:
                        yield from self._native(delta)
        yield from self._end()

    @property
    def messages(self) -> tuple[Message, ...]:
        """Return the reply as messages, one for each call."""
        text, reasoning = str(self.text), str(self.reasoning) or None
        if not self.calls:
            extra = {SERVER_FIELDS: {"message": self.more}} if self.more else None
            said = bool(text or reasoning)
            return (Message(ASSISTANT, text, reasoning_content=reasoning, extra=extra),) if said else ()
        return tuple(
            Message(
                ASSISTANT,
                "" if index else text,
                reasoning_content=None if index else reasoning,
                function_call=FunctionCall(call.name, call.arguments),
                extra={CALL_ID: call.id, **self._server_fields(index, call)},
            )
            for index, call in enumerate(self.calls)
        )

    def _server_fields(self, index: int, call: Call) -> dict[str, Json]:
        found = {"message": {} if index else self.more, "call": self.more_of_calls.get(call.id, {})}
        found = {name: fields for name, fields in found.items() if fields}
        return {SERVER_FIELDS: found} if found else {}

    def _native(self, delta: base.CallStarted | base.ArgumentsDelta | base.CallComplete) -> Iterator[Step]:
        match delta:
            case base.CallStarted(index, id_, name):
                yield from self._open_gate()
                self._gate = CallGate(self.declared, in_prose=True)
                yield self._begin(index, id_, declared_name(name[:MAX_NAME_CHARS], self.declared))
            case base.ArgumentsDelta(index, text):
                yield self._write(index, text)
            case base.CallComplete(index, _, name, arguments, more):
                if more:
                    self.more_of_calls[self._unfinished[index].id] = more
                is_empty, is_tagged = arguments.strip() in ("", "{}"), arguments.lstrip()[:1] == "<"
                if is_empty or is_tagged:  # the whole call is in the name, or the arguments stand between tags
                    found = calls_in(f"{name}\n{arguments}" if is_tagged else name, self.declared, self.schemas)
                    arguments = next((call.arguments for call in found), arguments)
                yield from self._complete(index, declared_name(name[:MAX_NAME_CHARS], self.declared), arguments)

    def _end(self) -> Iterator[Step]:
        """Look for calls in the text that was held back, and for Python in the answer, if there were no other calls."""
        pending = self._gate.rest() if self._gate else ""  # without a reason the reply broke off: it may be half a call
        read = calls_after(pending, self.declared, self.schemas, str(self.text)) if self.reason else ReadCalls(())
        found = read.calls
        is_stray = self._unfinished and behind_tokens(pending, 0) == len(pending)  # tokens that a server left
        if not found and not is_stray:
            yield from self._say(pending)
        if not found and self.reason and not self.calls and not str(self.text).strip() and self._thoughts:
            read = calls_after(self._thoughts.rest(), self.declared, self.schemas, str(self.reasoning))
            found = read.calls
            self._thoughts = None if found else self._thoughts
        yield from self._end_thoughts()
        if not found and self.reason and self.python_blocks in self.declared and not self.calls:
            found = tuple(FunctionCall(self.python_blocks, block) for block in python_blocks(str(self.text)))
        made = [(call.name, _plain(call.arguments)) for call in self.calls]
        found = tuple(call for call in (*self._beside, *found) if (call.name, _plain(call.arguments)) not in made)
        for index, call in enumerate(found, len(self._unfinished)):
            yield from self._remark()
            yield self._begin(index, "", call.name)
            yield self._write(index, call.arguments)
            yield from self._complete(index, call.name, call.arguments, REPAIRED if read.is_repaired else "")

    def _think(self, text: str) -> Iterator[Step]:
        self.reasoning.append(text)
        if text:
            yield ReasoningDelta(text)

    def _end_thoughts(self) -> Iterator[Step]:
        """Show the rest of the reasoning: an answer, or a call, comes after it."""
        if self._thoughts and (rest := self._thoughts.rest()):
            self._thoughts = CallGate(self.declared, in_prose=True)
            yield from self._think(rest)

    def _say(self, text: str) -> Iterator[Step]:
        self.text.append(text)
        if text and not self.is_draft:
            logprobs, self._logprobs = self._logprobs, []
            yield TextDelta(text, tuple(logprobs))

    def _refuse(self, text: str) -> Iterator[Step]:
        """Show a refusal, which is final: a model that refuses a draft is not asked for the format."""
        yield from self._open_gate()
        self.is_draft = False
        self.text.append(text)
        yield RefusalDelta(text)

    def _remark(self) -> Iterator[Step]:
        """Show a draft's text, now that calls come after it: a response in a format has no other text."""
        if self.is_draft and self.text and not self.calls and not self._unfinished:
            yield ReasoningDelta(str(self.text))

    def _open_gate(self) -> Iterator[Step]:
        pending, self._gate = self._gate.rest() if self._gate else "", None
        yield from self._end_thoughts()
        beside = calls_in(pending, self.declared, self.schemas)
        self._beside += beside
        if not beside and (
            self.text or behind_tokens(pending, 0) < len(pending)
        ):  # blank lines before a call say nothing
            yield from self._say(pending)
        yield from self._remark()

    def _begin(self, index: int, id_: str, name: str) -> CallBegun:
        refuse_more_calls(len(self._unfinished))
        if not id_ or id_ in self.used_ids:  # some servers number the calls of every reply from 0
            id_ = new_call_id()
        self.used_ids.add(id_)
        self._unfinished[index] = _UnfinishedCall(id_, self.declared.get(name), CodeStream())
        return CallBegun(id_, name)

    def _write(self, index: int, text: str) -> CallDelta:
        unfinished = self._unfinished[index]
        return CallDelta(unfinished.id, text, unfinished.code.feed(text) if unfinished.read_code else "")

    def _complete(self, index: int, name: str, arguments: str, note: str = "") -> Iterator[Step]:
        unfinished = self._unfinished[index]
        call = Call(unfinished.id, name, arguments, note)
        self.calls.append(call)
        code = None
        with suppress(InvalidParams):
            code = unfinished.read_code(arguments) if unfinished.read_code else None
        if code is not None and (rest := unfinished.code.finish(code)):
            yield CallDelta(call.id, "", rest)
        yield CallReady(call, code)


def _plain(arguments: str) -> str:
    """Return arguments in one form of all that mean the same."""
    try:
        return json.dumps(json.loads(arguments, strict=False), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
