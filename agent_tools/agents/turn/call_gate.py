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
    MAX_WORDS,
    LABEL,
    PYTHON_LIST,
    WORD,
    declared_name,
    interpreter_names,
    token_name,
)
from agent_tools.models.dialect.framing import (
    OPENING,
    TOKEN,
    behind_tokens,
    is_closing,
    may_become_token,
    name_of,
)

MAX_UNDECIDED = 1_000  # characters that are held back while they may still become a call

_NEXT = re.compile(rf"(?P<fence>(?<![^\n])[ \t]{{0,9}}`{{1,3}})|{OPENING.pattern}")
_FENCE = re.compile(r"[ \t]{0,9}```([^\n`]{0,40})(\n?)")
_OF_CALLS = ("tool_call", "tool_code")
_OF_NAMES = re.compile(r"name|id$|type|^tool$", re.IGNORECASE)
_LABELS = ("tool calls", "function calls", "calls", "calling tool")
_LANGUAGES = ("", "json", *_OF_CALLS)
_SEPARATORS = re.compile(r"[\s;,]+")
_KEY = re.compile(r'[{,]\s*"([^"\\]*)"\s*:\s*')
_SCALAR = re.compile(r'"((?:[^"\\]|\\.)*)"\s*|[\w.+-]+\s*(?=,)', re.DOTALL)
_BEFORE_NAME = ("id", "tool_call_id", "role", "content", "thought", "reasoning")
_NAMING = ("name", "tool_name", "tool", "action", "recipient_name", "function_name", "type", "function")
_HOLDING = ("arguments", "parameters", "input", "function", "tool_call", "function_call", "tool_calls", "args")
_TYPES = ("function", "function_call", "tool_call", "tool_use")

_GateState = Literal["start", "holding", "open"]


class Gate:
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
    while place < len(text):
        if token := TOKEN.match(text, place):
            if token_name(token[0], declared):
                return True
            if words and token[0].startswith("</") and not _OF_NAMES.search(name_of(token[0])):
                return False  # words between tags
            place, is_framed, words = token.end(), True, words * (not is_closing(token[0]))
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
            opens = _word_opens(text, word, declared, is_framed=is_framed)
            if opens is not None or word.end() == len(text):
                return opens
            place, words = word.end(), words + 1
        else:
            return False
    return None


def _may_become_label(text: str) -> bool:
    begun = text[:60].strip("*[ \n:").lower().replace("_", " ")
    return bool(begun) and len(text) < 60 and any(each.startswith(begun) for each in _LABELS)


def _behind_fence(text: str, place: int, *, is_framed: bool) -> int | None:
    """Return the place behind the line of a fence that may hold a call; 0 if it may not, None while undecided."""
    fence = _FENCE.match(text, place)
    if fence is None or not fence[2]:
        is_begun = fence and fence.end() == len(text) and any(each.startswith(fence[1].strip()) for each in _LANGUAGES)
        return None if is_begun or "```".startswith(text[place:]) else 0
    language = fence[1].strip()
    is_json = text[fence.end() :].lstrip()[:1] in ("", "{", "[")
    return fence.end() if language in _OF_CALLS or (language in _LANGUAGES and (is_framed or is_json)) else 0


def _word_opens(text: str, word: re.Match[str], declared: Mapping[str, object], *, is_framed: bool) -> bool | None:
    """Return whether a word is the name of a call; None if it may be a word of the frame before the name."""
    is_name = declared_name(word[0].rstrip("."), declared) in declared
    if is_name and word.end() < len(text):
        return True if is_framed else _has_arguments(text, word.end(), word[0])
    if not is_framed and not word[0][0].islower() and not any(name.startswith(word[0]) for name in declared):
        return False
    if word.end() == len(text) or is_name:
        return None
    return None if _goes_on(text, word.end(), is_framed=is_framed) else False


def _has_arguments(text: str, place: int, word: str) -> bool | None:
    """Return whether arguments follow a name that has no frame, or only a prefix such as `to=`."""
    rest = text[place:].lstrip()
    if not rest:
        return None
    if rest[0] in "({":
        return True
    following = WORD.match(rest)
    if following is None or not re.search(r"[=:]", word):
        return rest[0] in "<\uff5c["
    return None if following.end() == len(rest) else rest[following.end() :].lstrip()[:1] in ("", "{", "<")


def _goes_on(text: str, place: int, *, is_framed: bool) -> bool:
    """Return whether a word may belong to a frame: a bracket follows it, or a word with `=` or `:`."""
    behind = place + len(text[place:]) - len(text[place:].lstrip(" \t"))
    if behind == len(text) or (behind == place and text[place] in "{[<"):
        return True
    following = WORD.match(text, behind)
    if following is None:
        return is_framed and text[behind] in "{[<\n"
    return following.end() == len(text) or re.search(r"[=:]", following[0]) is not None


def _names_one(text: str, place: int, declared: Mapping[str, object]) -> bool | None:
    inside = text[place:].casefold()
    return True if any(name.casefold() in inside for name in (*declared, *interpreter_names(declared))) else None


def _json_opens_call(text: str, declared: Mapping[str, object]) -> bool | None:
    """Look at an object's first key and value that say what it is."""
    if text[0] == "[":
        text = text[1:].lstrip()
        if not text or text[0] != "{":
            return False if text else None
    if text.startswith("{{"):
        text = text[1:]
    begun = text[1:].lstrip()
    if begun and begun[0] not in "\"'":
        return _names_one(begun, 0, declared) if re.match(r"\w+ ?(?:=>|\Z)", begun) else False
    text = text.replace("'", '"') if begun[:1] == "'" else text
    place = 0
    for _ in _BEFORE_NAME:
        found = _KEY.match(text, place)
        if found is None:
            return None
        if found[1] not in _BEFORE_NAME:
            return _value_opens_call(found[1], text[found.end() :], declared)
        scalar = _SCALAR.match(text, found.end())
        if scalar is None or scalar.end() == len(text):
            return None
        place = scalar.end()
    return False


def _value_opens_call(key: str, value: str, declared: Mapping[str, object]) -> bool | None:
    if key in declared or key in _HOLDING:
        if not value:
            return None
        if value[0] in "{[n" or key not in _NAMING:
            return value[0] in ('{"n' if key in _HOLDING[:3] else "{[")
    if key not in _NAMING:
        return False
    scalar = _SCALAR.match(value)
    if scalar is None or scalar[1] is None:
        return None if not value or value[0] == '"' else False
    if key == "type":
        return scalar[1] in _TYPES
    return declared_name(scalar[1], declared) in declared
