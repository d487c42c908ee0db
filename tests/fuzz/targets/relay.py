"""A sandbox's stdout, as the engine frames it: carried to sockets by a relay, and its words heard over a link.

The input is payloads with MARK between them, the first byte of each its channel; `R` as first byte: the
bytes themselves.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time

from agent_tools.runtime.transport.exits import describe_exit, refuse_end

from agent_tools.errors import KernelDied
from agent_tools.runtime.docker.stdio import AttachedStdio
from agent_tools.runtime.transport.lifeline import Link
from agent_tools.runtime.transport.relay import Relay
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target

MARK = b"<|>"
MOST = 64 * 1024  # what a socket takes without a reader
SECONDS = 20.0  # only a relay that never ends is given so long


def unfold_stdout(data: bytes) -> Parts:
    """What the engine sends."""
    if data[:1] == b"R":
        return [unfold.text(data[1:], MOST)]
    frames = b"".join(_frame(part[0], unfold.text(part[1:], MOST // 4)) for part in data[1:].split(MARK) if part)
    return [b"\1\0\0\0" + struct.pack(">I", len(frames[:MOST])) + frames[:MOST]]


def _frame(channel: int, payload: bytes) -> bytes:
    return struct.pack(">II", (0, 1, 2, 0x80000001)[channel % 4], len(payload)) + payload


def carry(parts: Parts) -> None:
    """Carry it, and hear what PID 1 says meanwhile."""
    ours, engine = socket.socketpair()
    far, near = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end, kernel = socket.socketpair()
    relay = Relay(AttachedStdio(ours, lambda: None), near)
    link = Link.of(far)
    with engine, kernel, contextlib.closing(relay), contextlib.closing(link):
        relay.carry(1, end)
        for part in parts:
            with contextlib.suppress(OSError):  # it has hung up
                engine.sendall(part)
        with contextlib.suppress(OSError):
            engine.shutdown(socket.SHUT_WR)
        _hear(link, time.monotonic() + SECONDS)


def _hear(link: Link, deadline: float) -> None:
    while link.is_open:
        assert time.monotonic() < deadline, "the relay does not end"
        words = link.receive()
        if words is None:
            time.sleep(0.0001)
            continue
        with contextlib.suppress(KernelDied):
            refuse_end(words, 1)
        describe_exit(" ".join(words[2:]), 1).encode()


TARGET = Target(
    carry,
    unfold_stdout,
    words=(
        MARK,
        b"ready",
        b"exit 1 signal 9 oom",
        b"failed 1 ",
        b"code 1",
        b"\1\0\0\0\0\0\0\x10",
        unfold.repeat(1, 12),
    ),
    max_len=2048,
)
