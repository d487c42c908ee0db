"""The guest's end of host calls, where the host reads late, or hangs up."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agent_tools.guest.host_call_errors import HostGone
from agent_tools.guest.host_calls import Host
from agent_tools.guest.wire.calls import CallReader, pack


@pytest.fixture
def ends() -> Iterator[tuple[Host, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least: it takes a part of a short message, too
    theirs.settimeout(30)
    with ours, theirs:
        host = Host(ours.fileno())
        yield host, theirs
        for end in (host._bell, host._ring):
            os.close(end)
        host._socket.close()


def answered(theirs: socket.socket, count: int, heads: list[dict[str, Any]]) -> None:
    """Answer so many messages."""
    reader = CallReader(1_000_000)
    while len(heads) < count and (data := theirs.recv(65_536)):
        for head, _, _ in reader.feed(data):
            heads.append(head)
            theirs.sendall(pack({"op": "result", "id": head["id"], "value": head["id"]}, []))


def test_a_short_message_of_which_the_socket_takes_a_part_is_written_whole(ends: tuple[Host, socket.socket]) -> None:
    host, theirs = ends
    heads: list[dict[str, Any]] = []

    async def main() -> None:
        calls = [asyncio.ensure_future(host.call("f", (f"{n}" * 10_000,), {})) for n in range(5)]
        await asyncio.gather(*calls)
        asyncio.get_running_loop().remove_reader(host._socket.fileno())

    reader = threading.Thread(target=answered, args=[theirs, 5, heads], daemon=True)
    reader.start()
    asyncio.run(asyncio.wait_for(main(), 30))
    assert [head["id"] for head in heads] == [1, 2, 3, 4, 5]


def test_a_write_that_finds_the_host_gone_ends_the_calls_that_wait(ends: tuple[Host, socket.socket]) -> None:
    host, theirs = ends
    gone: list[HostGone] = []

    def wait() -> None:
        try:
            host.call_sync("f", (), {})
        except HostGone as exc:
            gone.append(exc)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    theirs.recv(1)
    theirs.shutdown(socket.SHUT_RD)  # so that only a write finds it
    with pytest.raises(HostGone):
        host.call_sync("g", (), {})
    waiting.join(10)
    assert len(gone) == 1


def test_a_call_that_is_interrupted_while_it_is_written_is_cancelled(ends: tuple[Host, socket.socket]) -> None:
    host, theirs = ends
    heads: list[dict[str, Any]] = []

    def interrupt(*_: object) -> None:
        threading.Thread(target=answered, args=[theirs, 2, heads], daemon=True).start()
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(InterruptedError):
            host.call_sync("f", ("x" * 500_000,), {})
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not host._pending
    while len(heads) < 2:
        signal.sigtimedwait([signal.SIGALRM], 0.01)
    assert [(head["op"], head["id"]) for head in heads] == [("call", 1), ("cancel", 1)]
