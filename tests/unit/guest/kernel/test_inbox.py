"""What the host sends to a kernel while its code waits for an answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from agent_tools.guest.kernel.kernel import Inbox
from agent_tools.guest.wire.framing import pack_parts
from agent_tools.guest.wire.messages import CONTROL, SHELL, STDIN


def message(channel: int, word: bytes) -> bytes:
    """One message with a word in it."""
    return pack_parts(channel, [b"{}", b"{}", b"{}", word])


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Inbox]]:
    """The host's end, and the kernel's."""
    host, kernel = socket.socketpair()
    with host, kernel:
        yield host, Inbox(kernel)


def words(inbox: Inbox, data: bytes) -> list[bytes]:
    return [parts[3] for parts in inbox.requests(data)]


def test_requests_come_in_turn_and_all_else_is_dropped(pair: tuple[socket.socket, Inbox]) -> None:
    _, inbox = pair
    data = message(SHELL, b"1") + message(STDIN, b"late") + message(CONTROL, b"x") + message(SHELL, b"2")
    assert words(inbox, data[:20]) + words(inbox, data[20:]) == [b"1", b"2"]


def test_requests_that_come_before_the_answer_wait(pair: tuple[socket.socket, Inbox]) -> None:
    host, inbox = pair
    host.sendall(message(SHELL, b"first") + message(STDIN, b"answer"))
    assert inbox.await_answer()[3] == b"answer"
    assert words(inbox, message(SHELL, b"second")) == [b"first", b"second"]


def test_code_may_ask_while_a_request_is_handled(pair: tuple[socket.socket, Inbox]) -> None:
    host, inbox = pair
    handled = []
    for parts in inbox.requests(message(SHELL, b"1") + message(SHELL, b"2")):
        host.sendall(message(SHELL, b"more" + parts[3]) if len(handled) < 2 else b"")
        if len(handled) < 2:
            host.sendall(message(STDIN, b"answer"))
            assert inbox.await_answer()[3] == b"answer"
        handled.append(parts[3])
    assert handled == [b"1", b"2", b"more1", b"more2"]


def test_a_host_that_hangs_up_is_the_end_of_the_file(pair: tuple[socket.socket, Inbox]) -> None:
    host, inbox = pair
    host.close()
    with pytest.raises(EOFError):
        inbox.await_answer()
