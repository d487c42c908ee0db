"""Waiting for a descriptor: it ends when there is something, when the other side is gone, and with its time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from agent_tools.guest.wire.sockets import await_any, await_hang_up, await_input, await_room

FOREVER = 10.0  # seconds: only a failing test waits this long
Wait = Callable[[int, float], bool]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


def fill(ours: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            ours.send(bytes(65536))


def test_input_is_waited_for_as_long_as_there_is_none(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    started = time.monotonic()
    assert not await_input(ours.fileno(), 0.05)
    assert time.monotonic() - started > 0.04
    theirs.send(b"x")
    assert await_input(ours.fileno(), FOREVER)
    assert await_input(ours.fileno())


def test_room_is_waited_for_as_long_as_there_is_none(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    assert await_room(ours.fileno())
    fill(ours)
    assert not await_room(ours.fileno(), 0.05)
    while theirs.recv(2**20, socket.MSG_DONTWAIT):
        if await_room(ours.fileno(), 0):
            break
    assert await_room(ours.fileno(), FOREVER)


@pytest.mark.parametrize("wait", [await_input, await_room])
def test_an_end_is_seen_and_a_time_that_is_up_is_a_look(wait: Wait, pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    fill(ours)
    assert not wait(ours.fileno(), -1)
    assert not wait(ours.fileno(), 0)
    theirs.close()
    assert wait(ours.fileno(), FOREVER)


def test_any_is_enough(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    here, there = ours.fileno(), theirs.fileno()
    assert await_any([here, there], [here], FOREVER) == {here}
    fill(ours)
    assert await_any([here], [here], 0.05) == set()
    assert await_any([here, there], [], FOREVER) == {there}
    theirs.send(b"x")
    assert await_any([here], [here], FOREVER) == {here}


def test_a_hang_up_is_waited_for_whatever_there_is_to_read(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.send(b"x")
    assert not await_hang_up(ours.fileno(), 0.05)
    theirs.close()
    assert await_hang_up(ours.fileno(), FOREVER)
    assert await_hang_up(ours.fileno())


def test_descriptors_that_select_cannot_take_are_waited_for(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    high = fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD, 1500)
    try:
        theirs.send(b"x")
        assert await_input(high, FOREVER)
        assert await_room(high, FOREVER)
    finally:
        os.close(high)
