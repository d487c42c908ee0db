"""Read the server name in a TLS ClientHello (RFC 8446, 4.1.2; RFC 6066, 3; RFC 8446, 5.1 for its records).

The message may come in any pieces and records, up to a limit; each byte is read once. It is rejected if it is
incomplete, names no server or several, or hides the name (ECH, ESNI), since then the server is not known. Early data is
rejected, too: after it a second ClientHello could name another server.
"""

from __future__ import annotations

from agent_tools.runtime.egress.refusals import EgressRefused

HANDSHAKE, CHANGE_CIPHER_SPEC = 22, 20  # types of records
CLIENT_HELLO = 1
SERVER_NAME, EARLY_DATA = 0, 42
HIDDEN_NAMES = frozenset((0xFE0D, 0xFD00, 0xFFCE, 0xFF02, *range(0xFE08, 0xFE0D)))
"""ECH and its outer extensions, and what drafts of it used: ESNI, and ECH under earlier numbers."""
HOST_NAME = 0
RECORD_HEAD, MESSAGE_HEAD = 5, 4
MAX_RECORD = 1 << 14
NOT_TLS = 495  # the recorded status; the client, already in a tunnel, does not get it
UNRECOGNIZED_NAME = bytes((21, 3, 3, 0, 2, 2, 112))
"""The fatal alert for it (RFC 8446, 6.2)."""


class HelloReader:
    """Reads one ClientHello. `data` has all received bytes: the message, and from `end` on the bytes after it."""

    def __init__(self, most: int) -> None:
        self.data = bytearray()
        self._most = most
        self._message = bytearray()
        self.end = 0  # the next record's place in data

    def feed(self, data: bytes) -> str | None:
        """Add bytes; return the server name once the message is complete, else None.

        Raises:
            EgressRefused: it is not a ClientHello that names one server.
        """
        self.data += data
        while not self._is_whole() and (record := self._next_record()) is not None:
            self._message += record
        if self._is_whole():
            return _server_name(bytes(self._message))
        if len(self.data) > self._most:
            raise refused("its TLS greeting is too long")
        return None

    def _next_record(self) -> bytes | None:
        """Return the content of the next record; None while it is incomplete."""
        head = bytes(self.data[self.end : self.end + RECORD_HEAD])
        if head[:1] not in (b"", bytes((HANDSHAKE,))) or head[1:2] not in (b"", b"\3"):
            raise refused("it does not begin with a TLS greeting")
        if len(head) < RECORD_HEAD:
            return None
        length = int.from_bytes(head[3:5], "big")
        if not 0 < length <= MAX_RECORD:
            raise refused("its TLS greeting is malformed")
        end = self.end + RECORD_HEAD + length
        if len(self.data) < end:
            return None
        record, self.end = bytes(self.data[self.end + RECORD_HEAD : end]), end
        return record

    def _is_whole(self) -> bool:
        """Return whether the message is complete; reject a message of another type or of too large a size."""
        if self._message and self._message[0] != CLIENT_HELLO:
            raise refused("it does not begin with a TLS greeting")
        if len(self._message) < MESSAGE_HEAD:
            return False
        size = MESSAGE_HEAD + int.from_bytes(self._message[1:4], "big")
        if size > self._most:
            raise refused("its TLS greeting is too long")
        if len(self._message) > size:
            raise refused("its TLS greeting is malformed")
        return len(self._message) == size


class SecondHello:
    """Checks that a second ClientHello, which a server may request, names the same server.

    It reads up to the first record that is neither a ClientHello nor the ChangeCipherSpec that may precede it.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._buffer = bytearray()
        self._reader: HelloReader | None = None
        self.is_over = False

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that may be forwarded so far.

        Raises:
            EgressRefused: a second ClientHello names another server.
        """
        if self.is_over:
            return data
        self._buffer += data
        passed = bytearray()
        while not self.is_over and (piece := self._look()):
            passed += piece
        if self.is_over:
            passed += self._buffer
            self._buffer.clear()
        return bytes(passed)

    def _look(self) -> bytes:
        """Return the next bytes that may be forwarded; b'' while this is not known."""
        if len(self._buffer) < RECORD_HEAD + 1:
            self.is_over = bool(self._buffer) and self._buffer[0] not in (HANDSHAKE, CHANGE_CIPHER_SPEC)
            return b""
        size = RECORD_HEAD + int.from_bytes(self._buffer[3:5], "big")
        if self._buffer[0] == CHANGE_CIPHER_SPEC and size == RECORD_HEAD + 1:
            return self._pass(size)
        if self._buffer[0] != HANDSHAKE or self._buffer[RECORD_HEAD] != CLIENT_HELLO:
            self.is_over = True
            return b""
        return self._look_at_greeting()

    def _look_at_greeting(self) -> bytes:
        reader = self._reader = self._reader or HelloReader(self._most)
        name = reader.feed(bytes(self._buffer[len(reader.data) :]))
        if name is None:
            return b""
        if name != self._name:
            raise refused("its second TLS greeting names another server")
        self.is_over = True
        return b""

    def _pass(self, size: int) -> bytes:
        piece = bytes(self._buffer[:size])
        del self._buffer[:size]
        return piece


class _Fields:
    """The unread rest of a message; reading past its end raises EgressRefused."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def __bool__(self) -> bool:
        return bool(self._data)

    def read_bytes(self, size: int) -> bytes:
        if len(self._data) < size:
            raise refused("its TLS greeting is malformed")
        taken, self._data = bytes(self._data[:size]), self._data[size:]
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.read_bytes(size), "big")

    def block(self, size_of_length: int) -> bytes:
        return self.read_bytes(self.number(size_of_length))


def refused(why: str) -> EgressRefused:
    """Return the error for a connection that is not TLS to the requested server."""
    return EgressRefused(NOT_TLS, why, f"The connection was cut: {why}, so the server that it asks for is not known.")


def _server_name(message: bytes) -> str:
    """Return the one server name in a complete ClientHello."""
    extensions = _extensions(message)
    if HIDDEN_NAMES & extensions.keys():
        raise refused("its TLS greeting hides its name (ECH)")
    if EARLY_DATA in extensions:
        raise refused("its TLS greeting comes with early data")
    if SERVER_NAME not in extensions:
        raise refused("its TLS greeting names no server (SNI)")
    names = _Fields(extensions[SERVER_NAME])
    entries = _Fields(names.block(2))
    kind, name = entries.number(1), entries.block(2)
    if names or entries or kind != HOST_NAME or not name.isascii():
        raise refused("its TLS greeting names no single server")
    return name.decode("ascii").lower()


def _extensions(message: bytes) -> dict[int, bytes]:
    """Return the extensions of a ClientHello; each may occur only once."""
    fields = _Fields(message[MESSAGE_HEAD:])
    fields.read_bytes(2 + 32)  # legacy_version, random
    fields.block(1)  # legacy_session_id
    fields.block(2)  # cipher_suites
    fields.block(1)  # legacy_compression_methods
    found: dict[int, bytes] = {}
    if not fields:
        return found
    rest = _Fields(fields.block(2))
    if fields:
        raise refused("its TLS greeting is malformed")
    while rest:
        kind, content = rest.number(2), rest.block(2)
        if kind in found:
            raise refused("its TLS greeting is malformed")
        found[kind] = content
    return found
