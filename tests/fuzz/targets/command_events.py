"""What is said of a command by whoever runs it: frames as they are, at once or in pieces.

The first byte of the input is the size of a piece, 0 for all at once (see pieces.py); the rest is what is sent.
"""

from __future__ import annotations

import socket

from agent_tools.guest.wire import commands as wire
from agent_tools.guest.wire.commands import WINDOW, CommandEnded, CommandPrinted, Spec, Started, Taken
from agent_tools.guest.wire.framing import HEADER, pack
from agent_tools.runtime.commands.process import Process
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target
from tests.fuzz.pieces import pieces_of

SPEC = Spec(("program", "argument"), "", {}, 60.0, 1.0, has_stdin=True)
MOST = 4_096  # bytes kept of each stream
STDIN = bytes(3 * WINDOW)


def drive(parts: Parts) -> None:
    """Follow a command to its end: what is kept is bounded, what is left out is counted, and it is over after all."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        process = Process(ours, SPEC, MOST, STDIN)
        for part in parts:
            _say(theirs, bytes(part), process)
        theirs.close()
        for _ in range(3):
            process.advance()
    result = process.result()
    assert process.is_over, "it goes on for ever"
    assert 0 <= result.exit_code <= 128 + 255
    assert len(result.stdout) <= MOST
    assert len(result.stderr) <= MOST + 100
    assert result.omitted_stdout >= 0
    assert process.read().cursor == (result.omitted_stdout + len(result.stdout), process.read().cursor.stderr)


def _say(guest: socket.socket, data: bytes, process: Process) -> None:
    """Send it as far as it is read, and drop what the host says."""
    view = memoryview(data)
    while view and not process.is_over:
        try:
            view = view[guest.send(view) :]
        except BlockingIOError:
            pass
        except OSError:
            return
        process.advance()
        try:
            while guest.recv(1 << 20):
                pass
        except OSError:
            pass


TARGET = Target(
    drive,
    pieces_of,
    words=(
        wire.write(Started(7)),
        wire.write(Taken(65_536)),
        wire.write(Taken(2**31 - 1)),
        wire.write(CommandPrinted("stdout", b"a")),
        wire.write(CommandPrinted("stderr", b"b" * 100)),
        wire.write(CommandPrinted("stdout", b"")),
        wire.write(CommandEnded("code", 3)),
        wire.write(CommandEnded("signal", 9, True)),
        wire.write(CommandEnded("no_folder", 255)),
        pack(wire.LINE, b"command_ended code 256 0"),
        HEADER.pack(wire.STDOUT, wire.MAX_FRAME),
        b"\xff" * 4,
        unfold.repeat(9, 12),
        unfold.repeat(1, 12),
    ),
)
