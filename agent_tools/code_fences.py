r"""Fenced blocks of Markdown, found as models write them: with code on the fence's own line, or with fences in strings.

A fence is a line of three or more backticks. Behind the opening one stands an info string (CommonMark 0.31, 4.5), whose
first word names the language. Models also write code there: what stands behind the word for Python is code, unless it
looks like attributes (`title="a.py"`, `{1,3}`, `app.py`) and the block has other code; `Block.left_out` holds it then.
A block of Python ends at the first fence that is in none of its strings. All work is linear in the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from agent_tools.errors import UnclearCode
from agent_tools.python_scanner import CELL_MAGIC, parts

_FENCE_LINE = re.compile(r"^(?P<indent>[ \t]*)(?P<ticks>`{3,})(?P<info>[^\n`]*)$", re.MULTILINE)
OPENING = re.compile(
    r"^(?P<indent>[ \t]*)(?P<ticks>`{3,})(?!`)(?P<info>[^\n`]*)(?P<closing>`{3,}(?!`)[ \t\r]*)?$", re.MULTILINE
)
"""An opening fence; one with `closing` is a whole block on one line."""
_PYTHON = (
    r"\{\.?(?:i?python|py)\b[^{}\n]*\}"
    r"|\{?\.?(?:i?python(?:[23](?:\.\d+)*)?(?:(?:[-_]|\.(?!\d))[\w.-]+(?=\s*$))?|(?:py(?:3|con)?|tool_code)(?!\w))"
)
_PYTHON_TAG = re.compile(_PYTHON, re.IGNORECASE)
_LANGUAGE = re.compile(rf"\s*(?P<tag>{_PYTHON}|json[5c]?(?!\w)|(?=%%?\w|!\w))", re.IGNORECASE)
"""The beginning of an info string that may go on with code: Python's names, JSON's, and none before a magic."""
_ATTRIBUTE = re.compile(
    r"""\s*(?:\{[^{}]*\}|[\w-]+=(?:"[^"]*"|'[^']*')|(?:title|name|file|filename|path|lines|linenums)=[\w./:-]+"""
    r"""|[\w./:,+-]+(?![\w./:,+=(\['"-])|\Z)"""
)
_STATEMENT = re.compile(
    r"(?:import|from|def|class|for|while|if|with|try|async|await|raise|del|assert|pass|global|return|lambda|not)\b"
)
ONE_BLOCK = "Nothing was run: send one block of Python, without other blocks."
_CLOSING_TICKS = re.compile(r"(?<!`)`{3,}[ \t\r]*\Z")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    `tag` is the language, or the whole info string if the language is unknown; `end` is the place after the closing
    fence; `left_out` is text of the info string that is no code; `was_glued` says that the language's name and code
    stood there as one word.
    """

    tag: str
    code: str
    is_closed: bool
    end: int
    left_out: str = ""
    was_glued: bool = False

    @property
    def is_python(self) -> bool:
        """The tag says that it is Python."""
        return bool(_PYTHON_TAG.match(self.tag))


def blocks_of(text: str, start: int = 0) -> tuple[list[Block], bool]:
    """Return the fenced blocks of a text, and whether there is any other text between and after them.

    Raises:
        UnclearCode: a block that begins with `%%` may end at several fences.
    """
    blocks: list[Block] = []
    place, has_text, is_blind = start, False, False
    while opening := OPENING.search(text, place):
        has_text = has_text or bool(text[place : opening.start()].strip())
        block, is_blind = _block(text, opening, is_blind)
        blocks.append(block)
        place = block.end
    return blocks, has_text or bool(text[place:].strip())


def python_blocks(text: str) -> tuple[str, ...]:
    """Return the closed blocks of an answer that are marked as Python, in order."""
    try:
        blocks = blocks_of(text)[0] if "```" in text else []
    except UnclearCode:
        return ()
    return tuple(block.code for block in blocks if block.is_python and block.is_closed)


def _block(text: str, opening: re.Match[str], is_blind: bool) -> tuple[Block, bool]:
    """Return the block that opens here, and whether it has an unclosed string, after which strings are ignored."""
    language = _LANGUAGE.match(text, opening.start("info"), opening.end("info"))
    if language is None:
        return _body(text, opening, Block(opening["info"].strip(), "", False, 0), opening.end() + 1, is_blind)
    start = language.end()
    rest = text[start : opening.end("info")]
    empty = Block(language["tag"], "", False, 0, was_glued=bool(language["tag"] and re.match(r"\w", rest)))
    if opening["closing"]:
        return replace(empty, code=rest.strip(), is_closed=True, end=opening.end()), is_blind
    if not rest.strip():
        return _body(text, opening, empty, opening.end() + 1, is_blind)
    if _is_attributes(rest):
        block, found_blind = _body(text, opening, empty, opening.end() + 1, is_blind)
        if block.code.strip():
            return replace(block, left_out=rest.strip(), was_glued=False), found_blind
    start += len(rest) - len(rest.lstrip())
    return _body(text, opening, empty, start, is_blind)


def _is_attributes(rest: str) -> bool:
    """Return whether all words behind the language look like attributes or file names, and none like a statement."""
    place = 0
    if _STATEMENT.match(rest.strip()):
        return False
    while place < len(rest):
        found = _ATTRIBUTE.match(rest, place)
        if found is None:
            return False
        place = found.end()
    return True


def _body(text: str, opening: re.Match[str], block: Block, start: int, is_blind: bool) -> tuple[Block, bool]:
    """Return the block with its code, which begins at `start`. The second value as for `_block`."""
    ticks, start, end = len(opening["ticks"]), min(start, len(text)), None
    if CELL_MAGIC.match(text, start):
        end = _end_by_nesting(text, start, ticks)
    elif not is_blind and (not block.tag or block.is_python):
        end = _end_of_code(text, start, ticks)
        is_blind = end is None
    code_end, after, is_closed = end or _end_by_line(text, start, ticks)
    code = text[start:code_end].rstrip("\n")
    if not is_closed and (closing := _CLOSING_TICKS.search(code)):
        code, is_closed = code[: closing.start()].rstrip("\n"), True
    if opening["indent"]:
        code = re.sub(f"^{opening['indent']}", "", code, flags=re.MULTILINE)
    return replace(block, code=code, is_closed=is_closed, end=after), is_blind


_End = tuple[int, int, bool]
"""Where a block's code ends, where the text goes on, and whether a fence closes it."""


def _end_of_code(text: str, start: int, ticks: int) -> _End | None:
    """Return the end of Python: the first closing fence that is in none of its strings; None if a string stays open."""
    line = _FENCE_LINE.search(text, start)
    place = line.start() if line else len(text)
    if any(text.find(each, start, place) >= 0 for each in ("'''", '"""', "```", "\\\n", "\\\r")):
        place = start  # strings of several lines may hold fences: scan from here
    for part in parts(text, place):
        if part.kind == "open":
            return None
        if part.kind == "ticks" and text.count("`", part.start, part.end) >= ticks:
            return part.start, part.end, True
        if part.kind == "fence":
            found = _FENCE_LINE.match(text, part.start)
            if found and found["info"].strip() and len(found["ticks"]) <= ticks:
                return part.start, part.start, False  # the next block begins
            if found and not found["info"].strip() and len(found["ticks"]) >= ticks:
                return part.start, part.end, True
    return len(text), len(text), False


def _end_by_line(text: str, start: int, ticks: int) -> _End:
    """Return the end of a block by CommonMark: at the first line that is a fence at least as long."""
    for found in _FENCE_LINE.finditer(text, start):
        if not found["info"].strip() and len(found["ticks"]) >= ticks:
            return found.start(), found.end(), True
    return len(text), len(text), False


def _end_by_nesting(text: str, start: int, ticks: int) -> _End:
    """Return the end of a cell that begins with `%%` and may hold any text: a fence with a tag opens a nested block."""
    depth, end = 0, None
    for found in _FENCE_LINE.finditer(text, start):
        if len(found["ticks"]) < ticks:
            continue
        if end is not None and not found["info"].strip():
            raise UnclearCode(f"A block that begins with %% has fences in it, and may end at several. {ONE_BLOCK}")
        if end is None and not depth and not found["info"].strip():
            end = found.start(), found.end(), True
        else:
            depth += 1 if found["info"].strip() else -1
    return end or (len(text), len(text), False)
