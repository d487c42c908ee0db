"""V4A diffs, in which models are trained to change files: hunks of context, removed and added lines.

Format of the `apply_patch` tool: https://developers.openai.com/api/docs/guides/tools-apply-patch. A hunk
may begin with `@@` and a line that comes before it in the file. Its lines begin with a space (context), `-` or `+`;
`*** End of File` after it says that it is the last one. Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from agent_tools.errors import AgentToolsError

MAX_DIFF = 1_000_000  # characters
MAX_TEXT = 2_000_000  # characters of a file that is changed
MAX_HUNKS = 256  # lines with '@@', which may each be looked for in all of the text
BOM = "\ufeff"  # at the start of a file: no tool shows it, so models cannot write it
END_OF_FILE = "*** End of File"
_ENVELOPE = ("*** Begin Patch", "*** End Patch", "*** Update File:", "*** Add File:")
"""Lines around the diff of one file, which some models write, too."""
_ALIKE: tuple[Callable[[str], str], ...] = (lambda line: line, str.rstrip, str.strip)
"""How lines are compared: as they are; if that finds nothing, without blanks at their end, then at both ends."""


class DiffError(AgentToolsError):
    """A malformed diff, or one that does not fit the text."""


@dataclass
class _Hunk:
    """The lines of a hunk; `heads` lines with `@@` come before them.

    `changes` are the places in `old`, with the number of lines removed from there and those put there.
    """

    number: int
    anchors: list[str] = field(default_factory=list)
    heads: int = 0
    old: list[str] = field(default_factory=list)
    changes: list[tuple[int, int, list[str]]] = field(default_factory=list)
    is_last: bool = False

    def add(self, line: str) -> None:
        """Take a line."""
        mark, text = line[:1] or " ", line[1:]
        if mark not in " +-":
            raise DiffError(
                f"Hunk {self.number}: a line begins with {mark!r} in place of ' ', '+' or '-': {line!r:.80}"
            )
        at = len(self.old)
        if mark != "+":
            self.old.append(text)
        if mark == " ":
            return
        if not self.changes or self.changes[-1][0] + self.changes[-1][1] != at:
            self.changes.append((at, 0, []))
        start, removed, added = self.changes[-1]
        if mark == "+":
            added.append(text)
        else:
            self.changes[-1] = (start, removed + 1, added)


def created(diff: str) -> str:
    """Return the text of a new file, each of whose lines begins with `+` in the diff.

    Raises:
        DiffError: another line is among them, or it is too long.
    """
    lines = _lines(diff)
    wrong = next((line for line in lines if not line.startswith("+")), None)
    if wrong is not None:
        raise DiffError(f"A line of a new file begins with no '+': {wrong!r:.80}")
    return _newline(diff).join(line[1:] for line in lines)


def changed(text: str, diff: str) -> str:
    """Return a text after a diff of it. Lines that the diff does not name stay as they are, with their own ends.

    An added line ends as the line that it replaces, else as the line before it.

    Raises:
        DiffError: the diff has no hunks or other lines, one of its hunks is not in the text, or either is too long.
    """
    if len(text) > MAX_TEXT:
        raise DiffError(f"The file has more than {MAX_TEXT:,} characters.")
    mark, text = (BOM, text[1:]) if text.startswith(BOM) else ("", text)
    *lines, last = text.split("\n")
    ends = [*("\r\n" if line.endswith("\r") else "\n" for line in lines), ""]
    lines = [*(line.removesuffix("\r") for line in lines), last]
    found, found_ends = list[str](), list[str]()  # pairs in one list would take three times the memory
    cursor, finder = 0, _Finder(lines)
    done = 0  # lines of the text that are in `found`, or left out
    for hunk in _hunks(_lines(diff)):
        for index, anchor in enumerate(hunk.anchors):
            cursor = finder.after(anchor, cursor, is_further=index > 0, hunk=hunk)
        start = finder.place(hunk, cursor)
        for at, removed, added in hunk.changes:
            if start + at < done:
                raise DiffError(f"Hunk {hunk.number}: its lines come before those of the hunk before it.")
            found += lines[done : start + at] + added
            found_ends += ends[done : start + at + min(removed, len(added))] + [""] * (len(added) - removed)
            done = start + at + removed
        cursor = start + len(hunk.old)
    found += lines[done:]
    found_ends += ends[done:]
    return mark + _joined(found, found_ends, _newline(text) if "\n" in text else _newline(diff))


def _joined(lines: Sequence[str], ends: Sequence[str], end: str) -> str:
    """Join lines by their own ends; a line without one ends as the line before it, the first such as `end`."""
    pieces = []
    for line, own in zip(lines, ends[:-1]):
        end = own or end
        pieces += [line, end]
    return "".join(pieces) + (lines[-1] if lines else "")


class _Finder:
    """Finds lines in a text, in time that is linear in its length."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._joined: dict[int, tuple[str, array[int]]] = {}  # by the way of comparing: the text, and its lines' starts

    def after(self, anchor: str, cursor: int, *, is_further: bool, hunk: _Hunk) -> int:
        """Return the line after an anchor; the cursor itself if the anchor is above it and need not be `is_further`."""
        for way in (0, 2):
            if not is_further and 0 <= self._find([anchor], 0, way) < cursor:
                return cursor
            if (at := self._find([anchor], cursor, way)) >= 0:
                return at + 1
        if hunk.heads > 1:
            raise DiffError(f"Hunk {hunk.number}: no line is {anchor!r:.80}.")
        return cursor  # the hunk's own lines decide

    def place(self, hunk: _Hunk, cursor: int) -> int:
        """Return the first line of a hunk's old lines, from the cursor on."""
        size = len(self._lines) - (hunk.is_last and self._lines[-1] == "")
        starts = [max(0, size - len(hunk.old)), cursor] if hunk.is_last else [cursor]
        if not hunk.old:
            return starts[0]
        for start in starts:
            for way in range(len(_ALIKE)):
                if 0 <= (at := self._find(hunk.old, start, way)) <= size - len(hunk.old):
                    return at
        shown = "\n".join(hunk.old)
        raise DiffError(f"Hunk {hunk.number}: these lines are not in the file from line {cursor + 1} on:\n{shown:.400}")

    def _find(self, wanted: Sequence[str], start: int, way: int) -> int:
        """Return the first line from which on the wanted ones come, -1 if they do not."""
        if way not in self._joined:
            alike = [_ALIKE[way](line) for line in self._lines]
            starts = array("q", accumulate((len(line) + 1 for line in alike), initial=0))
            self._joined[way] = ("\n" + "\n".join(alike) + "\n", starts)
        joined, starts = self._joined[way]
        if start >= len(self._lines):
            return -1
        needle = "\n".join(["", *map(_ALIKE[way], wanted), ""])
        at = joined.find(needle, starts[start])
        return at if at < 0 else bisect_left(starts, at)


def _hunks(lines: Sequence[str]) -> list[_Hunk]:
    found: list[_Hunk] = []
    is_open, heads = False, 0  # lines belong to the last hunk
    for line in lines:
        if line == END_OF_FILE and is_open:
            found[-1].is_last, is_open = True, False
        elif line == "@@" or line.startswith("@@ "):
            if not (found and is_open and not found[-1].old and not found[-1].changes):
                found.append(_Hunk(len(found) + 1))
            is_open = True
            found[-1].heads += 1
            heads += 1
            if heads > MAX_HUNKS:
                raise DiffError(f"The diff has more than {MAX_HUNKS} hunks, or lines with '@@': send several.")
            if (anchor := line[3:]).strip():
                found[-1].anchors.append(anchor)
        else:
            if not is_open and found:
                raise DiffError(f"A hunk begins without '@@': {line!r:.80}")
            if not found:
                found.append(_Hunk(1))
            is_open = True
            found[-1].add(line)
    if not found or not all(hunk.old or hunk.changes or hunk.is_last for hunk in found):
        raise DiffError("The diff has a hunk without lines, or no hunk at all.")
    return found


def _lines(diff: str) -> list[str]:
    """Return the lines of a diff, without those around it."""
    if len(diff) > MAX_DIFF:
        raise DiffError(f"The diff has more than {MAX_DIFF:,} characters.")
    lines = diff.replace("\r\n", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    while lines and lines[0].startswith(_ENVELOPE):
        del lines[0]
    while lines and lines[-1].startswith("*** End Patch"):
        lines.pop()
    return lines


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
