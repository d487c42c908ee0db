from __future__ import annotations

import contextlib
import socket

import pytest
from agent_tools.runtime.kernel.channels import Channels
from agent_tools.runtime.kernel.zmtp import ZmtpSocket

from agent_tools.settings import MIB


class TalkingLink:
    """A lifeline on which there is always one more word."""

    is_open = True

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def receive(self) -> list[str]:
        return ["hello"]


@pytest.mark.timeout(30)
def test_a_lifeline_that_never_runs_dry_does_not_hold_a_run_up() -> None:
    with contextlib.ExitStack() as opened:
        pairs = [[opened.enter_context(each) for each in socket.socketpair()] for _ in range(3)]
        for _, peer in pairs:
            peer.sendall(b"x")
        shell, iopub = (ZmtpSocket(pairs[n][0], "DEALER", MIB) for n in (0, 1))
        channels = Channels(b"k", shell, iopub, TalkingLink(pairs[2][0].fileno()))  # type: ignore[arg-type]
        assert 0 < len(list(channels.receive(0))) < 100
        assert 0 < len(channels.discard()) < 100
