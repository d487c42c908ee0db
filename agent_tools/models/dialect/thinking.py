"""Separates reasoning between tags from the answer while a reply arrives. Pure.

Theory of operation. A model's reasoning comes at the beginning of its reply, between a pair of tags of its training.
A server with a parser for it sends it in a field of its own; any other one sends it as text. The splitter is

    start    the first characters may still become an opening tag: nothing is let through yet
    inside   an opening tag has come: text is reasoning, but for a tail that may be the beginning of the closing tag
    between  the closing tag has come: white space is left out, as next to any tag, and more reasoning may follow
    over     everything else is the answer, but for end marks at its end

A reply of gpt-oss has sections, each with a heading and an end mark: reasoning, remarks before calls, the answer. After
the end of a remark the splitter is `between` again.

Every character is looked at a bounded number of times, however the reply is cut. Tags in the middle of an answer are
text: a model that writes about tags must not lose what it says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from agent_tools.models.base import ReasoningDelta, TextDelta
from agent_tools.models.dialect.framing import (
    MAX_TOKEN,
    OPENING,
    TOKEN,
    is_closing,
    may_become_token,
    name_of,
    token_at,
    token_before,
)
from agent_tools.models.dialect.profile import Thinking

_SECTION_END = "<|end|>"
_STARTS = ("", "<|start|>assistant")
SECTIONS = (
    *((f"{start}<|channel|>analysis<|message|>", _SECTION_END) for start in _STARTS),
    ("<|channel>thought", "<channel|>"),
)
"""Headings of sections that are reasoning, of several tokens, and their ends."""

HEADINGS = tuple(f"{start}<|channel|>{name}<|message|>" for start in _STARTS for name in ("final", "commentary"))
"""Headings of sections that are answers."""

_THOUGHT = re.compile(r"think|thought|reason|inner", re.IGNORECASE)
_ANSWER = re.compile(r"answer|response|final|solution", re.IGNORECASE)
_BARE_SECTION = "analysis"
_BARE_END = re.compile(r"assistant(?:final|(?=commentary))")
"""What is left of sections where a server drops the tokens: `analysisI think.assistantfinalIt is 42.`"""
_OF_A_CALL = re.compile(r"tool|.call|function|action|plugin", re.IGNORECASE)
_PLAIN_ENDS = ("</s>", "<|call|>")
_END = re.compile(r"(?:^|_)(?:eo[st]|end|stop)(?:$|_)", re.IGNORECASE)


def opens_thought(token: str) -> bool:
    """Return whether reasoning begins with a token, whatever template it is of."""
    return bool(token) and not is_closing(token) and _THOUGHT.search(name_of(token)) is not None


def ends_thought(token: str) -> bool:
    """Return whether a token ends reasoning."""
    return is_closing(token) and _THOUGHT.search(token) is not None


def is_end_mark(token: str) -> bool:
    """Return whether a token may stand at a reply's end without a meaning: one of a template, but of no call."""
    name = name_of(token)
    if token.startswith("</") or _OF_A_CALL.search(name):
        return token in _PLAIN_ENDS
    is_of_template = token[1] in "|\uff5c" or token[-2] in "|\uff5c" or token[:1] not in "<[" or "~" in token
    return is_of_template or _END.search(name) is not None


_SPOKEN_OF = re.compile(r"""[ `'"(]\Z""")
MAX_BLANK_CHARS = 200  # characters of white space that are held back while a tag may still come
_State = Literal["start", "inside", "between", "over"]
Said = TextDelta | ReasoningDelta


class ThinkingSplitter:
    """Splits the pieces of a reply's text into reasoning and answer.

    With `opened`, a reply begins inside the first pair of tags, whose opening stands in the prompt; one that has the
    opening all the same is read alike. With `text`, all is answer.

    Attributes:
        learned: the mode that the server's further replies need; '' if this one does not tell.
    """

    def __init__(self, mode: Thinking = "tagged") -> None:
        self._mode = mode
        self.learned: Thinking | Literal[""] = ""
        self._state: _State = "start"
        self._closing = ""  # the text that ends this reasoning; '' for any token that does
        self._wrapper = ""  # the name of the token around the answer
        self._has_strike = False  # the answer has `<s>`, so `</s>` is no end mark
        self._pending = ""
        self._marks: list[str] = []  # whole end marks, with white space between them, that may be at the end
        self._thought: list[str] = []
        self._has_closed = False
        self._before = ""  # the last character of the answer so far
        self._has_said = False
        self._in_section = False
        self._separator = ""

    @property
    def is_thinking(self) -> bool:
        """Return whether reasoning continues: a tag was opened, and no answer has begun."""
        return self._state in ("inside", "between")

    def feed(self, text: str) -> Iterator[Said]:
        """Take a piece, and yield the parts that are certain."""
        if self._mode == "text":
            yield from _answer(text)
            return
        self._pending += text
        seen: tuple[_State, int] | None = None
        while self._pending and seen != (self._state, len(self._pending)):
            seen = (self._state, len(self._pending))
            if self._state == "inside":
                yield from self._think()
            elif self._state == "over":
                yield from self._say()
            else:
                self._start()

    def unended(self) -> Iterator[Said]:
        """Yield once more, as the answer, what was read as reasoning that an opening in the prompt began."""
        if self._mode == "opened" and self._state == "inside" and not self._has_closed and self._thought:
            self.learned = "tagged"
            yield from _answer("".join(self._thought))

    def finish(self) -> Iterator[Said]:
        """Yield what is held back at the reply's end, unless it is only white space."""
        if self._state == "inside" and self._pending:
            self._thought.append(self._pending)
            yield ReasoningDelta(self._rest())
        elif self._pending.strip():  # blank lines are no answer: many models write some before a call
            yield from _answer(self._separator + "".join(self._marks) + self._rest())

    def _start(self) -> None:
        begun = self._pending.lstrip()
        if self._state == "between":
            self._pending = begun
        otherwise: _State = "inside" if self._mode == "opened" and self._state == "start" else "over"
        pair = next((pair for pair in SECTIONS if begun.startswith(pair[0])), None)
        heading = next((heading for heading in HEADINGS if begun.startswith(heading)), "")
        token = token_at(begun, 0)
        is_bare = begun.startswith(_BARE_SECTION) and begun[len(_BARE_SECTION) :][:1].isupper()
        if len(self._pending) - len(begun) > MAX_BLANK_CHARS:
            self._state = otherwise
        elif pair or is_bare or opens_thought(token):
            opening, self._closing = pair or (_BARE_SECTION if is_bare else token, _BARE_SECTION if is_bare else "")
            self._state, self._pending = "inside", begun[len(opening) :].lstrip()
        elif heading:
            self._state, self._in_section = "over", True
            self._pending = begun[len(heading) :]
        elif token and not is_closing(token) and self._wraps_answer(token):
            self._state, self._wrapper, self._pending = "over", _ANSWER.findall(token)[-1], begun[len(token) :].lstrip()
        elif begun and not self._may_open(begun):
            self._state, self._in_section = otherwise, False

    def _wraps_answer(self, token: str) -> bool:
        return _ANSWER.search(name_of(token)) is not None and ("|" in token or self._state == "between")

    def _may_open(self, begun: str) -> bool:
        """Return whether a beginning may still become the opening of reasoning, or of an answer."""
        openings = (*HEADINGS, *(pair[0] for pair in SECTIONS), _BARE_SECTION)
        return any(each.startswith(begun) for each in openings) or (
            not token_at(begun, 0) and may_become_token(begun, 0)
        )

    def _think(self) -> Iterator[Said]:
        before = self._pending
        start, end = self._end_of_thought(before)
        if end:
            self._has_closed = True
            self._state, self._pending, before = "between", before[end:], before[:start].rstrip()
        else:
            start = _before_blanks(before, _beginning(before, self._closing))
            before, self._pending = before[:start], before[start:]
        if not self._thought:
            before = before.lstrip()
        if before:
            self._thought.append(before)
            yield ReasoningDelta(before)

    def _end_of_thought(self, text: str) -> tuple[int, int]:
        """Return where the end of this reasoning begins and ends; (0, 0) if it has not come."""
        if self._closing == _BARE_SECTION:
            found = _BARE_END.search(text)
            return found.span() if found else (0, 0)
        if self._closing:
            start = text.find(self._closing)
            return (start, start + len(self._closing)) if start >= 0 else (0, 0)
        closing = next((token for token in TOKEN.finditer(text) if ends_thought(token[0])), None)
        return closing.span() if closing else (0, 0)

    def _say(self) -> Iterator[Said]:
        text, end, after = self._pending.partition(_SECTION_END) if self._in_section else (self._pending, "", "")
        self._has_strike = self._has_strike or "<s>" in text
        start, partial = self._marks_at(text)
        if end and partial < len(text):  # no beginning of a mark after all
            start = partial = len(text)
        if start:
            said = "".join(self._marks) + text[:start]
            self._learn(said)
            yield TextDelta(self._separator + said)
            self._separator, self._marks, self._has_said = "", [], True
        self._marks += filter(None, [text[start:partial]])
        self._pending = text[partial:]
        if end:
            self._state, self._pending, self._marks = "between", after, []
            self._separator = "\n\n" if self._has_said else ""

    def _learn(self, text: str) -> None:
        """Note that an answer has the end of reasoning which nothing has opened, and which it does not speak of."""
        text, self._before = self._before + text, text[-1]
        if not self._has_closed and _THOUGHT.search(text):
            tags = (found for found in TOKEN.finditer(text) if _THOUGHT.search(found[0]))
            if (found := next(tags, None)) and is_closing(found[0]) and not _SPOKEN_OF.search(text, 0, found.start()):
                self.learned = "opened"
            self._has_closed = self._has_closed or found is not None

    def _marks_at(self, text: str) -> tuple[int, int]:
        """Return the places from which a text consists of end marks, and of the beginning of a token."""
        partial = _beginning(text)
        start = end = partial
        while True:
            while end and text[end - 1].isspace():
                end -= 1
            token = token_before(text, end)
            if not token or not self._is_mark(token):
                return (0 if self._marks and not end else start), partial
            start = end = end - len(token)

    def _is_mark(self, token: str) -> bool:
        if self._has_strike and token in _PLAIN_ENDS:
            return False
        return is_end_mark(token) or bool(self._wrapper and is_closing(token) and self._wrapper in token)

    def _rest(self) -> str:
        rest, self._pending = self._pending, ""
        return rest


def _answer(text: str) -> Iterator[Said]:
    if text:
        yield TextDelta(text)


def _beginning(text: str, closing: str = "") -> int:
    """Return the place from which a text's end may be the beginning of a token, or of the end of reasoning."""
    start = behind = max(0, len(text) - MAX_TOKEN)
    for found in OPENING.finditer(text, behind):
        start = found.start()
        if start < behind:
            continue  # within a token
        behind = start + len(token_at(text, start))
        if behind == start and may_become_token(text, start):
            break
    else:
        start = len(text)
    last = len("assistantcommentary") if closing == _BARE_SECTION else 0
    for length in range(min(last, len(text)), 0, -1):
        if any(word.startswith(text[-length:]) for word in ("assistantfinal", "assistantcommentary")):
            return min(start, len(text) - length)
    return start


def _before_blanks(text: str, end: int) -> int:
    """Return the place of the white space before a place, which is left out beside tags."""
    start = max(0, end - MAX_BLANK_CHARS)
    seen = text[start:end].rstrip()
    return start + len(seen) if seen or not start else end
