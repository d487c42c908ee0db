"""What a docstring says: a summary, and a description of each argument. Google, NumPy and reST are read. Pure."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field

_FIELD = re.compile(r"^:(?:param|parameter|arg|argument)\s+(?:[^:\s]+\s+)?\*{0,2}(\w+):\s*(.*)$")
_GOOGLE = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")
_NUMPY = re.compile(r"^\*{0,2}(\w+)\s*(?::.*)?$")
_ARGUMENTS = re.compile(r"^(?:Args|Arguments|Parameters|Keyword Args|Keyword Arguments|参数)[:：]?$")
_SECTION = re.compile(
    r"^(?:Attributes|Examples?|Notes?|Raises|References|Returns?|See Also|Todo|Warnings?|Yields?|返回|示例)[:：]?$"
)
_UNDERLINE = re.compile(r"^-{3,}$")


@dataclass
class Docstring:
    """A docstring, read. `arguments` maps a name to its description on one line."""

    summary: str = ""
    arguments: dict[str, str] = field(default_factory=dict)


def read_docstring(text: str | None) -> Docstring:
    """Read a docstring: all before its first section is the summary."""
    found = Docstring()
    summary: list[str] = []
    lines = inspect.cleandoc(text or "").splitlines()
    position = 0
    while position < len(lines):
        line = lines[position].rstrip()
        if _ARGUMENTS.match(line):
            position = _read_section(lines, position + 1, found)
            continue
        if _SECTION.match(line) or line.startswith(":"):
            position = _read_field(lines, position, found)
            continue
        if not found.arguments:
            summary.append(line)
        position += 1
    found.summary = "\n".join(summary).strip()
    return found


def _read_section(lines: list[str], position: int, found: Docstring) -> int:
    """Read the arguments' section from its first line on; gives where the next part begins."""
    is_numpy = position < len(lines) and bool(_UNDERLINE.match(lines[position].strip()))
    position += is_numpy
    indent, name = 0 if is_numpy else None, ""
    while position < len(lines):
        line = lines[position]
        depth = len(line) - len(line.lstrip())
        if line.strip() and not is_numpy and depth == 0:
            break
        if is_numpy and depth == 0 and (_SECTION.match(line) or _ARGUMENTS.match(line)):
            break
        if line.strip():
            indent = depth if indent is None else indent
            entry = (_NUMPY if is_numpy else _GOOGLE).match(line.strip()) if depth == indent else None
            if entry:
                name = entry[1]
                found.arguments[name] = "" if is_numpy else entry[2].strip()
            elif name:
                found.arguments[name] = f"{found.arguments[name]} {line.strip()}".strip()
        position += 1
    return position


def _read_field(lines: list[str], position: int, found: Docstring) -> int:
    """Read `:param x: ...` with the lines that belong to it, or pass over another section."""
    entry = _FIELD.match(lines[position])
    words = [entry[2]] if entry else []
    position += 1
    while position < len(lines) and (lines[position].startswith((" ", "\t")) or not lines[position].strip()):
        words.append(lines[position].strip())
        position += 1
    if entry:
        found.arguments[entry[1]] = " ".join(word for word in words if word)
    return position
