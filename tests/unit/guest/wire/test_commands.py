"""The frames of a command's socket: every order and event there and back, and what is neither."""

from __future__ import annotations

import contextlib
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.guest.wire import commands as wire
from agent_tools.guest.wire.commands import (
    LINE,
    MAX_FRAME,
    MAX_SPEC,
    SPEC,
    STDOUT,
    CommandEnded,
    CommandPrinted,
    Event,
    Input,
    Order,
    Resize,
    Signal,
    Spec,
    Started,
    Taken,
)
from agent_tools.guest.wire.framing import HEADER, FrameError, TooLarge, pack
from agent_tools.guest.wire.lines import MAX_LINE, MAX_NUMBER

ORDERS: list[Order] = [
    Spec("ls -l | wc", "", {}, None, 2.0),
    Spec(("echo", "a b", "\udcff"), "/tmp", {"A": "1", "Ü": "ü"}, 1.5, 0.5, True, (24, 80)),
    Input(b""),
    Input(bytes(MAX_FRAME)),
    Signal(15),
    Resize(1, 65_535),
]
EVENTS: list[Event] = [
    Started(1),
    Started(MAX_NUMBER - 1),
    Taken(7),
    CommandPrinted("stdout", b""),
    CommandPrinted("stderr", b"\0\xff" * 100),
    CommandEnded("code", 0),
    CommandEnded("code", 255, True),
    CommandEnded("signal", 9),
    CommandEnded("no_program", 2),
    CommandEnded("no_folder", 20),
]


@pytest.mark.parametrize("size", [1, 3, 100_000])
def test_orders_and_events_come_as_they_were_sent_however_they_are_cut(size: int) -> None:
    for reader, said, frames in (
        (wire.orders(), ORDERS, b"".join(map(wire.write, ORDERS))),
        (wire.events(), EVENTS, b"".join(map(wire.write, EVENTS))),
    ):
        pieces = [frames[at : at + size] for at in range(0, len(frames), size)]
        assert [each for piece in pieces for each in reader.feed(piece)] == said


def test_every_order_and_event_is_tried_above() -> None:
    assert {type(order) for order in ORDERS} == set(typing.get_args(Order))
    assert {type(event) for event in EVENTS} == set(typing.get_args(Event))
    assert {event.how for event in EVENTS if isinstance(event, CommandEnded)} == set(typing.get_args(wire.How))


@pytest.mark.parametrize(
    "frame",
    [
        HEADER.pack(STDOUT, MAX_FRAME + 1),
        HEADER.pack(LINE, MAX_LINE + 1),
        HEADER.pack(99, 0),
        pack(SPEC, b"{}"),
        pack(LINE, b""),
        pack(LINE, b"started"),
        pack(LINE, b"started -1"),
        pack(LINE, f"taken {MAX_NUMBER}".encode()),
        pack(LINE, b"signal 9"),
        pack(LINE, b"command_ended exit 0 0"),
        pack(LINE, b"command_ended code 256 0"),
        pack(LINE, b"command_ended code 0 2"),
    ],
)
def test_what_is_no_event_is_refused(frame: bytes) -> None:
    with pytest.raises(FrameError):
        list(wire.events().feed(frame))


@pytest.mark.parametrize("line", [b"resize 65536 1", b"resize 1 65536", b"signal 256"])
def test_what_is_no_order_is_refused(line: bytes) -> None:
    with pytest.raises(FrameError):
        list(wire.orders().feed(pack(LINE, line)))


def test_an_event_before_a_bad_frame_is_had() -> None:
    reader = wire.events()
    feed = reader.feed(wire.write(Started(5)) + b"\xff" * 8)
    assert next(feed) == Started(5)
    with pytest.raises(FrameError):
        next(feed)


def test_a_command_that_is_too_long_is_refused_before_it_is_sent() -> None:
    with pytest.raises(TooLarge, match="more than"):
        wire.write(Spec("x" * MAX_SPEC, "", {}, None, 1.0))


@given(st.binary(max_size=200))
def test_any_bytes_are_events_or_an_error(data: bytes) -> None:
    with contextlib.suppress(FrameError):
        assert all(isinstance(event, typing.get_args(Event)) for event in wire.events().feed(data))
