"""Check the arguments of a sandbox's methods before anything is sent to the sandbox."""

from __future__ import annotations

import io
import os
from typing import BinaryIO, Union

from agent_tools.errors import InvalidParams

StrPath = Union[str, "os.PathLike[str]"]
"""A path in the sandbox: text, or a path object with the sandbox's slashes."""


def path_text(path: object, name: str = "path") -> str:
    """Return a path as text.

    Raises:
        InvalidParams: it is not a path.
    """
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise InvalidParams(f"{name}={path!r:.80} is not usable: give a path as text, or a pathlib.Path.")
    return text


def whole_number(value: object, name: str, least: int = 0) -> int:
    """Return a whole number that is at least `least`.

    Raises:
        InvalidParams: it is not a whole number, or is too small.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidParams(f"{name}={value!r:.80} is not usable: give a whole number of at least {least}.")
    return value


def given_bytes(value: object, name: str) -> bytes | None:
    """Return bytes, or None if there are none.

    Raises:
        InvalidParams: it is something else.
    """
    if value is None or isinstance(value, (bytes, bytearray, memoryview)):
        return None if value is None else bytes(value)
    raise InvalidParams(f"{name} is of type {type(value).__name__}: give bytes, such as text.encode().")


def bytes_or_file(value: bytes | BinaryIO | None, name: str) -> bytes | BinaryIO | None:
    """Return bytes, a file opened for reading bytes, or None if there is none.

    Raises:
        InvalidParams: it is something else.
    """
    if isinstance(value, (str, type(None), bytes, bytearray, memoryview)):
        return given_bytes(value, name)
    check_file(value, name)
    return value


def check_file(given: object, name: str, *, to_write: bool = False) -> None:
    """Check that a value is a file opened for reading, or for writing, as bytes.

    Raises:
        InvalidParams: it is not such a file.
    """
    method, mode, other = ("write", "wb", "") if to_write else ("read", "rb", "bytes, or ")
    can = getattr(given, "writable" if to_write else "readable", None)
    is_usable = callable(getattr(given, method, None)) and not isinstance(given, io.TextIOBase)
    if not is_usable or (callable(can) and not can()):
        kind = type(given).__name__
        raise InvalidParams(f"{name} is of type {kind}: give {other}a file that was opened with open(path, '{mode}').")
