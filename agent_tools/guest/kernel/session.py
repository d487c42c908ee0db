"""The kernel's session: makes and sends messages, each after the text that was printed before it.

Long values are cut before they are sent, so that honest code does not reach the host's limits. The host does not rely
on this and has its own limits.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from jupyter_client.jsonutil import json_default
from jupyter_client.session import Session, protocol_version

from ..wire.message_limits import MessageLimits
from ..wire.messages import IOPUB, MAX_PARTS, MIN_PARTS
from .message_writer import MessageWriter
from .streams import Header, UnsentText

MESSAGE_LIMITS = MessageLimits.pop_from(os.environ)
"""The limits of the host, read once, before any user code runs."""
MAX_MESSAGE_BYTES = MESSAGE_LIMITS.kernel * 3 // 4  # one message, all parts: the host counts a little more
MAX_MESSAGE_MARKS = 400_000  # commas and opening brackets of its content: what makes JSON expensive to read
MAX_TEXT_CHARS = 256 * 1024  # text/plain of a display or result, and one traceback
CAN_WAIT = frozenset(("status", "execute_reply"))  # until the next message, or the end of the request
PROGRESS = frozenset(("status", "execute_input"))  # tells how far a request has come
MAX_DEPTH = 100  # of what is in a message, before it is written as text
MAX_BUFFERS = MAX_PARTS - MIN_PARTS  # of one message; comms send them
_decode = json.JSONDecoder().decode
_encode = json.JSONEncoder(default=json_default, ensure_ascii=False, allow_nan=False).encode  # as in the stock session


def now() -> str:
    """Return the time as messages tell it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class ChannelNumber:
    """Stands for a socket in ipykernel's calls of `send`: the number of a channel."""

    def __init__(self, number: int) -> None:
        self.number = number


class WireSession(Session):
    """Jupyter's session over a message writer. Messages are unsigned: the one reader knows the sender."""

    def __init__(self, writer: MessageWriter, **kwargs: Any) -> None:
        super().__init__(packer="json", unpacker="json", key=b"", **kwargs)
        self._writer = writer
        self.unwatched: Header = {}
        """The request that is handled, if nobody watches its progress: what is in PROGRESS is not sent, and all that is
        shown meanwhile is this request's, as what asyncio tasks of earlier ones print."""
        self._parent: tuple[Any, bytes] = None, b""  # the latest parent header, and the same as JSON
        self.printed = UnsentText(writer.lock, self._publish)
        self.printed.await_room = writer.await_room
        self.printed.read_children = writer.pass_on

    @property
    def is_fork(self) -> bool:
        """True in a process that the code has forked from the kernel."""
        return self._writer.is_fork

    def send(
        self,
        stream: Any,
        msg_or_type: Any,
        content: Any = None,
        parent: Any = None,
        ident: Any = None,
        buffers: Any = None,
        track: bool = False,
        header: Any = None,
        metadata: Any = None,
    ) -> Any:
        """Send a message on the channel that stands for a stream; return it as it was made."""
        message = msg_or_type
        if self.unwatched and isinstance(message, str) and message in PROGRESS:
            return None
        if not isinstance(message, dict):
            message = self.msg(msg_or_type, content=content, parent=parent, header=header, metadata=metadata)
        if self.unwatched:
            message = {**message, "parent_header": self.unwatched["header"]}
        parts = self.parts_of(message)
        parts += _fitting(buffers or (), MAX_MESSAGE_BYTES - sum(map(len, parts)))
        can_wait = message["msg_type"] in CAN_WAIT
        with self._writer.lock:
            self.printed.send(can_wait=can_wait)
            self._writer.send(stream.number, parts, can_wait=can_wait)
        self._writer.await_room()
        return message

    def msg_header(self, msg_type: str) -> dict[str, Any]:
        """Return the header of a new message, with its time as text."""
        return {
            "msg_id": self.msg_id,
            "msg_type": msg_type,
            "username": self.username,
            "session": self.session,
            "date": now(),
            "version": protocol_version,
        }

    def flush(self) -> None:
        """Send all that was printed, and the messages that could wait."""
        with self._writer.lock:
            self.printed.send(can_wait=True)
            self._writer.flush()
        self._writer.await_room()

    def parts_of(self, message: dict[str, Any]) -> list[bytes]:
        """Return a message as its four parts; one that is too large is replaced by a note."""
        content = message.get("content")
        if isinstance(content, dict):
            _shorten(content)
        try:
            parts = self._packed(message)
        except UnicodeEncodeError:
            parts = self._packed({**message, "content": _encodable(content)})
        if _is_too_large(parts):
            note = f"[{_describe(content)} left out: {sum(map(len, parts)):,} bytes are too much for one message]"
            content = _replacement(content if isinstance(content, dict) else {}, note)
            parts = self._packed({**message, "content": content, "metadata": {}})
        return parts

    def read(self, parts: list[bytes]) -> dict[str, Any]:
        """Return a request as ipykernel knows it."""
        header, parent, metadata, content = (_decode(part.decode("utf-8", "surrogatepass")) for part in parts[:4])
        return {
            "header": header,
            "msg_id": header["msg_id"],
            "msg_type": header["msg_type"],
            "parent_header": parent,
            "metadata": metadata,
            "content": content,
            "buffers": parts[4:],
        }

    def _packed(self, message: dict[str, Any]) -> list[bytes]:
        parent, known = message["parent_header"], self._parent
        if parent is not known[0]:  # all messages of a request have the same
            self._parent = known = parent, self._json(parent)
        metadata, content = message["metadata"], message.get("content")
        return [self._json(message["header"]), known[1], self._json(metadata), self._pack_content(content)]

    def _pack_content(self, content: Any) -> bytes:
        """Return a content as JSON; text is taken to be JSON already, as the stock session takes it."""
        if isinstance(content, (bytes, str)):
            return content.encode() if isinstance(content, str) else content
        return self._json(content)

    def _json(self, value: Any) -> bytes:
        try:
            return _encode(value).encode("utf-8", "surrogateescape") if value else b"{}"
        except (TypeError, ValueError, RecursionError):
            return _encode(_plain(value, MAX_DEPTH)).encode("utf-8", "surrogateescape")

    def _publish(self, name: str, parent: Header, text: str, can_wait: bool) -> None:
        """Send printed text, without waiting until it is written."""
        message = self.msg("stream", {"name": name, "text": text}, parent=self.unwatched or parent)
        self._writer.send(IOPUB, self.parts_of(message), can_wait=can_wait)


def _fitting(buffers: Sequence[Any], room: int) -> list[bytes]:
    """Return the buffers of a message.

    Raises:
        ValueError: they are too many or too large for one.
    """
    size = sum(memoryview(each).nbytes for each in buffers)
    if len(buffers) > MAX_BUFFERS or size > room:
        amount = f"{len(buffers)} buffers of {size:,} bytes"
        raise ValueError(f"{amount} are too much for one message: at most {MAX_BUFFERS}, of {room:,} bytes.")
    return [bytes(each) for each in buffers]


def _plain(value: Any, depth: int) -> Any:
    """Return a value as JSON has it: null for NaN and infinity, texts for keys, and for what JSON does not know."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping) and depth:
        return {key if isinstance(key, str) else str(key): _plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)) and depth:
        return [_plain(item, depth - 1) for item in value]
    try:
        return _plain(json_default(value), depth - 1) if depth else str(value)
    except TypeError:
        return str(value)


def _encodable(value: Any) -> Any:
    """The same value, with lone surrogates, which UTF-8 does not have, written as escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, (list, tuple)) else value


def _is_too_large(parts: list[bytes]) -> bool:
    if sum(map(len, parts)) > MAX_MESSAGE_BYTES:
        return True
    content = parts[3]
    return len(content) > MAX_MESSAGE_MARKS and sum(map(content.count, (b",", b"[", b"{"))) > MAX_MESSAGE_MARKS


def _describe(content: Any) -> str:
    data = content.get("data") if isinstance(content, dict) else None
    return " and ".join(data) if isinstance(data, dict) and data else "a message"


def _replacement(content: Any, note: str) -> dict[str, Any]:
    """The same content with its large parts replaced."""
    small: dict[str, Any] = {
        key: value for key, value in content.items() if isinstance(value, (int, float, bool, type(None)))
    }
    for key in ("status", "name", "ename", "evalue", "execution_state"):
        if isinstance(content.get(key), str):
            small[key] = content[key][:1000]
    if "data" in content:
        small.update(data={"text/plain": note}, metadata={}, transient=content.get("transient", {}))
    if "text" in content:
        small["text"] = note
    if "traceback" in content:
        small["traceback"] = [note]
    return small


def _shorten(content: dict[str, Any]) -> None:
    data = content.get("data")
    if isinstance(data, dict) and isinstance(data.get("text/plain"), str):
        content["data"] = {**data, "text/plain": _cut(data["text/plain"])}
    lines = content.get("traceback")
    if isinstance(lines, list) and sum(map(len, map(str, lines))) > MAX_TEXT_CHARS:
        content["traceback"] = [_cut("\n".join(map(str, lines)))]
    if isinstance(content.get("evalue"), str):
        content["evalue"] = _cut(content["evalue"])


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT_CHARS:
        return text
    half = MAX_TEXT_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"
