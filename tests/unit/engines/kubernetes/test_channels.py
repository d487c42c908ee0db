"""The messages of an exec stream: a real server's half, the pieces it comes in, and servers that are none."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side

from agent_tools.engines.kubernetes.exec_channels import MAX_MESSAGE, MAX_SAID, Channels


def opened() -> tuple[Channels, Protocol]:
    """Both ends after the handshake."""
    return Channels(), Protocol(Side.SERVER)


def frame(channel: int, data: bytes, *, fin: bool = True) -> bytes:
    return Frame(Opcode.BINARY, bytes([channel]) + data, fin).serialize(mask=False)


def test_stdin_and_stdout_cross() -> None:
    channels, server = opened()
    channels.send(b"in")
    server.receive_data(channels.outgoing())
    assert [event.data for event in server.events_received()] == [b"\0in"]
    server.send_binary(b"\1out")
    server.send_binary(b"\2err")
    assert channels.feed(b"".join(server.data_to_send())) == b"out"
    assert channels.last_words == "err"


WHOLE = frame(1, b"") + frame(3, b"") + frame(1, b"abc") + frame(2, b"oh")
SPLIT = frame(1, b"de", fin=False) + Frame(Opcode.CONT, b"f").serialize(mask=False)
STREAM = WHOLE + SPLIT + frame(1, b"x" * 70_000)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_pieces_make_the_same_bytes(cuts: list[int]) -> None:
    channels, _ = opened()
    marks = sorted({0, *cuts, len(STREAM)})
    found = b"".join(channels.feed(STREAM[a:b]) for a, b in itertools.pairwise(marks) if b > a)
    assert found == b"abcdef" + b"x" * 70_000
    assert channels.last_words == "oh"
    assert not channels.has_ended


def test_a_status_ends_it_and_says_how() -> None:
    channels, _ = opened()
    status = {"status": "Failure", "message": "exit status 1"}
    assert channels.feed(frame(1, b"last") + frame(3, json.dumps(status).encode())) == b"last"
    assert channels.has_ended
    assert channels.last_words == "exit status 1"


def test_an_end_in_success_says_nothing() -> None:
    channels, _ = opened()
    channels.feed(frame(3, b'{"status": "Success"}'))
    assert channels.has_ended
    assert channels.last_words == ""


@pytest.mark.parametrize("end", [b"", Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=False)])
def test_an_end_without_a_word_is_one(end: bytes) -> None:
    channels, _ = opened()
    channels.feed(end)
    assert channels.has_ended
    with pytest.raises(BrokenPipeError):
        channels.send(b"more")
    channels.ping()
    channels.hang_up()


def test_pings_are_answered_and_sent() -> None:
    channels, server = opened()
    server.send_ping(b"there?")
    channels.feed(b"".join(server.data_to_send()))
    channels.ping()
    server.receive_data(channels.outgoing())
    assert [event.opcode for event in server.events_received()] == [Opcode.PONG, Opcode.PING]


def test_what_is_kept_of_stderr_and_status_is_bounded() -> None:
    channels, _ = opened()
    for _ in range(20):
        channels.feed(frame(2, b"e" * 30_000))
    channels.feed(frame(3, b"{" * 500_000))
    assert len(channels._stderr) <= MAX_SAID
    assert len(channels._status) <= MAX_SAID
    assert len(channels.last_words) <= 600


def test_a_message_that_is_too_long_ends_it() -> None:
    channels, _ = opened()
    channels.feed(Frame(Opcode.BINARY, b"\1" + bytes(MAX_MESSAGE)).serialize(mask=False))
    assert channels.has_ended
