r"""Read JSON that a model wrote: JSON5 too, a fence around it, the same object several times, marks of its training.

Backslashes that begin no JSON escape are kept, as the model wrote them. All work is linear in the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agent_tools.code_fences import blocks_of
from agent_tools.text import neutralise

MAX_JSON5_CHARS = 64 * 1024  # bytes; the JSON5 parser is slow, so longer text must be JSON, or plain code
MAX_JSON5_PARTS = 2_000  # commas, colons and opening brackets, in strings too: each may take a tenth of a millisecond
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}|(?P<lone>(?s:.)|\Z))')
_BETWEEN_OBJECTS = re.compile(r"(?:\s+|<\|[^<>|\s]{1,40}\|>|</?tool_call>)*")


class _Unclear(ValueError):
    """The text has several JSON objects, or values of a key, that differ."""


def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of keys and values.

    Raises:
        ValueError: a key comes twice, with values that differ.
    """
    found = dict(pairs)
    if len(found) < len(pairs) and any(found[key] != value for key, value in pairs):
        raise _Unclear("a key comes twice, with values that differ: send it once")
    return found


_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=object_of)


@dataclass(frozen=True)
class JsonReading:
    """A JSON value. `lone` lists the backslashes that begin no JSON escape, each with the character after it."""

    value: Any
    lone: tuple[str, ...] = ()
    quotes: str = "literally"

    @property
    def notes(self) -> tuple[str, ...]:
        """A note that says how the lone backslashes were read; () if there are none."""
        shown = neutralise(", ".join(dict.fromkeys(self.lone[:1_000]))[:60])
        note = f"The JSON had invalid escapes ({shown}), read {self.quotes}. In JSON, write \\\\ for a backslash."
        return (note,) if self.lone else ()


def load_json(text: str) -> Any:
    """Parse JSON or JSON5, with a fence around it or without. Errors as for `read_json`."""
    return read_json(text).value


def read_json(text: str, is_sound: Callable[[Any], bool] | None = None) -> JsonReading:
    r"""Parse JSON or JSON5, with a fence around it or without. A backslash that begins no JSON escape is kept.

    A backslash before a quote (`\'`) is either removed, as JSON5 does, or part of the text. `is_sound` chooses by the
    resulting value; without it, JSON5 decides.

    Raises:
        ValueError: it is neither, `is_sound` accepts no reading, or several objects, or values of one key, differ.
    """
    text = text.strip()
    if text.startswith("```") and len(blocks := blocks_of(text)[0]) == 1:
        text = blocks[0].code.strip()
    try:
        return _read_json(text, is_sound)
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc


def _read_json(text: str, is_sound: Callable[[Any], bool] | None) -> JsonReading:
    try:
        return JsonReading(_only_value(text))
    except _Unclear:
        raise
    except ValueError:
        lone = tuple(f"\\{found['lone']}" for found in _ESCAPE.finditer(text) if found["lone"] is not None)
        if lone and (kept := _kept(text, lone, is_sound)) is not None:
            return kept
        if len(text) > MAX_JSON5_CHARS or sum(map(text.count, ",:[{")) > MAX_JSON5_PARTS:
            raise
    import json5  # only text that is not plain JSON needs it

    lone = tuple(each for each in lone if each not in ("\\'", "\\\n"))
    return JsonReading(json5.loads(_ESCAPE.sub(_left_to_json5, text), allow_duplicate_keys=False), lone)


def _kept(text: str, lone: tuple[str, ...], is_sound: Callable[[Any], bool] | None) -> JsonReading | None:
    """Parse the JSON with its lone backslashes kept; None if it is still not JSON."""
    try:
        literal = _only_value(_ESCAPE.sub(_doubled, text))
        if "\\'" not in lone:
            return JsonReading(literal, lone)
        as_json5 = _only_value(kept_backslashes(text))
    except ValueError:
        return None
    if is_sound is not None and is_sound(literal):
        return JsonReading(literal, lone)
    if is_sound is None or is_sound(as_json5):
        return JsonReading(as_json5, lone, r"as ' where they were \'" + (", else literally" * (len(set(lone)) > 1)))
    raise ValueError(r"the escape \' is invalid; write ' for a quote, and \\ for a backslash")


def kept_backslashes(text: str) -> str:
    """Double each backslash that begins no escape, except one before a quote."""
    return _ESCAPE.sub(_without_quotes, text)


def _doubled(found: re.Match[str]) -> str:
    return found[0] if found["lone"] is None else f"\\{found[0]}"


def _without_quotes(found: re.Match[str]) -> str:
    return "'" if found["lone"] == "'" else _doubled(found)


def _left_to_json5(found: re.Match[str]) -> str:
    return found[0] if found["lone"] in ("'", "\n") else _doubled(found)


def _only_value(text: str) -> Any:
    """Parse a text that is one JSON value; equal or empty objects after an object, and a model's marks, are skipped.

    Servers send arguments as `{}` first, or whole once more at the end.
    """
    only, end = _DECODER.raw_decode(text)
    while end < len(text):
        end = _BETWEEN_OBJECTS.match(text, end).end()  # type: ignore[union-attr]
        if end == len(text):
            break
        value, end = _DECODER.raw_decode(text, end)
        if not isinstance(only, dict) or not isinstance(value, dict):
            raise ValueError("text after the object")
        if only and value and value != only:
            raise _Unclear("it has several objects that differ: send one")
        only = only or value
    return only
