r"""Read the code and the arguments that a model wrote: unchanged, or repaired where exactly one reading is left.

Theory of operation. Code that is valid Python is never changed. The host does not parse it to find that out: the host's
Python may be older than the image's, and CPython's parser may crash on hostile text. Instead the scanner of
python_scanner.py looks for text that no version of Python accepts: a fence, or a backslash in mid-line, outside of all
strings and comments. Only such text is repaired:

    arguments   a JSON object with `code`, encoded once or twice (json_reader.py), and objects around it.
    fences      the Python block of a text, or its Python blocks one after the other, without the text around them
                (code_fences.py).
    line ends   one line with `\n` as two characters between statements, from a server that escapes twice.

Each repair adds a note, unless it takes away nothing but a wrapper (JSON, or the one fence around everything). Where
several readings are left, `UnclearCode` says what to send instead, and nothing runs. All work is linear in the text.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Union

from agent_tools.code_fences import ONE_BLOCK, OPENING, Block, blocks_of
from agent_tools.errors import InvalidParams, UnclearCode
from agent_tools.json_reader import read_json
from agent_tools.limits import Limits
from agent_tools.python_scanner import CELL_MAGIC, Part, is_sound, parts
from agent_tools.text import neutralise

_SHOWN = 'Give JSON such as {"code": "print(1)"}, a fenced Python block, or the code itself.'


@dataclass(frozen=True)
class Reading:
    """The code that runs. `notes` name what was changed or left out; () for text that runs unchanged."""

    code: str
    notes: tuple[str, ...] = ()


Code = Union[str, Reading]
"""Code as a caller gives it: text that is still to be read, or a reading."""


def read_params(params: object, limits: Limits) -> Reading:
    """Return the code in the arguments of a call: a dict or JSON with `code`, fenced Python, or the code itself.

    Text that starts as `{"code":` but is not JSON is refused rather than run in part.

    Raises:
        InvalidParams: there is no code in it, or code that cannot be run as text, or that can be read in several ways.
    """
    if isinstance(params, dict):
        code, notes = _code_value(params)
        reading = _read_text(code)
        return _checked(replace(reading, notes=notes + reading.notes), limits)
    if not isinstance(params, str):
        raise InvalidParams(f"params is of type {type(params).__name__}. {_SHOWN}")
    text = params.removeprefix("\ufeff")
    return _checked(_read_object(text) or _read_text(text, may_hold_json=True), limits)


def read_code(code: Code, limits: Limits) -> Reading:
    """Return the code that a text is, for callers that hand over code alone. Errors as for `read_params`."""
    if isinstance(code, Reading):
        return code
    if not isinstance(code, str):
        raise InvalidParams(f"The code is of type {type(code).__name__}; give it as text.")
    return _checked(_read_text(code.removeprefix("\ufeff")), limits)


def checked_code(code: str, limits: Limits) -> str:
    """Return code that can be run as text.

    Raises:
        InvalidParams: it is not text, is longer than `max_code_bytes`, or is not valid Unicode.
    """
    if not isinstance(code, str):
        raise InvalidParams(f"The code is of type {type(code).__name__}; give it as text.")
    try:
        size = len(code.encode())
    except UnicodeEncodeError as exc:
        raise InvalidParams("The code holds a lone surrogate (half of a character); send valid Unicode.") from exc
    if size > limits.max_code_bytes:
        raise InvalidParams(
            f"The code is {size:,} bytes, more than {limits.max_code_bytes:,} (max_code_bytes). Pass data as a file."
        )
    if "\0" in code:
        raise InvalidParams("The code holds a NUL character; remove it.")
    return code


def _checked(reading: Reading, limits: Limits) -> Reading:
    checked_code(reading.code, limits)
    return reading


_CLAIMS_CODE_KEY = re.compile(r"""\{\s*["']?code["']?\s*:""")
_CODE_KEYS = frozenset(
    (
        *("script", "source", "source_code", "python_code", "python", "program", "snippet", "code_snippet", "cell"),
        *("code_block", "code_string"),
        *("input", "content", "text", "value", "properties", "arguments", "parameters", "args", "kwargs"),
    )
)
_MAX_WRAPPED = 4  # objects around the code
_LISTED = re.compile(r"\[\s*\{")
_CALLS_OR_SETS = re.compile(r"\s*(?:[\w., ]+\(|[\w., ]+=|(?:import|from|for|if|with|def)\s)")
_CONTROLS = {"\b": "\\b", "\f": "\\f", "\t": "\\t", "\r": "\\r"}
_SWALLOWED = re.compile(r"\x08|\x0c(?=[A-Za-z])")  # what `\b` of a regex and `\frac` of LaTeX become in JSON


def _read_object(text: str) -> Reading | None:
    """Return the code of a JSON object; None for text that is not JSON and does not begin like an object with code."""
    text = _decoded_once(text.strip())
    if text.startswith('"') and (inner := _encoded_code(text)):
        return Reading(inner, ("The code was a JSON text, and was run as code.",))
    if text.startswith("[") and _LISTED.match(text):
        text = text.removeprefix("[").removesuffix("]").strip()
    if not text.startswith("{"):
        return None
    try:
        parsed = read_json(text, _has_sound_code)
    except ValueError as exc:
        if _CLAIMS_CODE_KEY.match(text):
            raise InvalidParams(
                f"params looks like JSON with a 'code' key but cannot be parsed ({neutralise(str(exc))}). {_SHOWN}"
            ) from exc
        return None
    if not isinstance(parsed.value, dict):
        return None
    code, notes = _code_value(parsed.value)
    if parsed.lone:
        reading = _read_text(_with_controls_escaped(code))
        return replace(reading, notes=parsed.notes + notes + reading.notes)
    reading = _read_text(code)
    reading = replace(reading, notes=notes + reading.notes)
    if ("\b" in code or "\f" in code) and (swallowed := _SWALLOWED.search(code)):
        escape = _CONTROLS[swallowed[0]]
        note = f"The code holds a control character, the meaning of {escape} in JSON. For a backslash, write \\\\."
        return replace(reading, notes=(*reading.notes, note))
    return reading


def _decoded_once(text: str) -> str:
    """Return the object with code that was encoded twice, as some servers do; other text as it is."""
    if text.startswith('{\\"'):
        text = f'"{text}"'
    if not text.startswith('"'):
        return text
    try:
        inner = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return inner.strip() if isinstance(inner, str) and _CLAIMS_CODE_KEY.match(inner.lstrip()) else text


def _encoded_code(text: str) -> str:
    """Return the code in a JSON text that is nothing else; '' for a text that may be meant as one."""
    try:
        inner = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    return inner if isinstance(inner, str) and _CALLS_OR_SETS.match(inner) and is_sound(inner) else ""


def _code_value(params: Any) -> tuple[str, tuple[str, ...]]:
    """Return the code of a call's arguments, with a note if it is not a text under `code`."""
    path: list[str] = []
    value, given = params, params
    while isinstance(value, dict) and len(path) < _MAX_WRAPPED:
        key = _code_key(value)
        if key is None:
            break
        path.append(str(key))
        value = given = value[key]
        if key != "code" and isinstance(value, str) and _CLAIMS_CODE_KEY.match(value):  # encoded twice
            with suppress(ValueError, RecursionError):
                value = json.loads(value)
    if isinstance(value, list) and value and all(isinstance(line, str) for line in value):
        value = "".join(value) if value[0].endswith("\n") else "\n".join(value)
    if not path or not isinstance(value, str):
        what = "has no 'code'" if not path else f"has a {path[0]!r} of type {type(given).__name__}, not text"
        raise InvalidParams(f"params {what}. {_SHOWN}")
    if path == ["code"] and value is given:
        return value, ()
    return value, (f"The code was read from {neutralise('.'.join(path)[:80])!r}: give it as text under 'code'.",)


def _code_key(value: dict[Any, Any]) -> Any:
    """Return the key of the code: `code`, or the only other one that means code."""
    if value.get("code") is not None:
        return "code"
    keys = [key for key in value if isinstance(key, str) and key.casefold() in (*_CODE_KEYS, "code") and key != "code"]
    return keys[0] if len(keys) == 1 else None


def _has_sound_code(value: Any) -> bool:
    try:
        code, _ = _code_value(value)
    except InvalidParams:
        return True
    return is_sound(code)


def _with_controls_escaped(code: str) -> str:
    r"""Write control characters in strings as escapes: a model that writes `\d` in JSON also meant `\b` literally."""
    if not any(each in code for each in _CONTROLS):
        return code
    pieces, place = [], 0
    for part in parts(code):
        if part.kind == "string":
            text = code[part.start : part.end]
            for character, escape in _CONTROLS.items():
                text = text.replace(character, escape)
            pieces += [code[place : part.start], text]
            place = part.end
    return "".join(pieces) + code[place:]


_LITERAL_ESCAPE = re.compile(r"""\\([nrt"'\\])""")
_ONE_COMMENT = "The code is one line that ends in a comment with \\n in it: escape line ends once in JSON, not twice."
_LITERALS = {"n": "\n", "r": "\r", "t": "\t"}


def _read_text(text: str, may_hold_json: bool = False) -> Reading:
    r"""Read code that may be in a fence, or on one line with `\n` instead of line ends."""
    notes: tuple[str, ...] = ()
    if "\\" in text and "\n" not in text.strip() and "\\n" in text:
        reading = _with_line_ends(text)
        text, notes = reading.code, reading.notes
    if "`" in text and "```" in text and (unfenced := _unfenced(text, may_hold_json)) is not None:
        return replace(unfenced, notes=notes + unfenced.notes)
    return Reading(text, notes)


def _with_line_ends(text: str) -> Reading:
    r"""Return a line with line ends where it has `\n` between statements, if that is the only way to read it."""
    breaks = []
    for part in parts(text):
        if part.kind == "stray" and text[part.start + 1] in _LITERALS:
            breaks.append(part.start)
        elif part.kind == "comment" and not breaks and "\\n" in text[part.start :]:
            return Reading(text, (_ONE_COMMENT,))
    if not any(text[place + 1] == "n" for place in breaks):
        return Reading(text)
    pieces, place = [], 0
    for at in breaks:
        pieces += [text[place:at], _LITERALS[text[at + 1]]]
        place = at + 2
    outside = "".join(pieces) + text[place:]
    everywhere = _LITERAL_ESCAPE.sub(lambda found: _LITERALS.get(found[1], found[1]), text)
    sound = [each for each in dict.fromkeys((outside, everywhere)) if is_sound(each)]
    if len(sound) > 1:
        raise UnclearCode(
            "The code is one line with \\n as two characters, and can be read in two ways. Nothing was run: escape the "
            "code once in JSON, so that line ends arrive as such."
        )
    if sound:
        return Reading(sound[0], ("The code was one line with \\n as two characters, which were read as line ends.",))
    return Reading(text, ("The code has \\n as two characters, not as line ends: escape it once in JSON, not twice.",))


def _unfenced(text: str, may_hold_json: bool) -> Reading | None:
    """Return the code in the fences of a text; None if the text itself is code, with fences only in its strings."""
    if CELL_MAGIC.match(text):
        return None
    first = next((part for part in parts(text) if part.kind in ("fence", "ticks", "open")), None)
    if first is not None and first.kind == "open":  # not Python, so fences count wherever they are
        line = OPENING.search(text)
        first = Part("fence", line.start(), line.end()) if line else None
    elif first is not None and first.kind == "ticks" and (line := _on_one_line(text, first)):
        first = Part("fence", line.start(), line.end())
    if first is None:
        return None
    before = text[: first.start]
    if before.strip() and not text[first.end :].strip() and not text[first.start : first.end].strip().strip("`"):
        return Reading(before.rstrip("\n"), ("A closing fence after the code was left out.",))
    blocks, has_text = blocks_of(text, first.start)
    if not blocks:
        return None
    return _chosen(blocks, has_text or bool(before.strip()), may_hold_json)


def _on_one_line(text: str, ticks: Part) -> re.Match[str] | None:
    """Return the line that ends with these ticks if it is a whole block."""
    line = OPENING.match(text, text.rfind("\n", 0, ticks.start) + 1)
    return line if line and line["closing"] else None


def _chosen(blocks: list[Block], has_text: bool, may_hold_json: bool) -> Reading:
    """Return the code of the blocks marked as Python, or of the only block without a tag."""
    filled = [block for block in blocks if block.code.strip()]
    if not filled and not has_text and all(block.is_python or not block.tag for block in blocks):
        return Reading("")
    chosen = [block for block in filled if block.is_python]
    chosen = chosen or _unmarked(filled, has_text)
    if may_hold_json and len(filled) == 1 and filled[0].code.lstrip().startswith("{"):
        chosen = filled
        if (found := _read_object(filled[0].code)) is not None:
            return found
    if not chosen:
        tags = neutralise(", ".join(dict.fromkeys(block.tag[:20] or "empty" for block in blocks))[:80])
        raise UnclearCode(
            f"The text has no block of Python (but: {tags}). Nothing was run: send Python; for the shell, begin the "
            "code with %%bash."
        )
    if len(chosen) > 1 and any(CELL_MAGIC.match(block.code) for block in chosen):
        raise UnclearCode(f"A block that begins with %% cannot run together with others. {ONE_BLOCK}")
    code = "\n\n".join(block.code for block in chosen)
    ours = set(map(id, chosen))
    return Reading(code, _left_out(chosen, [block for block in filled if id(block) not in ours], has_text))


def _unmarked(filled: list[Block], has_text: bool) -> list[Block]:
    """Return the only block without a tag, in a list; an empty list if all have one."""
    found = [block for block in filled if not block.tag]
    if len(found) > 1:
        raise UnclearCode(f"The text has {len(found)} blocks, and none is marked as Python. {ONE_BLOCK}")
    if found and has_text and not found[0].is_closed:
        raise UnclearCode(f"The text has a fence that is never closed, and text before it. {ONE_BLOCK}")
    return found


def _left_out(chosen: list[Block], others: list[Block], has_text: bool) -> tuple[str, ...]:
    notes = [f"{len(chosen)} blocks of Python were run as one."] if len(chosen) > 1 else []
    for block in chosen:
        first = neutralise(block.code.partition("\n")[0][:60])
        notes += [f"The fence's own line was read as {block.tag} and code: {first}"] if block.was_glued else []
        if block.left_out:
            notes.append(f"Not run: {neutralise(block.left_out[:200])!r} on the fence's own line.")
    tags = neutralise(", ".join(dict.fromkeys(block.tag[:20] or "unmarked" for block in others))[:80])
    left = [f"other blocks ({tags})"] if others else []
    left += ["the text around them" if len(chosen) > 1 else "the text around the block of Python"] if has_text else []
    return (*notes, *([f"Not run: {', and '.join(left)}."] if left else []))
