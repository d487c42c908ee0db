"""Greetings of TLS clients, honest and otherwise."""

from __future__ import annotations

import contextlib
import ssl
import struct

Extension = tuple[int, bytes]


def honest(name: str | None) -> bytes:
    """The greeting that this Python's own TLS sends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    out = ssl.MemoryBIO()
    connection = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        connection.do_handshake()
    return out.read()


def server_name(*names: str, kind: int = 0) -> Extension:
    entries = b"".join(struct.pack(">BH", kind, len(name)) + name.encode() for name in names)
    return 0, struct.pack(">H", len(entries)) + entries


def message(*extensions: Extension) -> bytes:
    """A greeting as a handshake message, without its record."""
    block = b"".join(struct.pack(">HH", kind, len(content)) + content for kind, content in extensions)
    body = b"\3\3" + bytes(32) + b"\0" + b"\0\2\x13\1" + b"\1\0" + struct.pack(">H", len(block)) + block
    return b"\1" + len(body).to_bytes(3, "big") + body


def record(content: bytes, kind: int = 22) -> bytes:
    return bytes((kind, 3, 1)) + struct.pack(">H", len(content)) + content


def hello(*extensions: Extension) -> bytes:
    return record(message(*extensions))


def split(data: bytes, size: int) -> bytes:
    """A message in records of this size."""
    return b"".join(record(data[at : at + size]) for at in range(0, len(data), size))


NAME = "api.example.com"
ALPN = (16, b"\0\3\2h2")
NOTICE = record(b"\1", 20)
"""The notice that may stand before a second greeting."""
HOSTILE: dict[str, tuple[bytes, str]] = {
    "plain HTTP": (b"GET / HTTP/1.1\r\n\r\n", "does not begin with a TLS greeting"),
    "SSH": (b"SSH-2.0-x\r\n", "does not begin with a TLS greeting"),
    "an alert first": (record(b"\2\0", 21), "does not begin with a TLS greeting"),
    "SSL 2": (b"\x80\x2e\1\3\1", "does not begin with a TLS greeting"),
    "another message first": (record(b"\2" + bytes(8)), "does not begin with a TLS greeting"),
    "no name": (hello(ALPN), "names no server"),
    "no extensions": (record(b"\1\0\0\x29\3\3" + bytes(32) + b"\0\0\2\x13\1\1\0"), "names no server"),
    "two names in one": (hello(server_name(NAME, "evil.example")), "no single server"),
    "two names in two": (hello(server_name(NAME), server_name("evil.example")), "malformed"),
    "a name of another kind": (hello(server_name(NAME, kind=1)), "no single server"),
    "an empty list of names": (hello((0, b"\0\0")), "malformed"),
    "bytes after the names": (hello((0, server_name(NAME)[1] + b"x")), "no single server"),
    "a name beyond ASCII": (hello(server_name("bücher.de")), "no single server"),
    "an encrypted greeting": (hello(server_name(NAME), (0xFE0D, b"\0")), "ECH"),
    "the outside of an encrypted greeting": (hello(server_name(NAME), (0xFD00, b"")), "ECH"),
    **{
        f"an encrypted name of a draft ({number:#x})": (hello(server_name(NAME), (number, b"\0")), "ECH")
        for number in (0xFFCE, 0xFF02, 0xFE08, 0xFE09, 0xFE0A, 0xFE0B, 0xFE0C)
    },
    "early data": (hello(server_name(NAME), (42, b"")), "early data"),
    "an empty extension twice": (hello((23, b""), (23, b""), server_name(NAME)), "malformed"),
    "an extension that ends too late": (hello((0, b"\0\xff\0")), "malformed"),
    "bytes after the message": (record(message(server_name(NAME)) + b"\1"), "malformed"),
    "an empty record": (record(b"") + hello(server_name(NAME)), "malformed"),
    "a record that is too large": (b"\x16\3\1\xff\xff", "malformed"),
    "a message that is too large": (record(b"\1\1\0\0"), "too long"),
    "records without end": (b"".join(record(b"\1\0\x3f\xff"[n : n + 1] or b"x") for n in range(3000)), "too long"),
    "a session id that ends too late": (record(b"\1\0\0\x23\3\3" + bytes(32) + b"\xff"), "malformed"),
}
