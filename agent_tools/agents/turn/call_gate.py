"""Passes an answer on while it arrives, but holds back text that may become calls. Pure.

Theory of operation. `call_reader.py` decides about a complete text; the gate decides which text has to wait for that:

    start    the first characters may still become a call: nothing is let through yet
    holding  a call has begun: the rest is kept for the reader
    open     the answer is text: it is let through, except for a tail that may be the beginning of a call

Behind other text, only a token can begin a call. A token in a fence or behind a backtick is an example. JSON alone, a
fence with JSON, and a Python call are calls only at the beginning of an answer.

Held text that is no call is shown later: a delay. A call that is let through is shown as text and never made: a loss.
So text waits while in doubt, up to `MAX_UNDECIDED` characters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from agent_tools.agents.turn.call_reader import (
    LABEL,
    MAX_WORDS,
    PYTHON_LIST,
    WORD,
    interpreter_names,
    known_name,
    token_name,
)
from agent_tools.models.dialect.framing import OPENING, TOKEN, behind_tokens, is_closing, may_become_token, name_of

MAX_UNDECIDED = 1_000  # characters that are held back while they may still become a call

_NEXT = re.compile(rf"(?P<fence>(?<![^\n])[ \t]{{0,9}}`{{1,3}})|{OPENING.pattern}")
_FENCE = re.compile(r"[ \t]{0,9}```([^\n`]{0,40})(\n?)")
_OF_CALLS = ("tool_call", "tool_code")
_OF_NAMES = re.compile(r"name|id$|type|^tool$", re.IGNORECASE)
_LABELS = ("tool calls", "function calls", "calls", "calling tool")
_LANGUAGES = ("", "json", *_OF_CALLS)
_SEPARATORS = re.compile(r"[\s;,]+")
_PROSE = re.compile(r"[ \t]+(?:([{\[<])|[^\w\s]|\w[\w./-]*(?![\w./:=-]|\Z))")
"""Behind a word that belongs to no frame; a bracket may follow one that does."""
_KEY = re.compile(r'[{,]\s*"([^"\\]*)"\s*:\s*')
_BEFORE_KEY = re.compile(r'[{,]\s*(?:"(?:[^"\\]|\\.)*"?\s*)?')
_SCALAR = re.compile(r'"((?:[^"\\]|\\.)*)"\s*|[\w.+-]+\s*(?=,)', re.DOTALL)
_BEFORE_NAME = ("id", "tool_call_id", "role", "content", "thought", "reasoning")
_NAMING = ("name", "tool_name", "tool", "action", "recipient_name", "function_name", "type", "function")
_HOLDING = ("arguments", "parameters", "input", "function", "tool_call", "function_call", "tool_calls", "args")
_TYPES = ("function", "function_call", "tool_call", "tool_use")

_GateState = Literal["start", "holding", "open"]


class CallGate:
    """Holds back calls of declared functions: `declared` maps their names to whether they run code.

    With `in_prose`, other text stands before this text, or it is reasoning: only a token can begin a call.
    """

    def __init__(self, declared: Mapping[str, object], *, in_prose: bool = False) -> None:
        self._declared = declared
        self._pending: list[str] = []
        self._shown = ""  # the last character: fences stand at the beginning of a line
        self._in_fence = False
        self._waiting = 0  # characters that are held back
        self._state: _GateState = "open" if in_prose else "start"

    def feed(self, text: str) -> str:
        """Take a piece of the answer, and return the text that may be shown now."""
        is_within_word = text.isalnum() and self._pending[-1:] != [] and self._pending[-1][-1:].isalnum()
        self._pending.append(text)
        self._waiting += len(text)
        if self._state == "holding" or (is_within_word and self._waiting <= MAX_UNDECIDED):
            return ""  # the rest of a word decides nothing
        known = len(self._shown)
        pending = "".join((self._shown, *self._pending))
        cut = 0
        if self._state == "open" or not self._may_begin(pending, 0, is_framed=False):
            self._state = "open" if self._state == "start" else self._state
            cut = self._cut(pending, known)
            self._shown = pending[cut - 1 : cut] or self._shown
        self._pending = [pending[max(cut, known) :]]
        self._waiting = len(self._pending[0])
        return pending[known:cut]

    def rest(self) -> str:
        """Return the text that is held back."""
        return "".join(self._pending)

    def _cut(self, text: str, place: int) -> int:
        """Return the place where a call begins, or may begin; else the text's length."""
        while found := _NEXT.search(text, place):
            start = found.start()
            if found["fence"]:
                fence = _FENCE.match(text, start)
                if len(text) - start < 60 and (fence[2] == "" if fence else "```".startswith(text[start:].strip())):
                    return start  # its line is not over
                is_of_call = fence is not None and fence[1].strip() in _OF_CALLS and not self._in_fence
                if is_of_call and self._may_begin(text, start, is_framed=True):
                    return start
                self._in_fence ^= fence is not None
                place = fence.end() if fence else found.end()
            elif self._in_fence or text[start - 1 : start] in ("`", '"', "'", "“"):
                place = start + 1
            elif self._may_begin(text, start, is_framed=True):
                return start
            else:
                place = max(start + 1, behind_tokens(text, start))
        return len(text)

    def _may_begin(self, text: str, place: int, *, is_framed: bool) -> bool:
        opens = opens_call(text[place : place + MAX_UNDECIDED + 1], self._declared, is_framed=is_framed)
        if opens:
            self._state = "holding"
        return opens or (opens is None and len(text) - place <= MAX_UNDECIDED)


def opens_call(text: str, declared: Mapping[str, object], *, is_framed: bool) -> bool | None:  # noqa: C901
    """Return whether a text that begins like this is held back as a call; None while undecided.

    `is_framed` says that a token is its beginning, and that other text stands before it.
    """
    place = words = 0
    is_named = False  # a word was a name
    while place < len(text):
        if token := TOKEN.match(text, place):
            if is_named or token_name(token[0], declared):
                return True
            if words and token[0].startswith("</") and not _OF_NAMES.search(name_of(token[0])):
                return False  # words between tags
            place, is_framed, words = token.end(), True, words * (not is_closing(token[0]))
        elif is_named and text[place] in "({[<\uff5c":
            return True
        elif skipped := _SEPARATORS.match(text, place) or PYTHON_LIST.match(text, place):
            place = skipped.end()
        elif may_become_token(text, place):
            return None
        elif (is_framed or not place) and (label := LABEL.match(text, place)):
            place, is_framed = label.end(), True
        elif (is_framed or not place) and _may_become_label(text[place:]):
            return None
        elif text[place] == "`":
            behind = _behind_fence(text, place, is_framed=is_framed)
            if not behind:
                return None if behind is None else False
            place = behind
        elif text[place] in "{[":
            return _names_one(text, place, declared) if is_framed else _json_opens_call(text[place:], declared)
        elif (word := WORD.match(text, place)) and words < MAX_WORDS:
            begins = word[0][0].islower() or any(name.startswith(word[0]) for name in declared)
            is_named = is_named or bool(known_name(word[0], declared))
            if is_named and is_framed and word.end() < len(text):
                return True
            prose = _PROSE.match(text, word.end())
            if not is_named and ((prose and not (is_framed and prose[1])) or not (is_framed or begins)):
                return False
            place, words = word.end(), words + 1
        else:
            return False
    return None


def _may_become_label(text: str) -> bool:
    begun = text[:60].strip("*[` \n:").lower().replace("_", " ")
    return len(text) < 60 and any(each.startswith(begun) for each in _LABELS)


def _behind_fence(text: str, place: int, *, is_framed: bool) -> int | None:
    """Return the place behind the line of a fence that may hold a call; 0 if it may not, None while undecided."""
    fence = _FENCE.match(text, place)
    if fence is None or not fence[2]:
        is_begun = fence and fence.end() == len(text) and any(each.startswith(fence[1].strip()) for each in _LANGUAGES)
        return None if is_begun or "```".startswith(text[place:]) else 0
    language = fence[1].strip()
    is_json = text[fence.end() :].lstrip()[:1] in ("", "{", "[")
    return fence.end() if language in _OF_CALLS or (language in _LANGUAGES and (is_framed or is_json)) else 0


def _names_one(text: str, place: int, declared: Mapping[str, object]) -> bool | None:
    inside = text[place:].casefold()
    return True if any(name.casefold() in inside for name in (*declared, *interpreter_names(declared))) else None


def _json_opens_call(text: str, declared: Mapping[str, object]) -> bool | None:
    """Look at an object's first keys, up to one that says what it is."""
    text = text.removeprefix("[").lstrip()
    if not text.startswith("{"):
        return False if text else None
    text = text[text.startswith("{{") :]
    begun = text[1:].lstrip()
    if begun and begun[0] not in "\"'":
        return _names_one(begun, 0, declared) if re.match(r"\w+ ?(?:=>|\Z)", begun) else False
    text = text.replace("'", '"') if begun[:1] == "'" else text
    place = 0
    while key_match := _KEY.match(text, place):
        key, value = key_match[1], text[key_match.end() : key_match.end() + 1]
        if key in declared or key in _HOLDING:
            if not value:
                return None
            if value != '"' or key not in _NAMING:
                return value in ('{"n' if key in _HOLDING[:3] else "{[")
        scalar = _SCALAR.match(text, key_match.end())
        if key in _NAMING and scalar:
            return scalar[1] in _TYPES if key == "type" else bool(known_name(scalar[1] or "", declared))
        if key in _NAMING or key not in _BEFORE_NAME:
            return None if key in _NAMING and value in ("", '"') else False
        if scalar is None or scalar.end() == len(text):
            return None
        place = scalar.end()
    return None if _BEFORE_KEY.fullmatch(text, place) else False
