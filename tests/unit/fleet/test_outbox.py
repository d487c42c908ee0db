"""Messages that nobody waits for."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from agent_tools.fleet.protocol import Outbox
from tests.waiting import until


class Road:
    """A way to a host that has room for so many messages."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.sent: list[tuple[Any, ...]] = []
        self.tries = 0

    def send(self, *message: Any) -> bool:
        self.tries += 1
        if len(self.sent) >= self.room:
            return False
        self.sent.append(message)
        return True


def test_a_message_goes_at_once_where_there_is_room() -> None:
    road = Road(10)
    Outbox(road.send).tell("order", 1)
    assert road.sent == [("order", 1)]


def test_what_finds_no_room_is_sent_later_and_in_its_order() -> None:
    road = Road(2)
    outbox = Outbox(road.send)
    for number in range(6):
        outbox.tell("order", number)
    assert road.sent == [("order", 0), ("order", 1)]
    road.room = 5
    until(lambda: len(road.sent) == 5)
    road.room = 100
    until(lambda: len(road.sent) == 6)
    outbox.tell("order", 6)
    until(lambda: len(road.sent) == 7)
    assert [number for _, number in road.sent] == list(range(7))


def test_who_has_too_many_waits_for_room() -> None:
    road = Road(0)
    outbox = Outbox(road.send, most=2)
    outbox.tell("order", 0)
    outbox.tell("order", 1)
    third = threading.Thread(target=outbox.tell, args=("order", 2))
    third.start()
    tries = road.tries
    until(lambda: road.tries > tries + 2)
    assert third.is_alive()
    road.room = 100
    third.join(30)
    until(lambda: len(road.sent) == 3)


def test_what_finds_no_room_for_long_is_dropped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    road = Road(0)
    outbox = Outbox(road.send, patience=0.1)
    with caplog.at_level(logging.WARNING):
        outbox.tell("order", 0)
        outbox.tell("order", 1)
        until(lambda: "2 messages found no room" in caplog.text)
    road.room = 100
    outbox.tell("order", 2)
    until(lambda: road.sent == [("order", 2)])
