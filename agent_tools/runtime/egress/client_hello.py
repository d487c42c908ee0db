"""The greeting of a TLS client: which server it names (RFC 8446, 4.1.2; RFC 6066, 3; RFC 8446, 5.1 for its records).

A greeting is read in whatever pieces and records it comes, up to a bound, each byte once. One that is not read to its
end, names no server or several, or hides its name (ECH, ESNI), is refused: then nobody knows whom it asks for. So is
early data, after which a second greeting could name another server.
"""

from __future__ import annotations

from agent_tools.runtime.egress.link import EgressRefused

HANDSHAKE, CHANGE_CIPHER_SPEC = 22, 20  # types of records
CLIENT_HELLO = 1
SERVER_NAME, EARLY_DATA = 0, 42
HIDDEN_NAMES = frozenset((0xFE0D, 0xFD00, 0xFFCE, 0xFF02, *range(0xFE08, 0xFE0D)))
"""ECH and its outer extensions, and what drafts of it used: ESNI, and ECH under earlier numbers."""
HOST_NAME = 0
RECORD_HEAD, MESSAGE_HEAD = 5, 4
MAX_RECORD = 1 << 14
NOT_TLS = 495  # the status of these refusals, which no client is told: it is in a tunnel by then
UNRECOGNIZED_NAME = bytes((21, 3, 3, 0, 2, 2, 112))
"""The fatal alert that says so (RFC 8446, 6.2)."""


class HelloReader:
    """Reads one greeting. `data` is all that came, word for word: the greeting, and from `end` on what follows it."""

    def __init__(self, most: int) -> None:
        self.data = bytearray()
        self._most = most
        self._message = bytearray()
        self.end = 0  # the next record's place in data

    def feed(self, data: bytes) -> str | None:
        """Take in bytes; return the name once the greeting is whole, None while it is not.

        Raises:
            EgressRefused: it is no greeting that names one server.
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
        """Return the content of the next record, None while it is not all there."""
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
        """Return whether the message is there; one that says too large a size, or another kind, is refused here."""
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
    """Watches what follows a greeting for a second one, which a server may ask for, and which must not name another.

    It looks until the first record that is neither a greeting nor the notice that may stand before it.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._held = bytearray()
        self._reader: HelloReader | None = None
        self.is_over = False

    def feed(self, data: bytes) -> bytes:
        """Return what may be sent on of the bytes so far.

        Raises:
            EgressRefused: a second greeting names another server.
        """
        if self.is_over:
            return data
        self._held += data
        passed = bytearray()
        while not self.is_over and (piece := self._look()):
            passed += piece
        if self.is_over:
            passed += self._held
            self._held.clear()
        return bytes(passed)

    def _look(self) -> bytes:
        """Return the next piece that may go on; b'' while that is not known."""
        if len(self._held) < RECORD_HEAD + 1:
            self.is_over = bool(self._held) and self._held[0] not in (HANDSHAKE, CHANGE_CIPHER_SPEC)
            return b""
        size = RECORD_HEAD + int.from_bytes(self._held[3:5], "big")
        if self._held[0] == CHANGE_CIPHER_SPEC and size == RECORD_HEAD + 1:
            return self._pass(size)
        if self._held[0] != HANDSHAKE or self._held[RECORD_HEAD] != CLIENT_HELLO:
            self.is_over = True
            return b""
        return self._look_at_greeting()

    def _look_at_greeting(self) -> bytes:
        reader = self._reader = self._reader or HelloReader(self._most)
        name = reader.feed(bytes(self._held[len(reader.data) :]))
        if name is None:
            return b""
        if name != self._name:
            raise refused("its second TLS greeting names another server")
        self.is_over = True
        return b""

    def _pass(self, size: int) -> bytes:
        piece = bytes(self._held[:size])
        del self._held[:size]
        return piece


class _Fields:
    """The rest of a message, still to be read; reading past its end is refused."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def __bool__(self) -> bool:
        return bool(self._data)

    def take(self, size: int) -> bytes:
        if len(self._data) < size:
            raise refused("its TLS greeting is malformed")
        taken, self._data = bytes(self._data[:size]), self._data[size:]
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def block(self, size_of_length: int) -> bytes:
        return self.take(self.number(size_of_length))


def refused(why: str) -> EgressRefused:
    """Return the refusal of a connection that is not TLS to the server it was asked for."""
    return EgressRefused(NOT_TLS, why, f"The connection was cut: {why}, so that nobody knows which server it asks for.")


def _server_name(message: bytes) -> str:
    """Return the one name in a whole greeting."""
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
    """Return the extensions of a greeting, of which each is there once."""
    fields = _Fields(message[MESSAGE_HEAD:])
    fields.take(2 + 32)  # legacy_version, random
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
