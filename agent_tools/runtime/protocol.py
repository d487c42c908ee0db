"""Jupyter messages as values: frames in, `Message` out; message in, `Output` out. Pure; all is checked here once.

Format: https://jupyter-client.readthedocs.io/en/stable/messaging.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jupyter_client.session import Session

from agent_tools.errors import ProtocolViolation
from agent_tools.execution import Cleared, Display, Error, Omitted, Output, Result, Stream
from agent_tools.runtime.pictures import PictureRefused, check_picture
from agent_tools.settings import Limits
from agent_tools.text import neutralise, shorten

MAX_FRAMES = 64
MAX_HEADER_BYTES = 64 * 1024  # of a header, a parent header or metadata
MAX_MARKS = 500_000  # commas and opening brackets of a content: each can become an object
MAX_JSON_NODES = 50_000
MAX_MIME_TYPES = 16
MAX_JSON_DEPTH = 64
MAX_TRACEBACK_LINES = 2_000
_MIME_TYPE = re.compile(r"[a-z]+/[A-Za-z0-9.+-]{1,80}")
_JSON_TYPE = re.compile(r"application/(json|[A-Za-z0-9.-]+\+json)")


@dataclass(frozen=True)
class Message:
    """One message of the kernel: its type, the id of the request it belongs to ('' if none), its content."""

    kind: str
    parent_id: str
    content: dict[str, Any]


def read_message(session: Session, frames: list[bytes]) -> Message:
    """Verify and decode one message.

    Raises:
        ProtocolViolation: the frames are not a signed, well-formed message.
    """
    if len(frames) > MAX_FRAMES:
        raise ProtocolViolation(f"a message of {len(frames)} parts")
    try:
        _, parts = session.feed_identities(frames)
        if any(len(part) > MAX_HEADER_BYTES for part in parts[1:4]):
            raise ProtocolViolation("a header that is too long")
        is_costly = _is_costly(parts[4])
        raw = session.deserialize(parts, content=not is_costly)
        kind, parent = raw["msg_type"], raw["parent_header"]
        content = {"omitted": len(parts[4])} if is_costly else raw["content"]
        parent_id = parent.get("msg_id", "") if isinstance(parent, dict) else ""
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError, OverflowError, Warning) as exc:
        raise ProtocolViolation(f"a malformed message ({type(exc).__name__})") from exc
    if not isinstance(kind, str) or not isinstance(content, dict):
        raise ProtocolViolation("a message without a type or content")
    return Message(kind, parent_id if isinstance(parent_id, str) else "", content)


def _is_costly(packed: bytes) -> bool:
    """Whether reading a content would cost more memory and time than it can be worth."""
    return len(packed) > MAX_MARKS and sum(map(packed.count, (b",", b"[", b"{"))) > MAX_MARKS


def outputs_of(message: Message, limits: Limits) -> Iterator[Output]:
    """What an iopub message shows the reader: nothing, one output, or one with notes of what it had to lose."""
    content = message.content
    match message.kind:
        case "stream" | "execute_result" | "display_data" | "update_display_data" if content.keys() == {"omitted"}:
            yield Omitted(f"a message of {content['omitted']:,} bytes that would be costly to read")
        case "stream":
            yield Stream("stderr" if content.get("name") == "stderr" else "stdout", _text(content.get("text")))
        case "execute_result":
            data, notes = read_bundle(content.get("data"), limits)
            yield Result(data)
            yield from notes
        case "display_data" | "update_display_data":
            data, notes = read_bundle(content.get("data"), limits)
            yield Display(data, _display_id(content), message.kind == "update_display_data")
            yield from notes
        case "clear_output":
            yield Cleared(content.get("wait") is True)
        case "error":
            yield read_error(content, limits)


def read_error(content: dict[str, Any], limits: Limits) -> Error:
    """The error of an `error` message or of an execute_reply."""
    lines = content.get("traceback")
    lines = [_text(line) for line in lines[:MAX_TRACEBACK_LINES]] if isinstance(lines, list) else []
    limit = limits.max_error_chars
    return Error(
        name=shorten(_text(content.get("ename")), 200) or "Error",
        value=shorten(_text(content.get("evalue")), limit),
        traceback=shorten("\n".join(lines), limit),
    )


def read_bundle(data: object, limits: Limits) -> tuple[dict[str, Any], list[Omitted]]:
    """A MIME bundle as values, with a note for each part that could not be kept."""
    kept: dict[str, Any] = {}
    notes: list[Omitted] = []
    for mime, value in list(data.items())[:MAX_MIME_TYPES] if isinstance(data, dict) else ():
        if not isinstance(mime, str) or not _MIME_TYPE.fullmatch(mime):
            continue
        try:
            kept[mime] = _mime_value(mime, value, limits)
        except PictureRefused as exc:
            notes.append(Omitted(f"a picture ({exc})"))
        except _TooLong as exc:
            notes.append(Omitted(f"{mime} of {exc}"))
    return kept, notes


class _TooLong(ValueError):
    pass


def _mime_value(mime: str, value: object, limits: Limits) -> Any:
    if mime in ("image/png", "image/jpeg"):
        return check_picture(mime, value, limits)
    if _JSON_TYPE.fullmatch(mime):
        value = _neutral(value, MAX_JSON_DEPTH, iter(range(MAX_JSON_NODES)))
        if (size := len(repr(value))) > limits.max_rich_chars:
            raise _TooLong(f"{size:,} characters")
        return value
    text = _text(value)
    if mime == "text/plain":
        return shorten(text, limits.max_text_chars)
    if len(text) > limits.max_rich_chars:
        raise _TooLong(f"{len(text):,} characters")
    return text


def _neutral(value: object, depth: int, nodes: Iterator[int]) -> object:
    """A JSON value with all its text neutralised; `nodes` counts its parts down."""
    if depth == 0:
        raise _TooLong(f"more than {MAX_JSON_DEPTH} levels")
    if next(nodes, None) is None:
        raise _TooLong(f"more than {MAX_JSON_NODES:,} parts")
    match value:
        case str():
            return neutralise(value)
        case list():
            return [_neutral(item, depth - 1, nodes) for item in value]
        case dict():
            return {neutralise(key): _neutral(item, depth - 1, nodes) for key, item in value.items()}
    return value


def _display_id(content: dict[str, Any]) -> str | None:
    transient = content.get("transient")
    found = transient.get("display_id") if isinstance(transient, dict) else None
    return shorten(neutralise(found), 200) if isinstance(found, str) else None


def _text(value: object) -> str:
    if isinstance(value, list):  # multi-line strings may come as lists
        value = "".join(part for part in value if isinstance(part, str))
    return neutralise(value) if isinstance(value, str) else ""
