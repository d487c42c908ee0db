"""The arguments of a sandbox's methods, checked before anything is asked of the sandbox."""

from __future__ import annotations

import json
import keyword
import os
from collections.abc import Mapping
from typing import Any, BinaryIO, Union

from agent_tools.errors import InvalidParams

StrPath = Union[str, "os.PathLike[str]"]
"""A path in the sandbox: text, or a path object, whose slashes are the sandbox's."""


def path_text(path: object, name: str = "path") -> str:
    """Return a path as text.

    Raises:
        InvalidParams: it is none.
    """
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise InvalidParams(f"{name}={path!r:.80} is not usable: give a path as text, or a pathlib.Path.")
    return text


def whole_number(value: object, name: str, least: int = 0) -> int:
    """Return a whole number that is at least so much.

    Raises:
        InvalidParams: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidParams(f"{name}={value!r:.80} is not usable: give a whole number of at least {least}.")
    return value


def given_bytes(value: object, name: str) -> bytes | None:
    """Return bytes, or None for none.

    Raises:
        InvalidParams: it is something else.
    """
    if value is None or isinstance(value, (bytes, bytearray, memoryview)):
        return None if value is None else bytes(value)
    raise InvalidParams(f"{name} is of type {type(value).__name__}: give bytes, such as text.encode().")


def bytes_or_file(value: bytes | BinaryIO | None, name: str) -> bytes | BinaryIO | None:
    """Return bytes, a file that was opened for reading bytes, or None for none.

    Raises:
        InvalidParams: it is something else.
    """
    if isinstance(value, (str, type(None), bytes, bytearray, memoryview)):
        return given_bytes(value, name)
    check_file(value, name)
    return value


def check_file(given: object, name: str, *, to_write: bool = False) -> None:
    """Check that something is a file that was opened for reading, or for writing, as bytes.

    Raises:
        InvalidParams: it is none.
    """
    method, mode, other = ("write", "wb", "") if to_write else ("read", "rb", "bytes, or ")
    can = getattr(given, "writable" if to_write else "readable", None)
    if not callable(getattr(given, method, None)) or (callable(can) and not can()):
        kind = type(given).__name__
        raise InvalidParams(f"{name} is of type {kind}: give {other}a file that was opened with open(path, '{mode}').")


# Variables from the host to the code: JSON values, set by a line of Python that the code does not see.


def assignments(variables: Mapping[str, Any]) -> str:
    """Return the code that sets variables.

    Raises:
        InvalidParams: a name is no name of Python's, or a value is no JSON value.
    """
    for name, value in variables.items():
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise InvalidParams(f"variables has {name!r:.80}, which is no name that code could use.")
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError) as exc:
            raise InvalidParams(
                f"The variable {name} is no JSON value ({exc}). Write it to a file with write_file, and read it there."
            ) from exc
    own_globals = "(lambda: 0).__globals__"  # whatever the code calls `globals`
    return f"{own_globals}.update(__import__('json').loads({json.dumps(dict(variables))!r}))"
