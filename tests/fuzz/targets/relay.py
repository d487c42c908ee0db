"""A sandbox's stdout, as the engine frames it: carried to sockets by a relay, and its words heard over a lifeline.

The input is payloads with MARK between them, the first byte of each its channel; `R` as first byte: the
bytes themselves.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time

from agent_tools.engines.docker.attached_stdio import AttachedStdio
from agent_tools.guest.wire.lines import MAX_LINE, MAX_NUMBER
from agent_tools.guest.wire.words import Exit, Failed
from agent_tools.runtime.kernel.end_words import describe_exit
from agent_tools.runtime.transport.lifeline import Lifeline
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
    lifeline = Lifeline(far)
    with engine, kernel, contextlib.closing(relay), contextlib.closing(lifeline):
        relay.carry(1, end)
        for part in parts:
            with contextlib.suppress(OSError):  # it has hung up
                engine.sendall(part)
        with contextlib.suppress(OSError):
            engine.shutdown(socket.SHUT_WR)
        _hear(lifeline, time.monotonic() + SECONDS)


def _hear(lifeline: Lifeline, deadline: float) -> None:
    while not lifeline.has_ended:
        assert time.monotonic() < deadline, "the relay does not end"
        reports = lifeline.receive(16)
        if not reports:
            time.sleep(0.0001)
        for report in reports:
            if isinstance(report, Exit):
                assert max(report.generation, report.code, report.signal) < MAX_NUMBER
                describe_exit(report, 1).encode()
            if isinstance(report, Failed):
                assert len(report.traceback) < MAX_LINE


TARGET = Target(
    carry,
    unfold_stdout,
    words=(
        MARK,
        b"ready",
        b"exit 1 0 9 1 /tmp 0 0",
        b"failed 1 ",
        b" /tmp 0 0",
        b"\1\0\0\0\0\0\0\x10",
        unfold.repeat(1, 12),
    ),
    max_len=2048,
)
