"""The frames of a command's socket: every order and event there and back, and what is neither."""

from __future__ import annotations

import struct
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.guest.wire import commands as wire
from agent_tools.guest.wire.commands import (
    MAX_FRAME,
    MAX_SPEC,
    CommandEnded,
    CommandError,
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
    Started(2**32 - 1),
    Taken(7),
    CommandPrinted("stdout", b""),
    CommandPrinted("stderr", b"\0\xff" * 100),
    CommandEnded("code", 0),
    CommandEnded("code", 255, True),
    CommandEnded("signal", 9),
    CommandEnded("no program", 2),
    CommandEnded("no folder", 20),
]


def packed(order: Order) -> bytes:
    return wire.write_spec(order) if isinstance(order, Spec) else wire.write_order(order)


@pytest.mark.parametrize("size", [1, 3, 100_000])
def test_orders_and_events_come_as_they_were_sent_however_they_are_cut(size: int) -> None:
    for reader, said, frames in (
        (wire.orders(), ORDERS, b"".join(map(packed, ORDERS))),
        (wire.events(), EVENTS, b"".join(map(wire.write_event, EVENTS))),
    ):
        pieces = [frames[at : at + size] for at in range(0, len(frames), size)]
        assert [each for piece in pieces for each in reader.feed(piece)] == said


def test_every_order_and_event_is_tried_above() -> None:
    assert {type(order) for order in ORDERS} == set(typing.get_args(Order))
    assert {type(event) for event in EVENTS} == set(typing.get_args(Event))
    assert {event.how for event in EVENTS if isinstance(event, CommandEnded)} == set(wire.HOWS)


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">BI", 18, MAX_FRAME + 1),
        struct.pack(">BI", 16, 5),
        struct.pack(">BI", 16, 3) + b"abc",
        struct.pack(">BI", 20, 2**32 - 1),
        struct.pack(">BI", 20, 6) + struct.pack(">BIB", 4, 0, 0),
        struct.pack(">BI", 20, 6) + struct.pack(">BIB", 0, 256, 0),
        struct.pack(">BI", 20, 6) + struct.pack(">BIB", 0, 0, 2),
        struct.pack(">BI", 1, 2) + b"{}",
        struct.pack(">BI", 99, 0),
    ],
)
def test_what_is_no_event_is_refused(frame: bytes) -> None:
    with pytest.raises(CommandError):
        list(wire.events().feed(frame))


def test_an_event_before_a_bad_frame_is_had() -> None:
    reader = wire.events()
    feed = reader.feed(wire.write_event(Started(5)) + b"\xff" * 5)
    assert next(feed) == Started(5)
    with pytest.raises(CommandError):
        next(feed)


def test_a_command_that_is_too_long_is_refused_before_it_is_sent() -> None:
    with pytest.raises(CommandError, match="more than"):
        wire.write_spec(Spec("x" * MAX_SPEC, "", {}, None, 1.0))


@given(st.binary(max_size=200))
def test_any_bytes_are_events_or_an_error(data: bytes) -> None:
    reader, found = wire.events(), []
    try:
        found = list(reader.feed(data))
    except CommandError:
        return
    assert b"".join(map(wire.write_event, found)) == data[: sum(len(wire.write_event(each)) for each in found)]
