"""A DNS server for the sandbox's own names: `localhost`, names below it, and the name of this machine.

Where there is no network an engine may leave /etc/hosts and /etc/resolv.conf empty. The C library then asks a server on
127.0.0.1. PID 1 binds the port, and a fork of it answers from the first question on (pid1/helper_processes.py). Every
other name fails as if no server had answered. Format: RFC 1035, 4.1.
"""

import contextlib
import os
import socket
import struct

HOSTS = "/etc/hosts"
PORT = 53
MAX_QUESTION = 512  # bytes of a datagram (RFC 1035, 2.3.4)
HEAD = struct.Struct(">6H")  # number, flags, and the count of questions, answers, authorities, additions
IS_ANSWER, ANSWERED, NOT_LOOKED_UP = 0x8000, 0x8580, 0x8182
ADDRESS, INTERNET = 1, 1
SECONDS = 60
LOOPBACK = b"\xc0\x0c" + struct.pack(">HHIH", ADDRESS, INTERNET, SECONDS, 4) + bytes((127, 0, 0, 1))


def listen() -> socket.socket | None:
    """Return a socket for questions; None where the engine names localhost, or the port cannot be bound."""
    with contextlib.suppress(OSError), open(HOSTS, encoding="utf-8", errors="replace") as hosts:
        if os.getpid() != 1 or "localhost" in hosts.read().split():
            return None
    try:
        port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    except OSError:  # a profile without sockets of the internet
        return None
    try:
        port.bind(("127.0.0.1", PORT))
    except OSError:
        port.close()
        return None
    return port


def serve(port: socket.socket) -> None:
    """Answer questions without end."""
    own = socket.gethostname().lower()
    while True:
        question, asker = port.recvfrom(MAX_QUESTION)
        said = answer(question, own)
        if said:
            with contextlib.suppress(OSError):
                port.sendto(said, asker)


def answer(question: bytes, own: str) -> bytes | None:
    """Return the answer to one question; None for malformed ones. `own` is the name of this machine."""
    end = _end_of_name(question)
    if end is None or len(question) < end + 4:
        return None
    number, flags, count, *_ = HEAD.unpack_from(question)
    if flags & IS_ANSWER or count != 1:
        return None
    asked = question[HEAD.size : end + 4]
    if not _is_ours(question[HEAD.size : end], own):
        return HEAD.pack(number, NOT_LOOKED_UP, 1, 0, 0, 0) + asked
    has_address = struct.unpack_from(">HH", question, end) == (ADDRESS, INTERNET)
    return HEAD.pack(number, ANSWERED, 1, has_address, 0, 0) + asked + LOOPBACK * has_address


def _end_of_name(question: bytes) -> int | None:
    """Return the place after a question's name, which is labels with their lengths, the last of them empty."""
    place = HEAD.size
    while place < len(question):
        length = question[place]
        place += 1 + length
        if not length:
            return place
        if length > 63:
            return None
    return None


def _is_ours(name: bytes, own: str) -> bool:
    """Return whether a name in a question's form stands for this machine."""
    lower = name.lower()
    if lower.endswith(b"\x09localhost\0"):
        return True
    return bool(own) and lower == bytes((len(own),)) + own.encode() + b"\0"
