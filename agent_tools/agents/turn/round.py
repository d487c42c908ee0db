"""Converts one reply of the model into steps: its text, its calls in any notation, and its usage."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from agent_tools.agents.steps import Call, CallBegun, CallDelta, CallReady, Step
from agent_tools.agents.turn.call_forms import FORMS, TOKENS, behind_mark, declared_name, read_calls
from agent_tools.agents.turn.code_stream import CodeReader, CodeStream
from agent_tools.code_reader import python_blocks
from agent_tools.errors import InvalidParams
from agent_tools.messages import ASSISTANT, CALL_ID, SERVER_FIELDS, FunctionCall, Message
from agent_tools.models import base
from agent_tools.models.base import (
    ArgumentsDelta,
    CallComplete,
    CallStarted,
    Delta,
    Finish,
    Json,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    Usage,
    new_call_id,
    refuse_more_calls,
)

# Calls that a model wrote into its answer, as servers without a parser for its calls pass them on. Pure parsing.
#
# Theory of operation. Calls have several forms: call_forms.py. An answer, or its end from a call's first token on,
# counts as calls only if nothing else is in it and every function was declared. So a call that is quoted in prose stays
# prose.
#
# `calls_in` decides about a complete text. `Gate` works while the answer arrives, and decides which text has to wait:
#
#     start    the first characters may still become a call: nothing is let through yet
#     holding  a call has begun, by its head: the rest is kept for `calls_in`
#     open     the answer is text: it is let through, except for a tail that may be the beginning of a call
#
# Text that waits in vain costs the reader some delay: it is shown at the end, if `calls_in` finds no calls in it. A
# call that is let through would be shown as text, and never be made. So text waits while in doubt, but no more than
# `MAX_UNDECIDED` characters of it.

_OPENINGS = (*TOKENS, "```json", "```tool_call", "```tool_code")
_OPENING = re.compile("|".join(r"(?<![^\n])" * (each[0] == "`") + re.escape(each) for each in _OPENINGS))
_FENCE_OPENING = re.compile(r"```[a-z_]*[ \t]*\r?\n")

_GateState = Literal["start", "holding", "open"]


def calls_in(
    text: str, declared: Mapping[str, object], schemas: Mapping[str, Json | None] = MappingProxyType({})
) -> tuple[FunctionCall, ...]:
    """Return the calls of a text that consists only of calls of declared functions, else ().

    `declared` are the functions, with whether they run code; `schemas` are those of their parameters, by which text
    between tags becomes JSON.
    """
    try:
        return read_calls(_inside_fence(text.strip()), declared, schemas)
    except (ValueError, RecursionError):
        return ()


class Gate:
    """Passes an answer on while it arrives, but holds back text that may become calls.

    `declared` are the functions that may be called; None stands for any.
    """

    def __init__(self, declared: Mapping[str, object] | None = None) -> None:
        self._declared = declared
        self._pending: list[str] = []
        self._shown = ""  # the last character: fences stand at the beginning of a line
        self._state: _GateState = "start"

    def feed(self, text: str) -> str:
        """Take a piece of the answer, and return the text that may be shown now."""
        self._pending.append(text)
        if self._state == "holding":
            return ""
        known = len(self._shown)
        pending = "".join((self._shown, *self._pending))
        cut = 0
        if self._state == "open" or not self._may_begin(pending, 0):
            self._state = "open"
            cut = self._beginning(pending, known)
            self._shown = pending[cut - 1 : cut]
        self._pending = [pending[cut:]]
        return pending[known:cut]

    def _beginning(self, text: str, place: int) -> int:
        """Return the place where a call begins, or may begin; else the text's length."""
        while found := _OPENING.search(text, place):
            if self._may_begin(text, found.start()):
                return found.start()
            place = found.end()
        return _tail(text, place)

    def _may_begin(self, text: str, place: int) -> bool:
        opens = opens_call(text[place : place + MAX_UNDECIDED + 1], self._declared)
        if opens:
            self._state = "holding"
        return opens or (opens is None and len(text) - place <= MAX_UNDECIDED)

    def rest(self) -> str:
        """Return the text that is held back."""
        return "".join(self._pending)


def _inside_fence(text: str) -> str:
    """Return the content of a text that is one fence; any other text as it is."""
    opening = _FENCE_OPENING.match(text)
    if not opening or not text.endswith("```") or len(text) < opening.end() + 3:
        return text
    return text[opening.end() : -3].rstrip(" \t").removesuffix("\n")


def _tail(text: str, start: int) -> int:
    """Return the place from which a text's end may be the beginning of an opening; its length if there is none."""
    tick = text.rfind("`", start)
    tick = next((place for place in range(max(start, tick - 2), tick) if text[place : tick + 1].strip("`") == ""), tick)
    ends = [text.rfind("<", start), text.rfind("[", start), tick if text[tick - 1 : tick] in ("", "\n") else -1]
    return min(
        (end for end in ends if end >= start and any(opening.startswith(text[end:]) for opening in _OPENINGS)),
        default=len(text),
    )


# The opening of a text: may it become a call? Pure, and of the first characters only.
#
# A call in JSON is an object whose first key is one of a call's keys, with a value that a call has there; alone, in an
# array, or in a fence. JSON of any other kind is an answer, and is known as one before its end. Calls in other forms
# (call_forms.py) have the function's name in their head.


MAX_UNDECIDED = 1_000  # characters that are held back while they may still become a call

_MAX_HEAD = 500  # characters from a token to the arguments
_NO_CALL = "<|message|>"  # ends a head; found where no head has matched
_NAME = re.compile(r"[\w.:/-]{1,200}\s*")
_LANGUAGES = ("", "json", "tool_call", "tool_code")
_KEY = re.compile(r'[{,]\s*"([^"\\]*)"\s*:\s*')
_SCALAR = re.compile(r'"([^"\\]*)"\s*|[\w.+-]+\s*(?=,)')
_TYPES = ("function", "function_call", "tool_call", "tool_use")
_OBJECT_OR_TEXT = ("arguments", "parameters", "input")


def opens_call(text: str, declared: Mapping[str, object] | None) -> bool | None:
    """Return whether an answer with this beginning may be a call; None while undecided.

    `declared` are the functions that may be called; None stands for any.
    """
    text = text.lstrip()
    if not text or "```".startswith(text[:3]):
        return _fence_opens_call(text[3:], declared) if len(text) > 2 else None
    while True:
        head = next(filter(None, (form.head.match(text) for form in FORMS[:-1])), None)
        if head:
            return _is_declared(head["name"], declared)
        if text[0] in "{[" and (opens := _json_opens_call(text, declared)) is not False:
            return opens
        if not any(text.startswith(token) or token.startswith(text) for token in TOKENS) or _NO_CALL in text:
            return False
        inside = text[behind_mark(text, 0) :].lstrip()
        if not inside or len(inside) == len(text) or _NAME.match(inside):
            return None if len(text) < _MAX_HEAD else False
        text = inside


def _json_opens_call(text: str, declared: Mapping[str, object] | None) -> bool | None:
    if text[0] == "{":
        return _object_opens_call(text, declared)
    inside = text[1:].lstrip()
    if not inside:
        return None
    if inside[0] == "{":
        return _object_opens_call(inside, declared)
    return None if _NAME.fullmatch(inside) else False


def _fence_opens_call(text: str, declared: Mapping[str, object] | None) -> bool | None:
    language, newline, inside = text.partition("\n")
    if not newline:
        return None if any(known.startswith(language.strip()) for known in _LANGUAGES) else False
    if language.strip() not in _LANGUAGES:
        return False
    return opens_call(inside, declared) if inside.strip()[:1] in ("{", "[") else (False if inside.strip() else None)


def _object_opens_call(text: str, declared: Mapping[str, object] | None) -> bool | None:
    """Look at an object's first key and value, or at the second if the first is an id."""
    begun = text[1:].lstrip()
    if begun and begun[0] != '"':
        return False
    place = 0
    for _ in range(2):
        found = _KEY.match(text, place)
        if found is None:
            return None
        if found[1] not in ("id", "tool_call_id"):
            return _value_opens_call(found[1], text[found.end() :], declared)
        scalar = _SCALAR.match(text, found.end())
        if scalar is None or scalar.end() == len(text):
            return None
        place = scalar.end()
    return False


def _value_opens_call(key: str, value: str, declared: Mapping[str, object] | None) -> bool | None:
    if key not in ("name", "tool_name", "type", "function", *_OBJECT_OR_TEXT):
        return False
    if not value:
        return None
    if key == "function":
        return value[0] == "{"
    if key in _OBJECT_OR_TEXT:
        return value[0] in '{"n'
    text, closing, _ = value[1:].partition('"')
    if value[0] != '"':
        return False
    if key == "type":
        return text in _TYPES if closing else None
    return _is_declared(text, declared) if closing else None


def _is_declared(name: str, declared: Mapping[str, object] | None) -> bool:
    return declared is None or declared_name(name, declared) in declared


# Surrogates: the two UTF-16 halves of a character beyond U+FFFF, which some servers send in separate deltas.
#
# Halves that belong together become one character, and U+FFFD takes the place of every other: no encoding can carry a
# lone half, so the next request, or a database, would refuse the whole conversation.


def joined(text: str) -> str:
    """Return the text with neighbouring halves joined, and U+FFFD for every lone one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def without_halves(deltas: Iterator[Delta]) -> Iterator[Delta]:
    """Yield the deltas without lone halves; a first half at the end of one waits for the next delta of its kind."""
    pending: TextDelta | ReasoningDelta | ArgumentsDelta | None = None
    for delta in deltas:
        if isinstance(delta, (TextDelta, ReasoningDelta, ArgumentsDelta)):
            if pending and _is_next(pending, delta):
                delta, pending = replace(delta, text=pending.text + delta.text), None
            yield from _rest(pending)
            whole, pending = _cut(delta)
            if whole.text:
                yield whole
            continue
        yield from _rest(pending)
        pending = None
        yield _of_call(delta) if isinstance(delta, (CallStarted, CallComplete)) else delta
    yield from _rest(pending)


def _of_call(delta: CallStarted | CallComplete) -> Delta:
    delta = replace(delta, name=joined(delta.name), id=joined(delta.id))
    return replace(delta, arguments=joined(delta.arguments)) if isinstance(delta, CallComplete) else delta


def _is_next(pending: Delta, delta: Delta) -> bool:
    return type(pending) is type(delta) and getattr(pending, "index", 0) == getattr(delta, "index", 0)


def _rest(pending: TextDelta | ReasoningDelta | ArgumentsDelta | None) -> Iterator[Delta]:
    if pending:
        yield replace(pending, text=joined(pending.text))


def _cut(
    delta: TextDelta | ReasoningDelta | ArgumentsDelta,
) -> tuple[TextDelta | ReasoningDelta | ArgumentsDelta, TextDelta | ReasoningDelta | ArgumentsDelta | None]:
    """Divide a delta into the part that can go on and the half that has to wait."""
    if "\ud800" <= delta.text[-1:] <= "\udbff":
        half = replace(delta, text=delta.text[-1])
        half = replace(half, logprobs=()) if isinstance(half, TextDelta) else half
        return replace(delta, text=joined(delta.text[:-1])), half
    return replace(delta, text=joined(delta.text)), None


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
    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    usage: Usage | None = None
    reason: str = ""
    wanted_calls: bool = False
    more: Json = field(default_factory=dict)  # fields of the message that go back to the model's server
    more_of_calls: dict[str, Json] = field(default_factory=dict)  # by the calls' ids

    def __post_init__(self) -> None:
        self._gate: Gate | None = Gate(self.declared) if self.declared else None
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
                    yield from self._say(self._gate.feed(text) if self._gate else text)
                case ReasoningDelta(text):
                    self.reasoning += text
                    yield delta
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
        reasoning = self.reasoning or None
        if not self.calls:
            extra = {SERVER_FIELDS: {"message": self.more}} if self.more else None
            said = bool(self.text or reasoning)
            return (Message(ASSISTANT, self.text, reasoning_content=reasoning, extra=extra),) if said else ()
        return tuple(
            Message(
                ASSISTANT,
                "" if index else self.text,
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
                yield self._begin(index, id_, declared_name(name, self.declared))
            case base.ArgumentsDelta(index, text):
                yield self._write(index, text)
            case base.CallComplete(index, _, name, arguments, more):
                if more:
                    self.more_of_calls[self._unfinished[index].id] = more
                yield from self._complete(index, declared_name(name, self.declared), arguments)

    def _end(self) -> Iterator[Step]:
        """Look for calls in the text that was held back, and for Python in the answer, if there were no other calls."""
        pending = self._gate.rest() if self._gate else ""  # without a reason the reply broke off: it may be half a call
        found = calls_in(pending, self.declared, self.schemas) if pending and self.reason else ()
        if not found:
            yield from self._say(pending)
        if not found and self.reason and self.python_blocks in self.declared and not self.calls:
            found = tuple(FunctionCall(self.python_blocks, block) for block in python_blocks(self.text))
        for index, call in enumerate(found):
            yield from self._remark()
            yield self._begin(index, "", call.name)
            yield self._write(index, call.arguments)
            yield from self._complete(index, call.name, call.arguments)

    def _say(self, text: str) -> Iterator[Step]:
        self.text += text
        if text and not self.is_draft:
            logprobs, self._logprobs = self._logprobs, []
            yield TextDelta(text, tuple(logprobs))

    def _refuse(self, text: str) -> Iterator[Step]:
        """Show a refusal, which is final: a model that refuses a draft is not asked for the format."""
        yield from self._open_gate()
        self.is_draft = False
        self.text += text
        yield RefusalDelta(text)

    def _remark(self) -> Iterator[Step]:
        """Show a draft's text, now that calls come after it: a response in a format has no other text."""
        if self.is_draft and self.text and not self.calls and not self._unfinished:
            yield ReasoningDelta(self.text)

    def _open_gate(self) -> Iterator[Step]:
        pending, self._gate = self._gate.rest() if self._gate else "", None
        if self.text or not pending.isspace():  # many models write blank lines before a call, which are no answer
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

    def _complete(self, index: int, name: str, arguments: str) -> Iterator[Step]:
        unfinished = self._unfinished[index]
        call = Call(unfinished.id, name, arguments)
        self.calls.append(call)
        code = None
        with suppress(InvalidParams):
            code = unfinished.read_code(arguments) if unfinished.read_code else None
        if code is not None and (rest := unfinished.code.finish(code)):
            yield CallDelta(call.id, "", rest)
        yield CallReady(call, code)
