"""The commands in a shell call's arguments, read while the model writes them.

Arguments are a JSON object with a list of strings under `commands`. Tokens are read up to each string's quote, then
the string's pieces are unescaped and passed on, but for half an escape at their end. Arguments of another form are
read whole at the end of the call. The work is linear in the length of the arguments, however they are cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from agent_tools.agents.turn.code_stream import WHOLE_CHARS
from agent_tools.gateway.tools.shell_call import MAX_COMMANDS

MAX_LEAD = 4_096  # characters before the first command; what comes later is not followed
_LEAD = re.compile(r'\s*\{(?:\s*"(?:timeout_ms|max_output_length)"\s*:\s*[\w.+-]+\s*,)*\s*"commands"\s*:\s*\[\s*"')
_NEXT = re.compile(r'\s*,\s*"')
_MAYBE_NEXT = re.compile(r"\s*,?\s*\Z")


@dataclass(frozen=True)
class CommandPiece:
    """A piece of the command at a place in the call."""

    index: int
    text: str


class CommandStream:
    """Takes the pieces of a call's arguments, and gives the pieces of the commands in them.

    The pieces of one command joined are always a beginning of it.
    """

    def __init__(self) -> None:
        self._pending = ""
        self._index = -1  # of the command that is being read
        self._is_inside = False
        self._is_over = False

    def feed(self, text: str) -> Iterator[CommandPiece]:
        """Take a piece of the arguments, and yield what it adds to the commands."""
        if self._is_over:
            return
        self._pending += text
        while self._is_inside or self._opens():
            piece = self._inside()
            if piece:
                yield CommandPiece(self._index, piece)
            if self._is_inside:
                return

    def _opens(self) -> bool:
        """Read up to the quote that opens the next command; return False while it has not come."""
        if self._is_over:
            return False
        found = (_NEXT if self._index >= 0 else _LEAD).match(self._pending)
        if found is None:
            could_come = _MAYBE_NEXT.match(self._pending) if self._index >= 0 else len(self._pending) < MAX_LEAD
            self._is_over = not could_come or len(self._pending) > MAX_LEAD
            return False
        self._pending = self._pending[found.end() :]
        self._index += 1
        self._is_inside = self._index < MAX_COMMANDS
        self._is_over = not self._is_inside
        return self._is_inside

    def _inside(self) -> str:
        """Read of the command what has come; it may end here."""
        end = WHOLE_CHARS.match(self._pending).end()  # type: ignore[union-attr]
        piece, self._pending = self._pending[:end], self._pending[end:]
        if self._pending.startswith('"'):
            self._is_inside, self._pending = False, self._pending[1:]
        try:
            return str(json.loads(f'"{piece}"', strict=False))
        except ValueError:  # not JSON after all
            self._is_inside, self._is_over = False, True
            return ""
