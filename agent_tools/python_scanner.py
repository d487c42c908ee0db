r"""A scanner for Python code: finds strings, comments and magics, and text that no version of Python accepts.

The rules for strings and comments are the same in all versions of Python, so the scanner can judge code for an image
whose Python is newer than the host's. It reads hostile text in time linear in its length and without deep recursion;
CPython's own parser does not promise either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

CELL_MAGIC = re.compile(r"\s*%%\w")
"""The beginning of a cell that may hold any text, such as `%%bash`."""
Kind = Literal["string", "comment", "magic", "fence", "ticks", "stray", "unclosed", "open"]
_MAX_NESTING = 20  # levels of f-strings nested in fields of other f-strings
_MAX_FAILURES = 8  # f-strings of a text whose fields do not end; further ones are read as plain strings
_QUOTES = ("'", '"', "'''", '"""')
_QUOTE = r"(?:(?<!\w)(?P<prefix>[rRbBuUfFtT]{1,2}))?(?P<quote>'''|\"\"\"|'|\")"
_PART = re.compile(
    r"(?P<magic>^[ \t]*(?:%{1,2}[A-Za-z]|!(?!=))[^\n]*|=[ \t]*(?:!(?!=)|%[A-Za-z])[^\n]*)"
    r"|(?P<comment>\#[^\n]*)"
    rf"|(?P<string>{_QUOTE})"
    r"|(?P<fence>^[ \t]*`{3,}[^\n`]*$)"
    r"|(?P<ticks>(?<!`)`{3,}(?!`)[ \t\r]*$)"
    r"|(?P<stray>\\(?!\r?\n)(?=.))",
    re.MULTILINE,
)
_IN_FIELD = re.compile(rf"{_QUOTE}|[\[\](){{}}:]|\#[^\n]*")
_IN_STRING = {each: re.compile(rf"\\(?:\r\n|.)|{each}" + r"|\n" * (len(each) == 1), re.DOTALL) for each in _QUOTES}
_IN_FORMATTED = {
    each: re.compile(rf"\\N\{{|\\(?:\r\n|[^{{}}])|\{{\{{|\{{|{each}" + r"|\n" * (len(each) == 1)) for each in _QUOTES
}


class Part(NamedTuple):
    """A part of code that decides how the text is read.

    A `fence` is a line; `ticks` are a fence at a line's end, after code; a `stray` backslash is one outside of strings
    that does not continue a line; an `unclosed` string ends with its line; an `open` one, with the text.
    """

    kind: Kind
    start: int
    end: int


def is_sound(code: str) -> bool:
    """Return whether all strings are closed and no stray backslash is outside of them: other text cannot be Python."""
    if CELL_MAGIC.match(code):
        return True
    return all(part.kind not in ("stray", "unclosed", "open") for part in parts(code))


def parts(code: str, place: int = 0) -> Iterator[Part]:
    """Yield the parts of code from a position outside of strings on. An `open` string is the last part."""
    failures = 0
    while found := _PART.search(code, place):
        kind: Any = found.lastgroup
        place = end = found.end()
        if kind == "string":
            if failures < _MAX_FAILURES and _is_formatted(found):
                end = _end_of_formatted(code, place, found["quote"])
                failures += end < 0
            kind, place = ("string", end) if end > place else _plain_string(code, place, found["quote"])
        yield Part(kind, found.start(), place)


def _is_formatted(opening: re.Match[str]) -> bool:
    return not {"f", "t"}.isdisjoint((opening["prefix"] or "").lower())


def _plain_string(code: str, place: int, quote: str) -> tuple[Kind, int]:
    """Return the kind and the end of a string without fields."""
    end = _end_of_string(code, place, quote)
    if end >= 0:
        return "string", end
    if len(quote) == 3:
        return "open", len(code)
    newline = code.find("\n", place)
    return "unclosed", len(code) if newline < 0 else newline


def _end_of_string(code: str, place: int, quote: str) -> int:
    """Return the end of a string; -1 if it is not closed."""
    for found in _IN_STRING[quote].finditer(code, place):
        if found[0] == quote:
            return found.end()
        if found[0] == "\n":
            return -1
    return -1


def _end_of_formatted(code: str, place: int, quote: str, depth: int = 0) -> int:
    """Return the end of an f-string, whose fields may hold its own quotes since Python 3.12; -1 if it has no end."""
    while found := _IN_FORMATTED[quote].search(code, place):
        place = found.end()
        if found[0] == quote:
            return place
        if found[0] == "\n":
            return -1
        if found[0] == "{":
            place = _end_of_field(code, place, depth + 1)
            if place < 0:
                return -1
    return -1


def _end_of_field(code: str, place: int, depth: int) -> int:
    """Return the position after the brace that closes a field; -1 if there is no such brace."""
    brackets, is_format = 0, False
    while place >= 0 and brackets >= 0 and depth < _MAX_NESTING and (found := _IN_FIELD.search(code, place)):
        place, part = found.end(), found[0]
        if part == "}" and not brackets:
            return place
        if is_format:
            place = _end_of_field(code, place, depth + 1) if part == "{" else found.start() + 1
        elif _is_formatted(found):
            place = _end_of_formatted(code, place, found["quote"], depth)
        elif found["quote"]:
            place = _end_of_string(code, place, found["quote"])
        elif part == ":":
            is_format = not brackets
        elif part in "([{":
            brackets += 1
        elif part in ")]}":
            brackets -= 1
    return -1
