"""Jupyter's messages as frames: those of clients are read, once their signature is right; those to clients are signed.

Format: https://jupyter-client.readthedocs.io/en/stable/messaging.html#the-wire-protocol
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jupyter_client.session import DELIM, Session

from agent_tools.errors import ProtocolViolation
from agent_tools.guest.wire.messages import MAX_PARTS, MIN_PARTS
from agent_tools.json_parts import has_more_parts
from agent_tools.limits import MIB

MAX_HEADER_BYTES = 64 * 1024  # of a header or a parent header
MAX_METADATA_BYTES = MIB  # a notebook names the cells that were deleted
MAX_IDENTITIES = 16  # frames before the delimiter
MAX_REQUEST_BYTES = 64 * MIB  # of one message
MAX_MARKS = 500_000  # commas and opening brackets of a content: each can become an object


class BadRequest(ProtocolViolation):
    """A client sent a malformed message, or one with a wrong signature."""


@dataclass(frozen=True)
class ClientRequest:
    """One message of a client."""

    channel: str
    identities: tuple[bytes, ...]
    kind: str
    id: str
    parts: tuple[bytes, ...]
    """Header, parent header, metadata and content as JSON objects; buffers."""
    content: Mapping[str, Any] = field(default_factory=dict)
    refusal: str = ""
    """Why only its header was read; '' if all of it was."""

    @property
    def header(self) -> bytes:
        """The header as the client wrote it."""
        return self.parts[0]

    @property
    def size(self) -> int:
        """Bytes of its parts."""
        return sum(map(len, self.parts))

    @property
    def reply_kind(self) -> str:
        """The type of the reply, '' for a message that gets none."""
        return self.kind.removesuffix("_request") + "_reply" if self.kind.endswith("_request") else ""


class SignedFrames:
    """Reads and writes the frames of one kernel's clients."""

    def __init__(self, key: bytes, scheme: str) -> None:
        self._session = Session(key=key, signature_scheme=scheme, username="kernel")

    def read(self, channel: str, frames: list[bytes]) -> ClientRequest:
        """Return the message of a client.

        Raises:
            BadRequest: it is malformed, or is not signed with the key.
        """
        try:
            place = frames.index(DELIM, 0, MAX_IDENTITIES + 1)
            identities, parts = frames[:place], frames[place + 1 :]
            if reason := _too_costly(parts):
                return self._unread(channel, tuple(identities), parts, reason)
            message = self._session.deserialize(parts)
            header, content = message["header"], message["content"]
            kind, id_ = header["msg_type"], header["msg_id"]
        except BadRequest:
            raise
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as exc:
            raise BadRequest(f"a malformed message ({type(exc).__name__}: {exc!s:.100})") from exc
        if not isinstance(kind, str) or not isinstance(id_, str) or not isinstance(content, dict):
            raise BadRequest("a message without a type, an id or a content")
        return ClientRequest(channel, tuple(identities), kind, id_, tuple(parts[1:]), content)

    def _unread(self, channel: str, identities: tuple[bytes, ...], parts: list[bytes], reason: str) -> ClientRequest:
        """Return a message with only its header parsed, since its sender waits for an answer.

        Raises:
            BadRequest: it is not signed with the key, or its header is too long, too.
        """
        if len(parts) <= MIN_PARTS or len(parts[1]) > MAX_HEADER_BYTES or not self._is_signed(parts):
            raise BadRequest(f"a message with {reason}")
        header = json.loads(parts[1])
        kind, id_ = header["msg_type"], header["msg_id"]
        if not isinstance(kind, str) or not isinstance(id_, str):
            raise BadRequest("a message without a type or an id")
        return ClientRequest(channel, identities, kind, id_, (parts[1], b"{}", b"{}", b"{}"), {}, f"It has {reason}.")

    def _is_signed(self, parts: list[bytes]) -> bool:
        return self._session.auth is None or hmac.compare_digest(self._session.sign(parts[1:5]), parts[0])

    def write(
        self,
        kind: str,
        parent: bytes,
        content: bytes | Mapping[str, Any],
        metadata: bytes = b"{}",
        buffers: Sequence[bytes] = (),
    ) -> list[bytes]:
        """Return the frames of a message of the kernel, without identities. `parent` is the header of its request."""
        header = self._session.pack(self._session.msg_header(kind))
        packed = content if isinstance(content, bytes) else json.dumps(content).encode()
        signed = [header, parent or b"{}", metadata, packed]
        return [DELIM, self._session.sign(signed), *signed, *buffers]


def _too_costly(parts: Sequence[bytes]) -> str:
    """Return why a message would cost too much to parse; '' if it would not."""
    if len(parts) - 1 > MAX_PARTS:
        return f"more than {MAX_PARTS} parts"
    if sum(map(len, parts)) > MAX_REQUEST_BYTES:
        return f"more than {MAX_REQUEST_BYTES:,} bytes"
    if any(len(part) > MAX_HEADER_BYTES for part in parts[1:3]) or len(b"".join(parts[3:4])) > MAX_METADATA_BYTES:
        return "a header, or metadata, that is too long"
    if has_more_parts(b"".join(parts[4:5]), MAX_MARKS):
        return f"more than {MAX_MARKS:,} commas and brackets"
    return ""
