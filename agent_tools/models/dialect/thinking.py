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

_SECTION_END = re.compile(r"<\|(?:end|eom|end_message)\|>")
HEADINGS = {
    f"{start}{mark}{name}<|message|>".lstrip(): name in ("analysis", "self")
    for start in ("", "<|start|>assistant", "<|start|> assistant")
    for mark in ("<|channel|>", "<|channel|> ", " to=")
    for name in (("self", "user") if "=" in mark else ("analysis", "final", "commentary"))
}
"""Headings of sections, of several tokens, and whether the section is reasoning; an answer otherwise."""
_WORD_SECTION = "<|channel>thought"
_ROLE = re.compile(r"<\|[^<>|]{1,30}\|>(?:(<\|[^<>|]{1,30}\|>)|(?:<(?:\|[^<>|]{0,30}\|?)?)?\Z)")
"""A token, and the one right behind it as far as it has come: the first may be of a role."""

_EMPTY = re.compile(r"<([^<>/\n]{0,99}(?:tool|call)[^<>\n]{0,99})>\s*(?:(</\1>)|(?:<(?:/[^<>\n]*)?)?\Z)")
"""A call without anything in it, as far as it has come."""
_THOUGHT = re.compile(r"think|thought|reasoning|inner_", re.IGNORECASE)
_ANSWER = re.compile(r"answer|response|final|solution|(?<=_)text$", re.IGNORECASE)
_BARE_SECTION = "analysis"
_BARE_END = re.compile(r"assistant(?:final|(?=commentary))")
_WORD_END = re.compile(r"<channel\|>")
"""What is left of sections where a server drops the tokens: `analysisI think.assistantfinalIt is 42.`"""
_OF_A_CALL = re.compile(r"tool|.call|function|action|plugin|invoke|param|(?<![a-z])arg", re.IGNORECASE)
_PLAIN_ENDS = re.compile(r"</(?:\w+_)?s>|<\|call\|>")
_OPENED = re.compile(rf"<s>|<[^/<>\n]{{0,20}}(?:{_OF_A_CALL.pattern})", re.IGNORECASE)
"""A tag that an answer speaks of: its closing one at the end belongs to it."""
_END = re.compile(r"(?:^|_)(?:eo[st]|end|stop)(?:$|_)|^unused\d", re.IGNORECASE)


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
        return _PLAIN_ENDS.fullmatch(token) is not None
    is_of_template = token[1] in "|\uff5c" or token[-2] in "|\uff5c" or token[:1] not in "<[" or "~" in token
    return is_of_template or _END.search(name) is not None


_SUBSCRIPT = re.compile(r"\[[A-Z_][A-Z0-9_]*\]")
"""A token that may be an answer's own: `x[END]`, `see [EOS]`."""
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
        self._closing: re.Pattern[str] | None = None  # what ends this reasoning; None for any token that does
        self._in_bars = False  # the end of a section ends it, too
        self._wrapper = ""  # the name of the token around the answer
        self._has_opened = False  # the answer has a tag, so the closing one is no end mark
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
            yield from map(TextDelta, filter(None, [text]))
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
            yield TextDelta("".join(self._thought))

    def finish(self) -> Iterator[Said]:
        """Yield what is held back at the reply's end, unless it is only white space."""
        if self._state == "inside":
            self._thought += filter(None, [self._pending])
            yield from map(ReasoningDelta, filter(None, [self._pending]))
            return
        if _ROLE.fullmatch(self._pending):
            yield from self._say()
        if self._pending.strip():  # blank lines are no answer: many models write some before a call
            yield TextDelta(self._separator + "".join(self._marks) + self._pending)

    def _start(self) -> None:
        begun = self._pending.lstrip()
        if self._state == "between":
            self._pending = begun
        otherwise: _State = "inside" if self._mode == "opened" and self._state == "start" else "over"
        heading = next((heading for heading in HEADINGS if begun.startswith(heading)), "")
        token = token_at(begun, 0)
        is_bare = begun.startswith(_BARE_SECTION) and begun[len(_BARE_SECTION) :][:1].isupper()
        in_words = _BARE_SECTION if is_bare else _WORD_SECTION if begun.startswith(_WORD_SECTION) else ""
        if len(self._pending) - len(begun) > MAX_BLANK_CHARS:
            self._state = otherwise
        elif in_words or opens_thought(token) or HEADINGS.get(heading):
            self._closing = _BARE_END if is_bare else _WORD_END if in_words else None
            self._in_bars = bool(heading) or token.startswith("<|")
            self._state, self._pending = "inside", begun[len(in_words or heading or token) :].lstrip()
        elif heading:
            self._state, self._in_section = "over", True
            self._pending = begun[len(heading) :].lstrip()
        elif token and is_closing(token) and (ends_thought(token) or _OF_A_CALL.search(token)):
            self._state, self._pending = "between", begun[len(token) :]  # of nothing that was opened
        elif wrapper := self._wrapper_of(token):
            self._state, self._wrapper, self._pending = "over", wrapper, begun[len(token) :].lstrip()
        elif (role := _ROLE.match(begun)) and role[1] and (opens_thought(role[1]) or self._wrapper_of(role[1])):
            self._pending = begun[role.start(1) :]
        elif (empty := _EMPTY.match(begun)) and (empty[2] or len(begun) < MAX_BLANK_CHARS):
            self._state, self._pending = ("between", begun[empty.end() :]) if empty[2] else (self._state, self._pending)
        elif begun and not self._may_open(begun):
            self._state, self._in_section = otherwise, False

    def _wrapper_of(self, token: str) -> str:
        """Return the word by which a token says that it wraps an answer; '' for any other token."""
        name = name_of(token) if token[:1] == "<" else token.strip("[]")
        is_marked = "|" in token or token[:1] == "[" or self._state == "between"
        found = _ANSWER.findall(name) if is_marked and not is_closing(token) else ()
        return found[-1] if found else ""

    def _may_open(self, begun: str) -> bool:
        """Return whether a beginning may still become the opening of reasoning, or of an answer."""
        is_literal = any(each.startswith(begun) for each in (*HEADINGS, _WORD_SECTION, _BARE_SECTION))
        return is_literal or bool(_ROLE.fullmatch(begun) or (not token_at(begun, 0) and may_become_token(begun, 0)))

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
        if self._closing:
            found = self._closing.search(text)
        else:
            found = next((token for token in TOKEN.finditer(text) if self._ends_thought(token[0])), None)
        return found.span() if found else (0, 0)

    def _ends_thought(self, token: str) -> bool:
        return ends_thought(token) or (self._in_bars and _SECTION_END.fullmatch(token) is not None)

    def _say(self) -> Iterator[Said]:
        if (self._wrapper or self._in_section) and (self._separator or not self._has_said) and not self._marks:
            self._pending = self._pending.lstrip()
        found = _SECTION_END.search(self._pending) if self._in_section else None
        text, end, after = self._pending, "", ""
        if found:
            text, end, after = text[: found.start()], found[0], text[found.end() :]
        self._has_opened = self._has_opened or _OPENED.search(text) is not None
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
            before = text[: end - len(token)][-1:] or (self._marks or [self._before])[-1][-1:]
            is_said = _SUBSCRIPT.fullmatch(token) and (before.isalnum() or before in tuple(" _)]"))
            if not token or is_said or not (self._is_mark(token) or (before == "\n" and _THOUGHT.search(token))):
                return (0 if self._marks and not end else start), partial
            start = end = end - len(token)

    def _is_mark(self, token: str) -> bool:
        is_of_call = is_closing(token) and _OF_A_CALL.search(token) is not None
        if self._has_opened and (is_of_call or token.startswith("</")):
            return False
        return is_of_call or is_end_mark(token) or bool(self._wrapper and is_closing(token) and self._wrapper in token)


def _beginning(text: str, closing: re.Pattern[str] | None = None) -> int:
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
    last = len("assistantcommentary") if closing is _BARE_END else 0
    for length in range(min(last, len(text)), 0, -1):
        if any(word.startswith(text[-length:]) for word in ("assistantfinal", "assistantcommentary")):
            return min(start, len(text) - length)
    return start


def _before_blanks(text: str, end: int) -> int:
    """Return the place of the white space before a place, which is left out beside tags."""
    start = max(0, end - MAX_BLANK_CHARS)
    seen = text[start:end].rstrip()
    return start + len(seen) if seen or not start else end
