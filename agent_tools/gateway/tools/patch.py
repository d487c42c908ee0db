"""The tool `apply_patch`: a model creates files, changes them by a diff, or deletes them in a container."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest
from typing import Any

from agent_tools.code_reader import JsonReading, read_json
from agent_tools.errors import AgentToolsError, InvalidParams, ToolServiceError
from agent_tools.gateway.tools.shell import carry_files
from agent_tools.gateway.tools.tool import ContainerLease
from agent_tools.models.base import FunctionDefinition, JsonObject
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.tools.base import BaseTool, Params, tool_errors

# V4A diffs, in which models are trained to change files: hunks of context, removed and added lines, without numbers.
#
# Format of the `apply_patch` tool: https://developers.openai.com/api/docs/guides/tools-apply-patch. A hunk
# may begin with `@@` and a line that comes before it in the file. Its lines begin with a space (context), `-` or `+`;
# `*** End of File` after it says that it is the last one. Pure.

MAX_DIFF = 1_000_000  # characters
MAX_TEXT = 2_000_000  # characters of a file that is changed
MAX_HUNKS = 256
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
    """One hunk, after `heads` lines with `@@`.

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
    *above, last = text.split("\n")
    lines = [*(line.removesuffix("\r") for line in above), last]
    ends = [*("\r\n" if line.endswith("\r") else "\n" for line in above), ""]
    kept = list(zip(lines, ends))
    found, cursor, finder = list[tuple[str, str]](), 0, _Finder(lines)
    done = 0  # lines of the text that are in `found`, or left out
    for hunk in _hunks(_lines(diff)):
        for index, anchor in enumerate(hunk.anchors):
            cursor = finder.after(anchor, cursor, is_further=index > 0, hunk=hunk)
        start = finder.place(hunk, cursor)
        for at, removed, added in hunk.changes:
            if start + at < done:
                raise DiffError(f"Hunk {hunk.number}: its lines come before those of the hunk before it.")
            found += kept[done : start + at]
            done = start + at + removed
            found += zip_longest(added, ends[done - removed : done][: len(added)], fillvalue="")
        cursor = start + len(hunk.old)
    return mark + _joined(found + kept[done:], _newline(text) if "\n" in text else _newline(diff))


def _joined(rows: Sequence[tuple[str, str]], end: str) -> str:
    """Join lines by their own ends; a line without one ends as the line before it, the first such as `end`."""
    pieces = []
    for line, own in rows[:-1]:
        end = own or end
        pieces += [line, end]
    return "".join(pieces) + (rows[-1][0] if rows else "")


class _Finder:
    """Finds lines in a text, in time that is linear in its length."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._joined: dict[int, tuple[str, list[int]]] = {}  # by the way of comparing: the text, and its lines' starts

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
            starts = list(accumulate((len(line) + 1 for line in alike), initial=0))
            self._joined[way] = ("\n" + "\n".join(alike) + "\n", starts)
        joined, starts = self._joined[way]
        if start >= len(self._lines):
            return -1
        needle = "\n".join(["", *map(_ALIKE[way], wanted), ""])
        at = joined.find(needle, starts[start])
        return at if at < 0 else bisect_left(starts, at)


def _hunks(lines: Sequence[str]) -> list[_Hunk]:
    found: list[_Hunk] = []
    is_open = False  # lines belong to the last hunk
    for line in lines:
        if line == END_OF_FILE and is_open:
            found[-1].is_last, is_open = True, False
        elif line == "@@" or line.startswith("@@ "):
            if not (found and is_open and not found[-1].old and not found[-1].changes):
                found.append(_Hunk(len(found) + 1))
            is_open = True
            found[-1].heads += 1
            if (anchor := line[3:]).strip():
                found[-1].anchors.append(anchor)
        else:
            if not is_open and found:
                raise DiffError(f"A hunk begins without '@@': {line!r:.80}")
            if not found:
                found.append(_Hunk(1))
            is_open = True
            found[-1].add(line)
        if len(found) > MAX_HUNKS:
            raise DiffError(f"The diff has more than {MAX_HUNKS} hunks: send several.")
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


PATCH_NAME = "apply_patch"  # as models are trained
CREATE, UPDATE, DELETE = "create_file", "update_file", "delete_file"
SHOWN_DIR = "/mnt/data/"
_SHOWN = 'Give JSON such as {"type": "update_file", "path": "a.py", "diff": "@@\\n-old\\n+new"}.'
_DESCRIPTION = (
    "Creates, updates or deletes one file{place}. `diff` is a V4A diff: hunks that begin with '@@', or '@@ ' and a "
    "line before them, and whose lines begin with ' ' (context, about three lines), '-' or '+'; every line of a new "
    "file begins with '+'. The lines of a hunk must be those of the file."
)


@dataclass(frozen=True)
class PatchCall:
    """One operation; `diff` is '' where a file is deleted. `notes` say how invalid escapes in its JSON were read."""

    kind: str
    path: str
    diff: str = ""
    notes: tuple[str, ...] = ()

    @property
    def operation(self) -> JsonObject:
        """The operation in the form of items."""
        found = {"type": self.kind, "path": self.path}
        return found if self.kind == DELETE else {**found, "diff": self.diff}


def read_patch_call(arguments: object) -> PatchCall:
    """Return the operation in a call's arguments: the arguments themselves, or the object `operation` in them.

    Raises:
        InvalidParams: there is none.
    """
    try:
        reading = read_json(arguments) if isinstance(arguments, str) else JsonReading(arguments)
    except ValueError as exc:
        raise InvalidParams(f"The arguments are not JSON. {_SHOWN}") from exc
    given = reading.value
    if isinstance(given, dict) and isinstance(given.get("operation"), dict):
        given = given["operation"]
    kind, path = (given.get("type"), given.get("path")) if isinstance(given, dict) else (None, None)
    if kind not in (CREATE, UPDATE, DELETE) or not isinstance(path, str) or not path:
        raise InvalidParams(f"There is no operation with a type and a path. {_SHOWN}")
    diff = given.get("diff")
    if kind != DELETE and not isinstance(diff, str):
        raise InvalidParams(f"{kind} needs a diff. {_SHOWN}")
    return PatchCall(kind, path, diff if isinstance(diff, str) and kind != DELETE else "", reading.notes)


def patch_arguments(operation: Mapping[str, Any]) -> str:
    """Return an operation as the arguments that a model writes."""
    return json.dumps({name: operation[name] for name in ("type", "path", "diff") if name in operation})


def patch_function(place: str = "") -> FunctionDefinition:
    """Return the tool as a function for the model; `place` says where the files are."""
    texts = {"path": "The file's path.", "diff": "The diff; for delete_file, none."}
    properties = {name: {"type": "string", "description": text} for name, text in texts.items()}
    return {
        "name": PATCH_NAME,
        "description": _DESCRIPTION.format(place=place),
        "parameters": {
            "type": "object",
            "properties": {"type": {"type": "string", "enum": [CREATE, UPDATE, DELETE]}, **properties},
            "required": ["type", "path"],
            "additionalProperties": False,
        },
    }


class ContainerPatch(BaseTool):
    """The tool on a container's files."""

    def __init__(self, lease: ContainerLease) -> None:
        function = patch_function(" in the Linux container, at a path relative to /mnt/data or below it")
        self.name, self.description = PATCH_NAME, str(function["description"])
        self.parameters = function["parameters"]
        self.lease = lease
        super().__init__()

    def call(self, params: Params, **kwargs: Any) -> str:
        """Make the change, and return the answer for the model.

        Raises:
            ToolServiceError: it could not be made; nothing was changed then.
        """
        call = read_patch_call(params)
        interpreter = self.lease.interpreter()
        with tool_errors():
            notes = [*(f"note: {note}" for note in call.notes), carry_files(self.lease, interpreter)]
            notes += [_applied(interpreter.as_sandbox, call), carry_files(self.lease, interpreter)]
        return self.lease.take_note() + "\n\n".join(filter(None, notes))


def _applied(sandbox: Sandbox, call: PatchCall) -> str:
    path = call.path.removeprefix(SHOWN_DIR)
    try:
        if call.kind == CREATE:
            text = created(call.diff)
            if sandbox.exists(path):
                raise DiffError("The file exists already: update it, or delete it first.")
            sandbox.write_file(path, text)
            return f"Created {call.path}."
        if call.kind == UPDATE:
            sandbox.write_file(path, changed(_text_of(sandbox, path), call.diff))
            return f"Updated {call.path}."
        if sandbox.stat(path, follow=False).is_dir:
            raise DiffError("It is a folder: only files are deleted.")
        sandbox.remove(path)
        return f"Deleted {call.path}."
    except (DiffError, OSError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise ToolServiceError(exception=exc, code="PatchFailed", message=f"{call.path}: {why}") from exc


def _text_of(sandbox: Sandbox, path: str) -> str:
    data = sandbox.read_file(path, max_bytes=4 * MAX_TEXT + 1)
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise DiffError("The file is too large, or no text in UTF-8.") from exc
