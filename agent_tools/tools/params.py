"""The arguments that a model wrote: JSON, JSON5, a fenced block or plain code, read generously but never guessed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Union

from agent_tools.errors import InvalidParams
from agent_tools.limits import Limits
from agent_tools.sandbox.options import checked_code
from agent_tools.text import neutralise

Params = Union[str, dict[str, Any]]
"""A call's arguments, as a model or a caller gives them: text, or an object by name."""

MAX_JSON5_CHARS = 64 * 1024  # the JSON5 parser is slow; longer text must be JSON, or plain code
MAX_JSON5_PARTS = 2_000  # commas, colons and opening brackets, in strings too: each may take a tenth of a millisecond
_FENCE = re.compile(
    r"^[ \t]*(?P<ticks>```+)[^\n`]*\n(?P<code>.*?)(?:^[ \t]*(?P=ticks)`*[ \t]*\r?$|\Z)", re.DOTALL | re.MULTILINE
)
_CLAIMS_CODE_KEY = re.compile(r"""\{\s*["']?code["']?\s*:""")
_SHOWN = 'Give JSON such as {"code": "print(1)"}, a fenced Python block, or the code itself.'


def code_of(params: object, limits: Limits) -> str:
    """Return the code of a call.

    A dict or a JSON object gives its `code`; text whose first line opens a fence, or that holds a fenced block outside
    any string, gives that block; all other text is code. Text that starts as `{"code":` but is not JSON is refused
    rather than run in part.

    Raises:
        InvalidParams: there is no code in it, or code that cannot be run as text.
    """
    if isinstance(params, dict):
        code = _code_value(params)
    elif isinstance(params, str):
        code = _code_in(_decoded_once(params.removeprefix("\ufeff")))
    else:
        raise InvalidParams(f"params is of type {type(params).__name__}. {_SHOWN}")
    return checked_code(code, limits)


def files_of(files: object) -> list[str]:
    """Return the paths and URLs of a call; for None, an empty list.

    Raises:
        InvalidParams: it is not a list of paths or URLs.
    """
    if files is None:
        return []
    if isinstance(files, (str, bytes)) or not isinstance(files, Sequence):
        raise InvalidParams(f"files={files!r:.80} is not usable: give a list of paths or URLs.")
    for file in files:
        if not isinstance(file, (str, Path)):
            raise InvalidParams(f"files has {file!r:.80}, which is not a path or a URL.")
    return [str(file) for file in files]


def load_json(text: str) -> Any:
    """Parse JSON or JSON5, with a fence around it or without.

    Raises:
        ValueError: it is neither.
    """
    text = text.strip()
    if fenced := _FENCE.match(text):
        text = fenced["code"].strip()
    try:
        return json.loads(text, strict=False)
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc
    except ValueError:
        if len(text) > MAX_JSON5_CHARS or sum(map(text.count, ",:[{")) > MAX_JSON5_PARTS:
            raise
    return _load_json5(text)


def _load_json5(text: str) -> Any:
    import json5  # only what is no plain JSON needs it

    try:
        return json5.loads(text)
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc


def _decoded_once(text: str) -> str:
    """Return the object with code that was encoded twice, as some servers do; other text as it is."""
    stripped = text.strip()
    if not stripped.startswith('"'):
        return text
    try:
        inner = json.loads(stripped)
    except (ValueError, RecursionError):
        return text
    return inner if isinstance(inner, str) and _CLAIMS_CODE_KEY.match(inner.lstrip()) else text


def _code_in(text: str) -> str:
    stripped = text.strip()
    if stripped.startswith("{"):
        found = _code_in_json(stripped)
        if found is not None:
            return found
    block = _fenced_block(text)
    if block is None:
        return text
    inner = _code_in_json(block.strip()) if block.lstrip().startswith("{") else None
    return block if inner is None else inner


def _code_in_json(text: str) -> str | None:
    """Return the code of a JSON object; None if the text is not JSON and does not begin as an object with code."""
    try:
        found = load_json(text)
    except ValueError as exc:
        if _CLAIMS_CODE_KEY.match(text):
            raise InvalidParams(
                f"params looks like JSON with a 'code' key but cannot be parsed ({neutralise(str(exc))}). {_SHOWN}"
            ) from exc
        return None
    return _code_value(found) if isinstance(found, dict) else None


def _code_value(params: dict[Any, Any]) -> str:
    code = params.get("code")
    if not isinstance(code, str):
        what = "has no 'code'" if code is None else f"has a 'code' of type {type(code).__name__}, not text"
        raise InvalidParams(f"params {what}. {_SHOWN}")
    return code


def _fenced_block(text: str) -> str | None:
    """Return the first fenced block, unless it opens inside a triple-quoted string of the code around it."""
    found = _FENCE.search(text)
    if found is None:
        return None
    before = text[: found.start()]
    if before.count("'''") % 2 or before.count('"""') % 2:
        return None
    return found["code"].rstrip("\n")
