"""Reads the code in a call's arguments while the model writes them.

Arguments are a JSON object with the code under a key, or the code itself. The reader goes through these states:

    start      nothing but white space has come
    raw        the arguments are the code: every piece is passed on
    searching  tokens of the object are read, up to the quote that opens the code
    inside     the code's string: every piece is unescaped and passed on, but for half an escape at its end
    over       the code is complete, or only the end of the arguments can tell (a fence, a string, tags)

The work is linear in the length of the code, however the arguments are cut: `_read` notes how far an unfinished token
was searched already.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Literal

_STRING = re.compile(r'(?:[^"\\]|\\.)*', re.DOTALL)  # its content, as far as it has arrived
_BARE = re.compile(r'[^\s"{}\[\]:,]*')  # a number, or a word
_SPACE = re.compile(r"\s*")
WHOLE_CHARS = re.compile(
    r"(?:[^\"\\]|\\[^u]"
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a character outside the BMP, both halves
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}(?=[^\\]|\\[^u]|\\u(?![dD][c-fC-F])[0-9a-fA-F]{2})"  # a half without the other
    r"|\\u(?![dD][89abAB])[0-9a-fA-F]{4})*",
    re.DOTALL,
)

MAX_HELD = 4_000  # characters that are held back
CodeReader = Callable[[str], str]
"""Returns the code in a call's whole arguments; raises InvalidParams if there is none."""
_State = Literal["start", "raw", "searching", "inside", "over"]


class CodeStream:
    """Takes the pieces of a call's arguments, and returns the pieces of the code in them.

    The pieces joined are always a beginning of the code, and the whole code together with the result of `finish`.
    """

    def __init__(self) -> None:
        self._pending = ""
        self._sent: list[str] = []
        self._held = ""  # code that a repair may change
        self._has_line = False  # a whole line was sent
        self._read = 0  # characters of an unfinished token that were searched already
        self._state: _State = "start"
        self._depth = 0
        self._last = ""  # the last token at the top level of the object
        self._name = ""  # the key of the next value

    def feed(self, text: str) -> str:
        """Take a piece of the arguments, and return the code that it adds."""
        self._pending += text
        if self._state == "start":
            self._start()
        if self._state == "searching":
            self._search()
        piece = ""
        if self._state == "inside":
            piece = self._inside()
        elif self._state == "raw":
            piece, self._pending = self._pending, ""
        piece = self._certain(self._held + piece)
        self._sent.append(piece)
        return piece

    def _certain(self, code: str) -> str:
        """Return the part of the code that no repair changes: not a closing fence, nor one line with escapes."""
        end = len(code.rstrip().rstrip("`").rstrip())
        end = end if "\n" in code[end:] else len(code)
        if "\\" in code and "\n" not in code and not self._has_line:
            end = min(end, code.index("\\"))
        end = end if len(code) - end <= MAX_HELD else len(code)
        self._held, self._has_line = code[end:], self._has_line or "\n" in code[:end]
        return code[:end]

    def finish(self, code: str) -> str:
        """Return the part of the whole code that was not returned yet; '' if the pieces were of other code."""
        sent = "".join(self._sent)
        return code[len(sent) :] if code.startswith(sent) else ""

    def _start(self) -> None:
        head = self._pending.lstrip()[:1]
        if head:
            self._state = "searching" if head == "{" else "over" if head in "`\"'[<\ufeff" else "raw"

    def _search(self) -> None:
        """Read whole tokens up to the quote that opens the code."""
        position = 0
        while self._state == "searching":
            position = _SPACE.match(self._pending, position).end()  # type: ignore[union-attr]
            if self._name == "code" and self._depth == 1 and self._pending[position : position + 1] == '"':
                self._state, position = "inside", position + 1
                break
            end = self._token_end(position)
            if end is None:
                break
            self._take(self._pending[position:end])
            position = end
        self._pending = self._pending[position:]

    def _token_end(self, start: int) -> int | None:
        """Return the end of the token that begins here; None while it has not arrived."""
        first = self._pending[start : start + 1]
        if first and first in "{}[]:,":
            return start + 1
        is_string = first == '"'
        found = (_STRING if is_string else _BARE).match(self._pending, start + max(self._read, is_string))
        end = found.end()  # type: ignore[union-attr]
        if end == len(self._pending) or (is_string and self._pending[end] != '"'):
            self._read = end - start
            return None
        self._read = 0
        return end + is_string

    def _take(self, part: str) -> None:
        if part in "{[":
            self._depth += 1
        elif part in "}]":
            self._depth -= 1
        elif self._depth == 1:
            is_key = part == ":" and self._last.startswith('"')
            self._name = _unquoted(self._last) if is_key else ""
            self._last = part
        if self._depth < 1:
            self._state = "over"

    def _inside(self) -> str:
        end = WHOLE_CHARS.match(self._pending).end()  # type: ignore[union-attr]
        piece, self._pending = self._pending[:end], self._pending[end:]
        if self._pending.startswith('"'):
            self._state = "over"
        try:
            code = str(json.loads(f'"{piece}"', strict=False))
        except ValueError:  # not JSON, or with invalid escapes
            self._state = "over"
            return ""
        if code.lstrip()[:1] == "`" and not any(self._sent):  # a fence, which is no part of the code
            self._state = "over"
            return ""
        return code


def _unquoted(token: str) -> str:
    try:
        return str(json.loads(token, strict=False))
    except ValueError:
        return ""
