"""The host's half of host calls: orders in their order, and a bound on what waits for the caller."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agent_tools.fleet.leased_session import ACKNOWLEDGED_BYTES, CallRelay
from agent_tools.fleet.protocol import MAX_WAITING_ORDERS, CallMessage
from agent_tools.guest.wire.frames import CallReader
from agent_tools.limits import CallLimits
from tests.waiting import until


class Wire:
    """A kernel's socket that keeps what is sent, and whether it is read."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_read, self.is_closed = True, False
        self.is_crowded = False
        self.take: Any = None

    def start(self, begin: Any, take: Any, screen: Any = None) -> None:
        self.take, self.screen = take, screen

    def read_on(self, wanted: bool) -> None:
        self.is_read = wanted

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self) -> None:
        self.is_closed = True


class Clock:
    def __init__(self) -> None:
        self.held = 0

    def hold(self) -> None:
        self.held += 1

    def go(self) -> None:
        self.held -= 1


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def relay(wire: Wire) -> Iterator[CallRelay]:
    relay = CallRelay(CallLimits(max_open_bytes=1_000))
    relay.serve(wire)
    yield relay
    relay.close()


def call(number: int) -> dict[str, Any]:
    return {"op": "call", "id": number, "name": "f", "args": [], "kwargs": {}}


def heads(wire: Wire) -> list[dict[str, Any]]:
    return [head for data in wire.sent for head, _, _ in CallReader().feed(data)]


def test_orders_are_done_in_the_order_of_their_numbers(relay: CallRelay, wire: Wire) -> None:
    relay.begin("run", bool)
    clock = Clock()
    with relay.run(clock):
        relay.order("run", 3, "answer", b"third")
        relay.order("run", 2, "hold", None)
        assert wire.sent == []
        relay.order("run", 1, "answer", b"first")
        assert (wire.sent, clock.held) == ([b"first", b"third"], 1)
        relay.order("run", 4, "go", None)
        assert clock.held == 0


def test_an_order_of_an_earlier_run_or_one_that_came_twice_is_nobodys(relay: CallRelay, wire: Wire) -> None:
    relay.begin("first", bool)
    relay.order("first", 1, "answer", b"a")
    relay.order("first", 1, "answer", b"again")
    relay.begin("second", bool)
    relay.order("first", 2, "answer", b"late")
    relay.order("second", 1, "answer", b"b")
    assert wire.sent == [b"a", b"b"]


def test_answers_on_their_way_count_after_the_end_of_a_run(relay: CallRelay, wire: Wire) -> None:
    relay.begin("run", bool)
    relay.end("run")
    relay.order("run", 1, "answer", b"late")
    assert wire.sent == [b"late"]


def test_too_many_orders_that_wait_for_one_end_the_calls(relay: CallRelay, wire: Wire) -> None:
    relay.begin("run", bool)
    for number in range(2, MAX_WAITING_ORDERS + 3):
        relay.order("run", number, "answer", b"")
    assert wire.is_closed


def test_the_code_waits_while_too_much_is_on_its_way(relay: CallRelay, wire: Wire) -> None:
    words: list[CallMessage] = []
    relay.begin("run", words.append)
    wire.take(call(1), [], 600)
    assert wire.is_read
    wire.take(call(2), [bytearray(b"x")], 600)
    assert not wire.is_read
    assert words[1].attachments == [b"x"]
    relay.heard(words[0])
    assert wire.is_read
    relay.order("run", 1, "read_on", False)
    relay.heard(words[1])
    assert not wire.is_read
    relay.order("run", 2, "read_on", True)
    assert wire.is_read


def test_the_caller_hears_how_much_of_his_answers_the_code_has_taken(relay: CallRelay, wire: Wire) -> None:
    words: list[CallMessage] = []
    relay.begin("run", words.append)
    relay.order("run", 1, "answer", bytes(ACKNOWLEDGED_BYTES - 1))
    wire.is_crowded = True
    relay.order("run", 2, "answer", bytes(2))
    assert words == []
    wire.is_crowded = False
    assert until(lambda: words)[0].head == {"op": "taken", "bytes": ACKNOWLEDGED_BYTES + 1}


def test_the_code_cannot_say_what_is_the_hosts_to_say(relay: CallRelay, wire: Wire) -> None:
    words: list[CallMessage] = []
    relay.begin("run", words.append)
    wire.take({"op": "taken", "bytes": -(2**60)}, [], 10)
    wire.take(call(1), [], 10)
    assert [word.head["op"] for word in words] == ["call"]


def test_between_runs_calls_are_refused(relay: CallRelay, wire: Wire) -> None:
    wire.take(call(7), [], 100)
    assert wire.screen(8, "f", 100_000) is False
    assert [(head["id"], head["kind"]) for head in heads(wire)] == [(7, "HostCallDenied"), (8, "HostCallDenied")]


def test_the_end_of_an_earlier_run_does_not_end_the_next(relay: CallRelay, wire: Wire) -> None:
    words: list[CallMessage] = []
    relay.begin("first", bool)
    relay.begin("second", words.append)
    relay.end("first")
    wire.take(call(1), [], 10)
    assert len(words) == 1
