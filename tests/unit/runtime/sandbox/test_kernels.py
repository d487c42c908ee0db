"""The kernels of a sandbox, over a PID 1 that the test plays."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

from agent_tools.guest.wire.words import Branch, EndBranch
from agent_tools.limits import Limits
from agent_tools.runtime.sandbox.kernels import Kernels


def test_a_fork_that_came_too_late_is_ended() -> None:
    sent, theirs = list[object](), list[socket.socket]()

    def opened(_order: Branch, _lifeline: object) -> list[socket.socket]:
        ours, end = socket.socketpair()
        theirs.append(stack.enter_context(end))
        return [stack.enter_context(ours)]

    def mark(_seconds: float, ask: Callable[[int], object]) -> int:
        ask(1)  # of which nothing is heard in time
        ask(2)
        return 2

    with ExitStack() as stack:
        lifeline, transport = SimpleNamespace(send=sent.append), SimpleNamespace(open=opened)
        spec: Any = SimpleNamespace(limits=Limits(), prelude="")
        kernels = Kernels(spec, cast("Any", transport), cast("Any", lifeline), itertools.count(1))
        kernels.current = cast("Any", SimpleNamespace(mark=mark))
        assert kernels.fork(1.0)[0] == 2
        assert sent == [EndBranch(1)]
        assert theirs[0].recv(1) == b""
