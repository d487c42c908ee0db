"""Parses Jupyter messages: raw parts to `KernelMessage`, and messages to `Output`. Pure; checks all input.

Format: https://jupyter-client.readthedocs.io/en/stable/messaging.html
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal

from agent_tools.errors import ProtocolViolation
from agent_tools.guest.wire.framing import pack_parts
from agent_tools.guest.wire.messages import SHELL
from agent_tools.json_parts import has_more_parts
from agent_tools.limits import MIB, Limits
from agent_tools.results.execution import Cleared, Display, Error, Notice, Omitted, Output, Result, Stream
from agent_tools.results.outputs import PICTURE_TYPES
from agent_tools.runtime.kernel.pictures import PictureRefused, check_picture
from agent_tools.text import neutralise, one_line, shorten

VERSION = "5.4"  # of the messaging protocol that the requests are written in
MAX_HEADER_BYTES = 64 * 1024  # of a header, a parent header or metadata
PARENTS = 32  # cached parent headers, one for each run
MAX_MARKS = 500_000  # commas and opening brackets of a content: each can become an object
MAX_DECODED_BYTES = 16 * MIB  # of a content with characters that take more than a byte each once decoded
MAX_TEXT_CHARS = MIB  # characters of a text that is checked at once; the guest's streams send fewer at a time
MAX_JSON_NODES = 50_000
MAX_MIME_TYPES = 16
MAX_JSON_DEPTH = 64
MAX_TRACEBACK_LINES = 2_000
MAX_ERROR_CHARS = 10_000  # of a traceback: the first and the last half
MAX_NOTE_CHARS = 60  # of a text that the guest has cut
MAX_NAMES, MAX_NAME_CHARS = 8, 80  # of what still runs after a cell
NO_CHECKPOINTS = " Until it ends, no checkpoint is taken: a crash would undo this call and those after it."
_from_json = json.JSONDecoder().decode
_SESSION = uuid.uuid4().hex
_MIME_TYPE = re.compile(r"[a-z]+/[A-Za-z0-9.+-]{1,80}")
_TWO_BYTES = re.compile(rb"[\xc4-\xf4]|\\u(?!00)")  # in UTF-8, or escaped
_FOUR_BYTES = re.compile(rb"[\xf0-\xf4]|\\u[dD][89abAB]")
_CUT = re.compile(r"\n\[\.\.\. (\d[\d,]{,20}) characters left out \.\.\.\]\n")  # the guest's, in the middle of a text
_to_json = json.JSONEncoder().encode
_JSON_TYPE = re.compile(r"application/(json|[A-Za-z0-9.-]+[+.]json)")  # Altair names a type with a dot


@dataclass(frozen=True)
class KernelMessage:
    """One message of the kernel: its type, the id of the request it belongs to ('' if none), its content."""

    channel: int
    kind: str
    parent_id: str
    content: dict[str, Any]
    unread: int = 0
    """Bytes of the content, if it was too costly to read."""


def execute_request(
    code: str, timeout: float, *, is_silent: bool, run: int = 0, is_urgent: bool = False
) -> tuple[str, bytes]:
    """Return the id and the bytes of a request to run code.

    Its metadata have the time limit in seconds, a flag that turns off `busy`, `idle` and the echo of the code, and the
    number of the run if a checkpoint should follow it. With an urgent request, pending checkpoints are taken regardless
    of their cost, and one after each run from now on.
    """
    content = {
        "code": code,
        "silent": is_silent,
        "store_history": not is_silent,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": False,
    }
    metadata: dict[str, object] = {"timeout": timeout}
    if run or is_urgent:
        metadata |= {"checkpoint": run, "is_urgent": is_urgent}
    return _request("execute_request", metadata, content)


def shutdown_request() -> tuple[str, bytes]:
    """Return the id and the bytes of a request to finish as a program does at its end."""
    return _request("shutdown_request", {}, {"restart": False, "silent": True})


def _request(kind: str, metadata: dict[str, object], content: dict[str, object]) -> tuple[str, bytes]:
    request_id = uuid.uuid4().hex
    header = {
        "msg_id": request_id,
        "msg_type": kind,
        "username": "",
        "session": _SESSION,
        "date": datetime.now(UTC).isoformat(),
        "version": VERSION,
    }
    metadata["is_unwatched"] = True
    return request_id, pack_parts(SHELL, [_to_json(part).encode() for part in (header, {}, metadata, content)])


def read_message(channel: int, parts: list[bytes]) -> KernelMessage:
    """Decode one message.

    Raises:
        ProtocolViolation: the parts are not a well-formed message.
    """
    if any(len(part) > MAX_HEADER_BYTES for part in parts[:3]):
        raise ProtocolViolation("a header that is too long")
    is_costly = _is_costly(parts[3])
    try:
        kind, parent_id = _read_object(parts[0])["msg_type"], _parent_id(parts[1])
        content = {} if is_costly else _read_object(parts[3])
    except (ValueError, KeyError, RecursionError) as exc:
        raise ProtocolViolation(f"a malformed message ({type(exc).__name__})") from exc
    if not isinstance(kind, str):
        raise ProtocolViolation("a message without a type")
    unread = len(parts[3]) if is_costly else 0
    return KernelMessage(channel, kind, parent_id, content, unread)


@lru_cache(PARENTS)
def _parent_id(packed: bytes) -> str:
    """Return the id in a parent header, or ''. It is cached, since all messages of a run have the same header.

    Raises:
        ValueError, RecursionError: it cannot be read.
    """
    parent = _read_json(packed)
    found = parent.get("msg_id") if isinstance(parent, dict) else ""
    return found if isinstance(found, str) else ""


def _read_object(packed: bytes) -> dict[str, Any]:
    """Parse a JSON object of the guest.

    Raises:
        ValueError: it is not an object.
    """
    value = _read_json(packed)
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value


def _read_json(packed: bytes) -> Any:
    return _from_json(packed.decode("utf-8", "replace"))


def _is_costly(packed: bytes) -> bool:
    """Return whether parsing a content would cost too much memory and time."""
    if has_more_parts(packed, MAX_MARKS):
        return True
    return len(packed) * 4 > MAX_DECODED_BYTES and _decoded_size(packed) > max(len(packed), MAX_DECODED_BYTES)


def _decoded_size(packed: bytes) -> int:
    """Return the bytes of the text in memory, where one wide character makes all the others as wide."""
    width = 4 if _FOUR_BYTES.search(packed) else 2 if _TWO_BYTES.search(packed) else 1
    return len(packed) * width


def outputs_of(message: KernelMessage, limits: Limits) -> Iterator[Output]:
    """Yield the output of an iopub message, if it has one, with notes of parts that were left out."""
    content = message.content
    match message.kind:
        case "stream" | "execute_result" | "display_data" | "update_display_data" if message.unread:
            yield Omitted(f"a message of {message.unread:,} bytes that would be costly to read")
        case "stream":
            yield from streams("stderr" if content.get("name") == "stderr" else "stdout", _joined(content.get("text")))
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
        case "error" if (error := read_error(content)) is not None:
            yield error


def streams(name: Literal["stdout", "stderr"], text: str) -> Iterator[Stream]:
    """Yield the text in pieces, so that a very long one is not copied; an escape across two pieces loses its ESC."""
    for start in range(0, max(1, len(text)), MAX_TEXT_CHARS):
        yield Stream(name, neutralise(text[start : start + MAX_TEXT_CHARS]))


def read_error(content: dict[str, Any]) -> Error | None:
    """Return the error of an `error` message or of an execute_reply; None for `sys.exit(0)`, which ends code well."""
    if content.get("ename") == "SystemExit" and content.get("evalue") in ("", "0", "None"):
        return None
    lines = content.get("traceback")
    limit = MAX_ERROR_CHARS
    lines = [_joined(line) for line in lines[:MAX_TRACEBACK_LINES]] if isinstance(lines, list) else []
    return Error(
        name=_text(content.get("ename"), 200) or "Error",
        value=_text(content.get("evalue"), limit),
        traceback=_text("\n".join(lines), limit),
    )


def read_still_running(content: dict[str, Any]) -> Notice | None:
    """Return the note of an execute_reply on what still runs; None if there is none."""
    found = content.get("still_running")
    names = found.get("names") if isinstance(found, dict) else None
    texts = [_text(name, MAX_NAME_CHARS) for name in names[:MAX_NAMES]] if isinstance(names, list) else []
    if not any(texts):
        return None
    blocks = found.get("blocks_checkpoints") is True if isinstance(found, dict) else False
    return Notice(f"Still running: {', '.join(map(one_line, texts))}.{NO_CHECKPOINTS if blocks else ''}")


def read_bundle(data: object, limits: Limits) -> tuple[dict[str, Any], list[Omitted]]:
    """Return a MIME bundle as values, with a note for each part that was left out."""
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
    if mime in PICTURE_TYPES:
        return check_picture(mime, value, limits)
    if _JSON_TYPE.fullmatch(mime):
        value = _neutral(value, MAX_JSON_DEPTH, iter(range(MAX_JSON_NODES)), limits.max_rich_chars)
        if (size := len(repr(value))) > limits.max_rich_chars:
            raise _TooLong(f"{size:,} characters")
        return value
    if mime == "text/plain":
        return _text(value, limits.max_text_chars)
    return _whole(_joined(value), limits.max_rich_chars)


def _neutral(value: object, depth: int, nodes: Iterator[int], max_chars: int) -> object:
    """Return a JSON value with all its text neutralised; `nodes` counts its parts down."""
    if depth == 0:
        raise _TooLong(f"more than {MAX_JSON_DEPTH} levels")
    if next(nodes, None) is None:
        raise _TooLong(f"more than {MAX_JSON_NODES:,} parts")
    match value:
        case str():
            return _whole(value, max_chars)
        case list():
            return [_neutral(item, depth - 1, nodes, max_chars) for item in value]
        case dict():
            return {_whole(key, max_chars): _neutral(item, depth - 1, nodes, max_chars) for key, item in value.items()}
    return value


def _display_id(content: dict[str, Any]) -> str | None:
    transient = content.get("transient")
    found = transient.get("display_id") if isinstance(transient, dict) else None
    return _text(found, 200) if isinstance(found, str) else None


def _whole(text: str, limit: int) -> str:
    """Return a text that must be complete; its length is checked first."""
    if len(text) > limit:
        raise _TooLong(f"{len(text):,} characters")
    return neutralise(text)


def _text(value: object, limit: int) -> str:
    """Return a text's first and last part, `limit` characters in all; huge texts are cut before they are copied."""
    text = _joined(value)
    note = _CUT.search(text, len(text) // 2 - MAX_NOTE_CHARS, len(text) // 2 + MAX_NOTE_CHARS)
    missing = int(note[1].replace(",", "")) - len(note[0]) if note else 0
    if len(text) > MAX_TEXT_CHARS:
        return neutralise(shorten(text, limit, missing))
    return shorten(neutralise(text), limit, missing)


def _joined(value: object) -> str:
    if isinstance(value, list):  # multi-line strings may come as lists
        return "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""
