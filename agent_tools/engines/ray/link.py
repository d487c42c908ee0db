"""The connection between a caller and a node: one for each sandbox, whose stdin and stdout it becomes.

    caller -> node   the token (TOKEN_BYTES, ASCII), then one request: a length (u32) and JSON
    node -> caller   empty messages while it works, then one answer: a length (u32) and JSON
    both ways        after the answer to `start`, the bytes of the sandbox's stdin and stdout until one side closes

It is TLS 1.3. A node makes a certificate for itself when it starts, and callers trust this one alone. The end of the
connection ends the sandbox. A close without TLS's goodbye means that the other process, or its machine, is gone.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import secrets
import socket
import ssl
import struct
import tempfile
import time
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from agent_tools.engines.engine import StreamLost
from agent_tools.limits import KIB, MIB

TOKEN_BYTES = 64
MAX_REQUEST = MIB  # bytes: the environment of a sandbox is the largest part
MAX_ANSWER = 64 * KIB  # bytes
GREETING_SECONDS = 10.0  # to connect, to agree on TLS, and to send the token and the request
BEAT_SECONDS = 5.0  # between two empty messages of a node that works
SILENCE_SECONDS = 30.0  # without a message or an acknowledged byte, after which the other machine is gone
READ_SIZE = 256 * KIB
MOST_SENT = 64 * KIB  # of one piece, so that a retry sends the same bytes, as TLS wants
_LENGTH = struct.Struct(">I")
_LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


# The key, the certificate and the token of a node.


def new_token() -> str:
    """Return a token that cannot be guessed."""
    return secrets.token_hex(TOKEN_BYTES // 2)


def serving_tls() -> tuple[ssl.SSLContext, str]:
    """Return the TLS settings of a new node, and its certificate as PEM. The key stays in this process."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "agent-tools node")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=365))  # clocks differ, and it lasts as long as its process
        .not_valid_after(now + datetime.timedelta(days=3650))
        .sign(key, hashes.SHA256())
    )
    certificate = made.public_bytes(Encoding.PEM)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    with tempfile.NamedTemporaryFile(prefix="agent-tools-") as file:  # the ssl module reads keys from files only
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + certificate)
        file.flush()
        context.load_cert_chain(file.name)
    return context, certificate.decode()


def calling_tls(certificate: str) -> ssl.SSLContext:
    """Return TLS settings that trust this one certificate. Raises OSError if it is none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate itself is known
    context.load_verify_locations(cadata=certificate)
    return context


def prepare(connection: socket.socket) -> None:
    """Send small frames at once, and notice a machine that is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if option := getattr(socket, name, None):  # macOS lacks the first
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
    if option := getattr(socket, "TCP_USER_TIMEOUT", None):
        connection.setsockopt(socket.IPPROTO_TCP, option, int(SILENCE_SECONDS * 1000))


# Messages before the stream. They are read to the byte, since a sandbox's output follows.


def send_message(connection: socket.socket, message: dict[str, Any] | None) -> None:
    """Send a message; an empty one for None."""
    data = b"" if message is None else json.dumps(message).encode()
    connection.sendall(_LENGTH.pack(len(data)) + data)


def read_message(connection: socket.socket, most: int, deadline: float) -> dict[str, Any] | None:
    """Read a message until a deadline (monotonic seconds); None for an empty one.

    Raises:
        OSError: it does not come in time, is too large, or is no JSON object.
    """
    (length,) = _LENGTH.unpack(read_exactly(connection, _LENGTH.size, deadline))
    if length > most:
        raise OSError(f"a message of {length:,} bytes is over the limit of {most:,}")
    if not length:
        return None
    try:
        message = json.loads(read_exactly(connection, length, deadline))
    except (ValueError, RecursionError) as exc:
        raise OSError("a message is not JSON") from exc
    if not isinstance(message, dict):
        raise OSError("a message is not a JSON object")
    return message


def read_exactly(connection: socket.socket, count: int, deadline: float) -> bytes:
    """Read so many bytes until a deadline. Raises OSError."""
    found = bytearray()
    while len(found) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        connection.settimeout(left)
        piece = connection.recv(count - len(found))
        if not piece:
            raise ConnectionResetError("the connection was closed")
        found += piece
    return bytes(found)


# The stream.


class LinkStdio:
    """Implements the Stdio protocol on a TLS connection, which it owns. `peer` names the other side in errors."""

    def __init__(self, connection: ssl.SSLSocket, peer: str) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._peer = peer
        self._is_hung_up = False
        self.has_ended = False
        """True once the stream has ended, in any way."""

    def fileno(self) -> int:
        """Return the descriptor to poll; -1 once closed."""
        return self._connection.fileno()

    def writer(self) -> int:
        """Return the same descriptor."""
        return self._connection.fileno()

    def receive(self) -> bytes | None:
        """Return received bytes; b'' at the end, None if there are none yet.

        Raises:
            StreamLost: the other side is gone without a goodbye.
        """
        try:
            data = self._connection.recv(READ_SIZE)
        except _LATER:
            return None
        except OSError as exc:
            self.has_ended = True
            if self._is_hung_up:
                return b""
            raise self._lost() from exc
        self.has_ended = self.has_ended or not data
        return data

    def send(self, data: bytes | bytearray) -> int:
        """Send bytes without waiting; return how many were sent. Raises StreamLost."""
        try:
            return self._connection.send(bytes(data[:MOST_SENT]))
        except _LATER:
            return 0
        except OSError as exc:
            raise self._lost() from exc

    def _lost(self) -> StreamLost:
        return StreamLost(f"the connection to {self._peer} was lost")

    def hang_up(self) -> None:
        """End the stream, so that its reader and the other side see its end. Any thread may call it."""
        self._is_hung_up = True
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)  # not TLS's, which another thread may be using

    def say_goodbye(self) -> None:
        """Tell the other side that nothing more comes."""
        with contextlib.suppress(OSError, ValueError):
            self._connection.unwrap()

    def close(self) -> None:
        """Close it."""
        self._connection.close()
