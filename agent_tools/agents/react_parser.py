"""ReAct text, read into deltas while it arrives: thoughts are text, actions are calls.

Models are told `Thought:`, `Action:`, `Action Input:`, `Observation:` and `Final Answer:` on lines of their own, and
differ: bold labels, full-width colons, a label in the middle of a line, several actions in one go, input in a fence or
not, results they made up. Rules: a label inside a fence is code; in a thought, a label in mid-line counts if it names a
tool; what follows an action and is none itself is made up and dropped; an observation ends the reply.
"""

from __future__ import annotations

import re
from collections.abc import Container, Generator, Iterator

from agent_tools.models.base import ArgumentsDelta, CallBegun, CallComplete, Delta, ReasoningDelta, TextDelta
from agent_tools.models.chunks import new_call_id

_COLON = r"\**[ \t]*[:：]\**[ \t]*"
_LABEL = re.compile(rf"(?<![\w\"'`])\**(Action(?!\s*Input)|Observation|Final\s+Answer){_COLON}")
_INPUT = re.compile(rf"([^\n]*?)[ \t,;]*\n?\s*\**Action\s*Input{_COLON}")
_LINE_LABEL = re.compile(rf"[ \t]*\**(Action(?!\s*Input)|Observation|Final\s+Answer|Thought){_COLON}")
_CLOSED_BY_LABEL = re.compile(rf"([ \t]*```+)[ \t]*(?={_LINE_LABEL.pattern})")
_JSON_THEN_LABEL = re.compile(rf"(\{{.*\}})\s*{_LINE_LABEL.pattern}.*", re.DOTALL)
_FENCE = re.compile(r"[ \t]*(```+)([^`]*)$")
_THOUGHT = re.compile(rf"\**Thought{_COLON}")
_CUT_STOP_WORD = re.compile(r"(?:^|\n)\**Observ[a-z]*\**[:：]?\**\s*\Z")
_AROUND_NAME = re.compile(r"^[\s`\"'*\[(<]+|[\s`\"'*\])(>.,;]+$")
_OPENING, _CLOSING = "<think>", "</think>"
_MAX_NAME = 200


def _beginnings(*words: str) -> str:
    """A pattern for every beginning of these words, the empty one excepted."""
    nested = []
    for word in words:
        pattern = ""
        for char in reversed(word):
            pattern = f"(?:{re.escape(char)}{pattern})?"
        nested.append(pattern[3:-2])
    return "(?:" + "|".join(nested) + ")"


_MAY_BE_LABEL = re.compile(
    rf"\s*(?<![\w\"'`])\**(?:{_beginnings('Action', 'Observation', 'Final Answer')})?\**[ \t]*\Z"
)
_MAY_BE_LINE_LABEL = re.compile(
    rf"[ \t]*\**(?:{_beginnings('Action', 'Observation', 'Final Answer', 'Thought')})?\**[ \t]*\Z"
)
_MAY_BE_INPUT = re.compile(rf"\s*\**(?:{_beginnings('Action Input')})?\**\s*\Z")


class ReActParser:
    """Fed with pieces of a reply, gives its deltas; `finish` gives what only the end can tell.

    Attributes:
        is_over: nothing more is wanted of this reply: an observation was begun, or an answer after an action.
        calls: how many actions there were.
    """

    def __init__(self, tools: Container[str]) -> None:
        self.is_over = False
        self.calls = 0
        self._tools = tools
        self._pending = ""
        self._state = "start"  # then: thinking, thought, input, answer
        self._at_line_start = True
        self._fence = ""  # the ticks that opened the fence the input is in
        self._id = self._name = ""
        self._written: list[str] = []  # of the input
        self._skipped = ""  # characters after a label that belong to neither it nor what follows
        self._gap = ""  # line ends that belong to the input only if more follows

    def feed(self, text: str) -> Iterator[Delta]:
        """What this piece of the reply makes certain."""
        self._pending += text
        yield from self._advance(is_end=False)

    def finish(self) -> Iterator[Delta]:
        """What is left, the reply being at its end."""
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
                case "thinking":
                    yield from self._think(is_end)
                case "thought":
                    yield from self._thought(is_end)
                case "input":
                    yield from self._input(is_end)
                case _:
                    yield from self._answer(is_end)

    def _rest(self) -> str:
        """What is to be read, without what is skipped after a label."""
        if self._skipped and (rest := self._pending.lstrip(self._skipped)) != self._pending:
            self._pending = rest
        if self._pending:
            self._skipped = ""
        return self._pending

    def _start(self, is_end: bool) -> Iterator[Delta]:
        self._pending = self._pending.lstrip()
        if self._pending.startswith(_OPENING):
            self._pending, self._state = self._pending[len(_OPENING) :], "thinking"
        elif found := _THOUGHT.match(self._pending):
            self._pending, self._state, self._skipped = self._pending[found.end() :], "thought", " \t*"
            yield TextDelta("Thought: ")
        elif is_end or not (_OPENING.startswith(self._pending) or _MAY_BE_LINE_LABEL.match(self._pending)):
            self._state = "thought"
            if not _LINE_LABEL.match(self._pending):
                yield TextDelta("Thought: ")

    def _think(self, is_end: bool) -> Iterator[Delta]:
        thought, closing, rest = self._pending.partition(_CLOSING)
        if not closing and not is_end:
            cut = max(0, len(thought) - len(_CLOSING) + 1)
            thought, rest = thought[:cut], thought[cut:]
        self._pending, self._state = rest, "start" if closing else "thinking"
        if thought:
            yield ReasoningDelta(thought)

    def _thought(self, is_end: bool) -> Iterator[Delta]:
        """Text up to the next label that counts."""
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
        held = None if is_end else _MAY_BE_LABEL.search(self._pending)
        cut = held.start() if held else len(self._pending)
        yield from self._say(self._pending[:cut])
        self._pending = self._pending[cut:]

    def _starts_line(self, position: int) -> bool:
        line = self._pending[:position].rpartition("\n")
        return not line[2].strip() and bool(line[1] or self._at_line_start)

    def _conclude(self, end: int) -> Iterator[Delta]:
        if self.calls:
            self.is_over = True  # an answer without having seen the result
            return
        yield from self._say(self._pending[:end])
        self._pending, self._state, self._at_line_start = self._pending[end:], "answer", False

    def _action(self, found: re.Match[str], starts_line: bool, is_end: bool) -> Generator[Delta, None, bool]:
        """Begin a call, if this is one; True if it is, or if that is not to be told yet."""
        rest = self._pending[found.end() :]
        header = _INPUT.match(rest)
        name = _bare(header[1] if header else rest)
        if not header and not is_end and _may_be_header(rest):
            before = self._pending[: found.start()].rstrip()
            yield from self._say(before)
            self._pending = self._pending[len(before) :]
            return True
        if name not in self._tools and not (header and starts_line and name):
            return False
        yield from self._say(self._pending[: found.start()].rstrip())
        self._pending, self._state = rest[header.end() :] if header else "", "input"
        self._id, self._name = new_call_id(), name
        self._written, self._gap, self._fence = [], "", ""
        self._skipped = " \t*" if "*" in found[0] else " \t"
        self._at_line_start = True
        yield CallBegun(self.calls, self._id, name)
        return True

    def _input(self, is_end: bool) -> Iterator[Delta]:
        """The input line by line, up to a label that is not in a fence."""
        line, newline, rest = self._pending.partition("\n")
        if self._at_line_start and (closed := _CLOSED_BY_LABEL.match(line)) and self._fence:
            line, newline, rest = closed[1], "\n", self._pending[closed.end() :]
        elif self._at_line_start and not self._fence and _LINE_LABEL.match(line):
            yield self._end_call()
            self._state, self._at_line_start = "thought", True
            return
        elif not newline and not is_end and self._may_end(line):
            return
        if self._at_line_start and newline:
            self._mark_fence(line)
        self._pending, self._at_line_start = rest, bool(newline)
        yield from self._write(line, newline)

    def _may_end(self, line: str) -> bool:
        """Whether more of this line may show that it is not part of the input, or opens or closes a fence."""
        return self._at_line_start and (line.lstrip()[:1] == "`" or bool(_MAY_BE_LINE_LABEL.match(line)))

    def _mark_fence(self, line: str) -> None:
        if found := _FENCE.match(line):
            if not self._fence:
                self._fence = found[1]
            elif len(found[1]) >= len(self._fence) and not found[2].strip():
                self._fence = ""

    def _write(self, line: str, newline: str) -> Iterator[Delta]:
        if line.strip():
            text, self._gap = self._gap + line, newline
            self._written.append(text)
            yield ArgumentsDelta(self.calls, text)
        elif self._written:
            self._gap += line + newline

    def _end_call(self) -> Delta:
        arguments = "".join(self._written)
        if found := _JSON_THEN_LABEL.fullmatch(arguments):
            arguments = found[1]
        call = CallComplete(self.calls, self._id, self._name, arguments)
        self.calls += 1
        return call

    def _answer(self, is_end: bool) -> Iterator[Delta]:
        """The final answer, up to an observation."""
        line, newline, rest = self._pending.partition("\n")
        if self._at_line_start and (found := _LINE_LABEL.match(line)) and found[1] == "Observation":
            self.is_over = True
        elif newline or is_end or not (self._at_line_start and _MAY_BE_LINE_LABEL.match(line)):
            self._pending, self._at_line_start = rest, bool(newline)
            yield TextDelta(line + newline)

    def _say(self, text: str) -> Iterator[Delta]:
        if text:
            self._at_line_start = text.endswith("\n")
            if not self.calls:
                yield TextDelta(text)


def _may_be_header(rest: str) -> bool:
    """Whether what follows `Action:` may still become a name and `Action Input:`."""
    name, newline, after = rest.partition("\n")
    return len(name) <= _MAX_NAME and (not newline or bool(_MAY_BE_INPUT.match(after)))


def _bare(name: str) -> str:
    """A tool's name without the marks around it."""
    return _AROUND_NAME.sub("", name.strip().partition("\n")[0])
