"""Converts ReAct text into deltas while it arrives: thoughts are text, actions are calls.

Theory of operation. Models are asked to write `Thought:`, `Action:`, `Action Input:`, `Observation:` and
`Final Answer:` on lines of their own, and do not: labels are bold or in the middle of a line, colons are full-width,
several actions come at once, input is in a fence or not, results are made up. Hence these rules:

* a label inside a fence is code;
* in a thought, a label in mid-line counts only if a tool's name follows;
* text after an action that is no action itself is made up, and dropped;
* an observation ends the reply: results are ours to write.

The parser is a machine over the text that has arrived and is not read yet, `_pending`:

    start -> thought -> input (an action) -> thought ...     thought -> answer

`_advance` lets the state's method read as far as it can, until neither the state nor `_pending` changes. A method holds
back only text that may still become a label or a fence's line, at most `_MAX_START` characters, and at the end nothing.
So the work is linear in the reply's length, however it is cut: little is read twice, and no pattern tries each place of
a long run anew.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal

from agent_tools.agents.turn.call_reader import declared_name
from agent_tools.agents.turn.loose_json import LooseReader
from agent_tools.models.base import ArgumentsDelta, CallComplete, CallStarted, Delta, TextDelta, new_call_id

_COLON = r"\**[ \t]*[:：]\**[ \t]*"
_NAMES = rf"(Action(?!\s*Input)|Observation|Final\s+Answer){_COLON}"
_LABEL = re.compile(rf"(?<![\w\"'`])(?:(?<!\*)\*+)?{_NAMES}")
_INPUT = re.compile(rf"Action\s*Input{_COLON}(?:\*\*(?!\*)[ \t]*|\*\Z)?")  # no code begins with two stars
_LINE_NAMES = rf"\**(Action(?!\s*Input)|Observation|Final\s+Answer|Thought){_COLON}"
_LINE_LABEL = re.compile(rf"[ \t]*{_LINE_NAMES}")
_CLOSED_BY_LABEL = re.compile(rf"([ \t]*```+)(?={_LINE_LABEL.pattern})")
_LABEL_BEHIND = re.compile(rf"\s*{_LINE_NAMES}")
_FENCE = re.compile(r"[ \t]*(```+)([^`]*)$")
_THOUGHT = re.compile(rf"\**Thought{_COLON}")
_CUT_STOP_WORD = re.compile(r"(?:^|\n)\**Observ[a-z]*\**(?:[:：]\**)?\s*\Z")
_MARKS = "`\"'*[]()<>.,; \t\r\n\f\v\xa0\u3000"  # around a name
_LABELS = ("Action", "Observation", "Final Answer")
_LINE_LABELS = (*_LABELS, "Thought")
_BEGINNINGS = sorted({label[:end] for label in _LABELS for end in range(1, len(label) + 1)}, key=len, reverse=True)
_WITHIN_WORD = re.compile(r"[\w\"'`]")
_MAX_NAME = 200  # characters of a tool's name
_MAX_HEADER = 1_000  # characters from `Action:` to the end of `Action Input:`
_MAX_START = 200  # characters of a label or a fence's line, with the white space and the stars around it

_State = Literal["start", "thought", "input", "answer"]


class ReActParser:
    """Takes the pieces of a reply, and yields its deltas; `finish` yields the last ones.

    Attributes:
        is_over: the rest of the reply is not needed: it is an observation, or an answer after an action.
        calls: the number of actions so far.
    """

    def __init__(self, tools: Mapping[str, object]) -> None:
        self.is_over = False
        self.calls = 0
        self._tools = tools
        self._pending = ""
        self._state: _State = "start"
        self._at_line_start = True
        self._fence = ""  # the ticks that opened the fence around the input
        self._id = self._name = ""
        self._written: list[str] = []  # the pieces of the input
        self._skipped = ""  # characters that are dropped after a label: white space and stars
        self._gap: list[str] = []  # blank lines; they belong to the input only if more of it follows

    def feed(self, text: str) -> Iterator[Delta]:
        """Take a piece of the reply, and yield the deltas that are certain now."""
        self._pending += text
        yield from self._advance(is_end=False)

    def finish(self) -> Iterator[Delta]:
        """Yield the remaining deltas at the reply's end."""
        if not self._fence:
            self._pending = _CUT_STOP_WORD.sub("", self._pending) if not self.is_over else ""
        yield from self._advance(is_end=True)
        if self._state == "input":
            yield self._end_call()

    def _advance(self, is_end: bool) -> Iterator[Delta]:
        before = None
        while not self.is_over and self._rest() and before != (self._state, len(self._pending)):
            before = (self._state, len(self._pending))
            match self._state:
                case "start":
                    yield from self._start(is_end)
                case "thought":
                    yield from self._thought(is_end)
                case "input":
                    yield from self._input(is_end)
                case "answer":
                    yield from self._answer(is_end)

    def _rest(self) -> str:
        """Return the text to be read, after dropping what is skipped after a label."""
        if self._skipped and (rest := self._pending.lstrip(self._skipped)) != self._pending:
            self._pending = rest
        if self._pending:
            self._skipped = ""
        return self._pending

    def _start(self, is_end: bool) -> Iterator[Delta]:
        self._pending = self._pending.lstrip()
        if found := _THOUGHT.match(self._pending):
            self._pending, self._state, self._skipped = self._pending[found.end() :], "thought", " \t*"
            yield TextDelta("Thought: ")
        elif is_end or not _may_be_label(self._pending, _LINE_LABELS):
            self._state = "thought"
            if not _LINE_LABEL.match(self._pending):
                yield TextDelta("Thought: ")

    def _thought(self, is_end: bool) -> Iterator[Delta]:
        """Read text up to the next label that counts."""
        for found in _LABEL.finditer(self._pending):
            label, starts_line = found[1], self._starts_line(found.start())
            if label == "Observation" and starts_line:
                yield from self._say(self._pending[: found.start()].rstrip())
                self.is_over = True
                return
            if label.startswith("Final"):
                yield from self._conclude(found.end())
                return
            if label == "Action" and (yield from self._action(found, starts_line, is_end)):
                return
        cut = len(self._pending) - (0 if is_end else _length_of_start(self._pending[-_MAX_START:]))
        yield from self._say(self._pending[:cut])
        self._pending = self._pending[cut:]

    def _starts_line(self, position: int) -> bool:
        line = self._pending[:position].rpartition("\n")
        return not line[2].strip() and bool(line[1] or self._at_line_start)

    def _conclude(self, end: int) -> Iterator[Delta]:
        if self.calls:
            self.is_over = True  # the model answers before it has seen the result
            return
        yield from self._say(self._pending[:end])
        self._pending, self._state, self._at_line_start = self._pending[end:], "answer", False

    def _action(self, found: re.Match[str], starts_line: bool, is_end: bool) -> Generator[Delta, None, bool]:
        """Begin a call, if this label is one of a call; return whether it is, or may still be."""
        rest = self._pending[found.end() : found.end() + _MAX_HEADER]
        header = _INPUT.search(rest)
        written = rest[: header.start()].rstrip("*").rstrip().rstrip(" \t,;") if header else rest
        if header and "\n" in written:  # not a name
            header, written = None, rest
        name = declared_name(written.strip().partition("\n")[0].strip(_MARKS), self._tools)
        if not is_end and (_may_be_header(rest) if not header else header.end() == len(rest) < _MAX_HEADER):
            before = self._pending[: found.start()].rstrip()
            yield from self._say(before)
            self._pending = self._pending[len(before) :]
            return True
        if name not in self._tools and not (header and starts_line and name):
            return False
        yield from self._say(self._pending[: found.start()].rstrip())
        self._pending = self._pending[found.end() + header.end() :] if header else ""
        self._state = "input"
        self._id, self._name = new_call_id(), name
        self._written, self._gap, self._fence = [], [], ""
        self._skipped = " \t"
        self._at_line_start = True
        yield CallStarted(self.calls, self._id, name)
        return True

    def _input(self, is_end: bool) -> Iterator[Delta]:
        """Read the input line by line, up to a label outside of fences."""
        pending, at = self._pending, 0
        while at < len(pending) and self._state == "input":
            newline = pending.find("\n", at)
            after = newline + 1 or len(pending)
            line = pending[at : after - (newline >= 0)]
            if self._at_line_start and self._fence and (closed := _CLOSED_BY_LABEL.match(line[:_MAX_START])):
                line, after, newline = closed[1], at + closed.end(), at
            elif self._at_line_start and not self._fence and _LINE_LABEL.match(line):
                yield self._end_call()
                self._state = "thought"
                break
            elif newline < 0 and not is_end and self._may_end(line):
                break
            if self._at_line_start and newline >= 0:
                self._mark_fence(line)
            self._at_line_start, at = newline >= 0, after
            yield from self._write(line, "\n" if newline >= 0 else "")
        self._pending = pending[at:]

    def _may_end(self, line: str) -> bool:
        """Return whether the rest of this line may make it a label, or the beginning or end of a fence."""
        if not self._at_line_start or len(line) > _MAX_START:
            return False
        return line.lstrip()[:1] == "`" or _may_be_label(line, _LINE_LABELS)

    def _mark_fence(self, line: str) -> None:
        if len(line) <= _MAX_START and (found := _FENCE.match(line)):
            if not self._fence:
                self._fence = found[1]
            elif len(found[1]) >= len(self._fence) and not found[2].strip():
                self._fence = ""

    def _write(self, line: str, newline: str) -> Iterator[Delta]:
        if line.strip():
            text, self._gap = "".join((*self._gap, line)), [newline]
            self._written.append(text)
            yield ArgumentsDelta(self.calls, text)
        elif self._written:
            self._gap.append(line + newline)

    def _end_call(self) -> Delta:
        arguments = "".join(self._written)
        if arguments.startswith("{"):
            reader = LooseReader(arguments, 0)
            with suppress(ValueError, RecursionError):
                reader.value()
                if _LABEL_BEHIND.match(arguments, reader.place):
                    arguments = arguments[: reader.place]
        call = CallComplete(self.calls, self._id, self._name, arguments)
        self.calls += 1
        return call

    def _answer(self, is_end: bool) -> Iterator[Delta]:
        """Read the final answer, up to an observation."""
        pending, at = self._pending, 0
        while at < len(pending) and not self.is_over:
            newline = pending.find("\n", at)
            after = newline + 1 or len(pending)
            line = pending[at:after]
            if self._at_line_start and (found := _LINE_LABEL.match(line)) and found[1] == "Observation":
                self.is_over = True
            elif newline < 0 and not is_end and self._at_line_start and _may_be_label(line, _LINE_LABELS):
                break
            else:
                self._at_line_start, at = newline >= 0, after
                yield TextDelta(line)
        self._pending = pending[at:]

    def _say(self, text: str) -> Iterator[Delta]:
        if text:
            self._at_line_start = text.endswith("\n")
            if not self.calls:
                yield TextDelta(text)


def _may_be_label(text: str, labels: Sequence[str]) -> bool:
    """Return whether a line with this beginning may still become a label's."""
    return len(text) <= _MAX_START and any(label.startswith(text.strip(" \t*")) for label in labels)


def _length_of_start(text: str) -> int:
    """Count the characters at the end that may begin a label, with the white space and the stars before it."""
    rest = text.rstrip(" \t").rstrip("*")
    word = next((part for part in _BEGINNINGS if rest.endswith(part)), "")
    if word and _WITHIN_WORD.fullmatch(rest.removesuffix(word)[-1:]):
        word = ""
    return len(text) - len(rest.removesuffix(word).rstrip("*").rstrip())


def _may_be_header(rest: str) -> bool:
    """Return whether the text after `Action:` may still become a name and `Action Input:`."""
    name, newline, after = rest.partition("\n")
    if len(name) > _MAX_NAME or len(rest) >= _MAX_HEADER:
        return False
    return not newline or "Action Input".startswith(after.strip().strip("*").strip())
