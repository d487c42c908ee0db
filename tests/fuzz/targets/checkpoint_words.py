"""Words of code's processes to PID 1, about checkpoints and forks: datagrams, some with a descriptor.

The input is words with MARK between them, each behind a letter: `D` comes with a descriptor, which is refused or
dropped, `B` is said to the supervisor's socket. `L` in a word stands for the number of a line that the kernel has got.
"""

from __future__ import annotations

import contextlib
import os
import socket

from agent_tools.guest.checkpoints.datagrams import MAX_BYTES
from agent_tools.guest.checkpoints.keeper import LINES_AHEAD, MAX_COPIES, MAX_MARKED, Keeper
from agent_tools.guest.pid1.supervisors import Supervisors
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target

MARK = b"<|>"
MOST = 200  # words
HELD = 4 + LINES_AHEAD + MAX_COPIES + MAX_MARKED  # descriptors of PID 1 and of the ends that it hands out


def unfold_words(data: bytes) -> Parts:
    """The words, one a part."""
    return unfold.text(data).split(MARK)[:MOST]


def hear(parts: Parts) -> None:
    """Say them all; whatever they are, PID 1 holds what it made itself, and no more."""
    before = _descriptors()
    keeper, branches = Keeper(), Supervisors()
    with keeper.connect() as kernel, branches.expect(1) as supervisor, contextlib.ExitStack() as lines:
        kernel.setblocking(False)
        supervisor.setblocking(False)
        mine = 0
        for part in parts:
            number = b"0"
            with contextlib.suppress(BlockingIOError):
                number, (line,), _, _ = socket.recv_fds(kernel, MAX_BYTES, 1)
                lines.callback(os.close, line)
                mine += 1
            end = supervisor if part[:1] == b"B" else kernel
            _say(end, part[1:].replace(b"L", number), has_descriptor=part[:1] == b"D")
            assert keeper.hear() in (0, os.getpid())
            keeper.mark(int(number))
            branches.hear(lambda pid: pid == os.getpid())
            assert _descriptors() - before - mine <= HELD
    keeper.drop()
    keeper.close()
    branches.close()
    assert _descriptors() <= before


def _say(end: socket.socket, word: bytes, *, has_descriptor: bool) -> None:
    with contextlib.suppress(OSError):  # too long, refused, or nobody listens any more
        if has_descriptor:
            socket.send_fds(end, [word or b"?"], [end.fileno()])
        else:
            end.send(word or b"?")


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


TARGET = Target(
    hear,
    unfold_words,
    words=(MARK, b"Kcopy 1 L", b"Kcopy 999999999 L", b"Dcopy 2 L", b"Kskipped time", b"Kawake", b"Bawake", b"Krunning"),
)
