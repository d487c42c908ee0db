"""The messages of a kernel as clients get them: nothing in them is trusted, and all of them are bounded.

Of a message of the kernel the content is passed on byte by byte, if it is JSON as every client reads it, and written
anew if it is not quite. Its header is made anew when it is passed on, and its parent is a request that came in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_tools.guest.wire.messages import IOPUB, SHELL, STDIN
from agent_tools.runtime.kernel.protocol import KernelMessage

PUBLISHED = frozenset(
    (
        *("stream", "display_data", "update_display_data", "execute_input", "execute_result", "error"),
        *("clear_output", "status", "comm_open", "comm_msg", "comm_close"),
    )
)
STATES = ("busy", "idle")
_UNUSUAL = re.compile(rb"NaN|Infinity|\\u[dD][89a-fA-F]")  # what JSON does not have, and halves of characters
_TOO_LARGE = "[left out: {:,} bytes that would be costly to read]"


@dataclass(frozen=True)
class ClientMessage:
    """One message for clients: its type, its content as JSON, and what goes with it."""

    kind: str
    content: bytes
    values: Mapping[str, Any]
    """The content as values."""
    metadata: bytes = b"{}"
    buffers: tuple[bytes, ...] = ()


def read_answer(message: KernelMessage, parts: list[bytes]) -> ClientMessage | None:
    """Return a message of the kernel in a safe form for clients; None for one that they may not get."""
    if not _is_known(message):
        return None
    if message.unread:
        return note(message.kind, _TOO_LARGE.format(message.unread))
    content = _as_json(parts[3], message.content)
    if content is None:
        return None
    metadata = _read_object(parts[2])
    return ClientMessage(message.kind, content, message.content, metadata, tuple(parts[4:]))


def _is_known(message: KernelMessage) -> bool:
    if message.channel == IOPUB:
        return message.kind in PUBLISHED and (
            message.kind != "status" or message.content.get("execution_state") in STATES
        )
    if message.channel == STDIN:
        return message.kind == "input_request"
    return message.channel == SHELL and message.kind.endswith("_reply")


def _as_json(packed: bytes, content: Mapping[str, Any]) -> bytes | None:
    """Return a content as strict JSON in UTF-8; None if it cannot be converted."""
    if not _UNUSUAL.search(packed) and _is_utf8(packed):
        return packed
    try:
        return strict_json(content)
    except ValueError:
        return None


def strict_json(value: object) -> bytes:
    """Return a JSON value in UTF-8, with '?' for halves of characters.

    Raises:
        ValueError: it has a number that JSON does not have.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


def _read_object(packed: bytes) -> bytes:
    """Return metadata as strict JSON in UTF-8; an empty object for anything else."""
    try:
        value = json.loads(packed)
        found = _as_json(packed, value) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        found = None
    return found or b"{}"


def _is_utf8(packed: bytes) -> bool:
    try:
        packed.decode()
    except UnicodeDecodeError:
        return False
    return True


def note(kind: str, text: str) -> ClientMessage | None:
    """Return a message that replaces an omitted one of this type, with the reason; None if no client would read it."""
    values: dict[str, Any]
    if kind == "stream":
        values = {"name": "stderr", "text": text + "\n"}
    elif kind in ("display_data", "update_display_data"):
        values = {"data": {"text/plain": text}, "metadata": {}, "transient": {}}
    elif kind == "execute_result":
        values = {"data": {"text/plain": text}, "metadata": {}, "execution_count": None}
    elif kind.endswith("_reply"):
        values = {"status": "error", "ename": "MessageTooLarge", "evalue": text, "traceback": [text]}
    else:
        return None
    return ClientMessage(kind, json.dumps(values).encode(), values)
