"""Messages of a kernel that sends what it likes: read, made into outputs, kept within a call's limits.

The input is a byte for the type, and programs (see unfold.py) for content, metadata, parent and header, with MARK
between them; `R` as first byte: the parts themselves.
"""

from __future__ import annotations

from typing import Any

from agent_tools.errors import ProtocolViolation
from agent_tools.guest.wire.framing import FrameError, pack_parts
from agent_tools.guest.wire.messages import IOPUB, MessageReader
from agent_tools.limits import Limits
from agent_tools.results.execution import Execution
from agent_tools.runtime.kernel.output_limits import limited
from agent_tools.runtime.kernel.protocol import outputs_of, read_error, read_message
from agent_tools.tools.markdown import markdown
from tests.fuzz import unfold
from tests.fuzz.oracle import Bound, Parts, Target
from tests.settled import settle

MARK = b"<|>"
LIMITS = Limits()
KINDS = ("stream", "execute_result", "display_data", "update_display_data", "clear_output", "error", "status")
KINDS += ("execute_reply",)
WORDS = ("name", "text", "stdout", "stderr", "data", "metadata", "transient", "display_id", "text/plain", "text/html")
WORDS += (
    "image/png",
    "image/jpeg",
    "application/json",
    "application/vnd.x+json",
    "ename",
    "evalue",
    "traceback",
    "wait",
)
WORDS += ("msg_id", "msg_type", "date", "version", "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAAAAAA", "/9j/", "\x1b]0;")
WORDS += (
    "\x1b[31m",
    "\u202e",
    "\r",
    "\b",
    "\ud83d",
    "`",
    "\n",
    "image/svg+xml",
    "2020-01-01T00:00:00Z",
    "omitted",
    "unread",
)


def unfold_message(data: bytes) -> Parts:
    """One message as it is sent."""
    given = data[1:].split(MARK)
    if data[:1] == b"R":
        parts = [unfold.text(part) for part in given[:255]]
    else:
        kind = KINDS[(data[0] if data else 0) % len(KINDS)]
        content, metadata, parent, header = [*(unfold.value(part, WORDS) for part in given), *[None] * 4][:4]
        plain = {"msg_type": kind, "msg_id": "1", "date": "2020-01-01T00:00:00Z"}
        header = {**plain, **header} if isinstance(header, dict) else header or plain
        parts = [unfold.as_json(each) for each in (header, parent or {"msg_id": "0"}, metadata or {}, content)]
    return [pack_parts(IOPUB, parts)]


def show_message(parts: Parts) -> None:
    """Show it to a person and to a model."""
    reader = MessageReader(LIMITS.max_message_bytes)
    for each in parts:
        for channel, found in reader.feed(each):
            _show(channel, found)


def _show(channel: int, parts: list[bytes]) -> None:
    message = read_message(channel, parts)
    assert isinstance(message.parent_id, str)
    shown: list[Any] = [*limited(outputs_of(message, LIMITS), LIMITS), read_error(message.content)]
    answer = markdown(Execution(settle(shown)))
    answer.encode()
    assert "\x1b" not in answer
    assert len(answer) < 2 * LIMITS.max_text_chars + 4 * LIMITS.max_rich_chars


TARGET = Target(
    show_message,
    unfold_message,
    allowed=(ProtocolViolation, FrameError),
    bound=Bound(bytes_per_byte=64),
    vocabulary=WORDS,
    words=(MARK, b'{"name": "stdout", "text": "', b'{"data": {"image/png": "', unfold.repeat(1, 12)),
)
