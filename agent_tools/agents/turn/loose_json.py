r"""Reads values as models write them: JSON, with small damage too, other notations, Python's arguments. Pure.

Strict JSON is read by Python's own parser. Otherwise keys may be bare or begin with `--`, and be set with `:`, `=` or
`=>`; strings may be Python's, or stand between tokens (`<|"|>`) or typographic quotes; braces may be doubled, commas
too many, comments between them, and closing braces missing before a token or the end. A string without its end is an
error: it was cut.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from agent_tools.json_reader import kept_backslashes, object_of
from agent_tools.models.dialect.framing import TOKEN

MAX_DEPTH = 60
_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=object_of)
_SPACE = re.compile(r"(?:[\s,]|/\*.*?\*/)*", re.DOTALL)
_KEY = re.compile(r"(?:--)?([^\W\d][\w.-]{0,199})\s*(=>|[:=]|(?<=\w) )\s*")
_SET = re.compile(r"\s*(?:=>|[:=])\s*")
_QUOTE = re.compile(r"'''|\"\"\"|'|\"|“|<\|\"\|>|<escape>")
_NEXT_QUOTE = re.compile(r"\s*('''|\"\"\"|'|\")")
_BEHIND_STRING = re.compile(r"\s*(?:[,:=}\])</]|\Z)")
_WORD = re.compile(r"[-+]?[\w.]+(?:[eE][-+]?\d+)?")
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_CLOSING = {"{": "}", "[": "]", "(": ")"}
_PYTHON_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U(000[0-9a-fA-F]{5})|(.))", re.DOTALL)
_PYTHON_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "\n": ""}


def json_of(value: Any) -> str:
    """Write JSON as text that can be sent on: half a surrogate pair stays an escape."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


class LooseReader:
    """Reads one value of a text; `place` is behind it afterwards, and `is_repaired` says whether it had damage.

    Raises:
        ValueError: there is no value, or it was cut.
    """

    def __init__(self, text: str, place: int) -> None:
        self.text, self.place = text, place
        self.is_repaired = False

    def value(self) -> Any:
        """Return the value at the place; arguments in parentheses are an object, the one without a name under ''."""
        if self.text[self.place : self.place + 1] != "(":
            try:
                value, self.place = _DECODER.raw_decode(self.text, self.place)
            except RecursionError:
                raise ValueError("nested too deeply") from None
            except ValueError:
                self.is_repaired = True
            else:
                return value
        return self._value(0, in_python=False)

    def _value(self, depth: int, *, in_python: bool) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        first = self.text[self.place : self.place + 1]
        if first in _CLOSING and first:
            if self.text.startswith("{{", self.place):
                return self._doubled(depth)
            return self._container(first, depth, in_python=in_python or first == "(")
        if quote := _QUOTE.match(self.text, self.place):
            strings = [self._string(quote[0], in_python=in_python)]
            while in_python and (quote := _NEXT_QUOTE.match(self.text, self.place)):  # Python joins them
                self.place = quote.start(1)
                strings.append(self._string(quote[1], in_python=True))
            return "".join(strings)
        word = _WORD.match(self.text, self.place)
        if word is None:
            raise ValueError("not a value")
        self.place = word.end()
        return _WORDS[word[0]] if word[0] in _WORDS else json.loads(word[0])

    def _doubled(self, depth: int) -> Any:
        self.place += 1
        value = self._value(depth + 1, in_python=False)
        self._pass(_SPACE)
        self.place += self.text.startswith("}", self.place)
        return value

    def _container(self, opening: str, depth: int, *, in_python: bool) -> Any:
        closing, found, listed = _CLOSING[opening], {}, []  # type: tuple[str, dict[str, Any], list[Any]]
        self.place += 1
        while True:
            self._pass(_SPACE)
            if self.text.startswith(closing, self.place):
                self.place += 1
                break
            if opening == "{" and found and self._is_over():
                break
            if opening == "[":
                listed.append(self._value(depth + 1, in_python=in_python))
                continue
            key = self._key(opening)
            if key in found:
                raise ValueError("a key that comes twice")
            found[key] = self._value(depth + 1, in_python=in_python)
        return listed if opening == "[" else found

    def _is_over(self) -> bool:
        return self.place == len(self.text) or (
            not _QUOTE.match(self.text, self.place) and TOKEN.match(self.text, self.place) is not None
        )

    def _key(self, opening: str) -> str:
        if bare := _KEY.match(self.text, self.place):
            self.place = bare.end()
            return bare[1]
        if opening == "(":
            return ""
        quote = _QUOTE.match(self.text, self.place)
        if quote is None:
            raise ValueError("not a key")
        key = self._string(quote[0], in_python=False)
        if not self._pass(_SET):
            raise ValueError("a key without a value")
        return key

    def _pass(self, pattern: re.Pattern[str]) -> bool:
        found = pattern.match(self.text, self.place)
        self.place = found.end() if found else self.place
        return found is not None

    def _string(self, quote: str, *, in_python: bool) -> str:
        start = self.place + len(quote)
        if quote[0] in "<“":
            quote = quote.replace("“", "”")
            end = self.text.find(quote, start)
            if end < 0:
                raise ValueError("a text without an end")
            self.place = end + len(quote)
            if not _BEHIND_STRING.match(self.text, self.place):
                raise ValueError("text next to another")
            return self.text[start:end]
        if quote == '"' and not in_python:
            try:
                value, self.place = scanstring(self.text, start, False)
                return str(value)
            except ValueError:
                pass
        end = _string_end(self.text, start, quote)
        self.place = end + len(quote)
        raw = self.text[start:end]
        if quote == '"' and not in_python:
            return str(json.loads(f'"{kept_backslashes(raw)}"', strict=False))
        return _PYTHON_ESCAPE.sub(_unescaped, raw)


def _string_end(text: str, place: int, quote: str) -> int:
    """Return the place of a literal's closing quote. A loop: a pattern would remember every repetition."""
    part = re.compile(rf"\\|{quote}")
    while found := part.search(text, place):
        if found[0] != "\\":
            return found.start()
        place = found.end() + 1
    raise ValueError("a text without an end")


def _unescaped(escape: re.Match[str]) -> str:
    digits = escape[1] or escape[2] or escape[3]
    return chr(int(digits, 16)) if digits else _PYTHON_ESCAPES.get(escape[4], escape[0])
