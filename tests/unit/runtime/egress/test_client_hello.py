from __future__ import annotations

import pytest

from agent_tools.runtime.egress.client_hello import HelloReader, SecondHello
from agent_tools.runtime.egress.refusals import EgressRefused
from tests.unit.runtime.egress import hellos
from tests.unit.runtime.egress.hellos import NAME, NOTICE, hello, record, server_name

MOST = 16 * 1024


@pytest.mark.parametrize("size", [1, 2, 5, 100, 10_000])
def test_a_name_is_read_in_whatever_pieces_it_comes(size: int) -> None:
    data, reader = hellos.honest(NAME), HelloReader(MOST)
    names = [reader.feed(data[at : at + size]) for at in range(0, len(data), size)]
    assert set(names[:-1]) <= {None}
    assert names[-1] == NAME
    assert (bytes(reader.data), reader.end) == (data, len(data))


@pytest.mark.parametrize("size", [1, 3, 50])
def test_a_name_is_read_over_several_records(size: int) -> None:
    assert HelloReader(MOST).feed(hellos.split(hellos.message(server_name(NAME.upper())), size)) == NAME


def test_what_follows_a_greeting_is_told_from_it() -> None:
    reader, data = HelloReader(MOST), hello(server_name(NAME))
    assert reader.feed(data + b"more") == NAME
    assert bytes(reader.data[reader.end :]) == b"more"


@pytest.mark.parametrize(("data", "why"), hellos.HOSTILE.values(), ids=hellos.HOSTILE.keys())
def test_a_greeting_that_does_not_say_whom_it_asks_for_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(EgressRefused, match=why):
        assert HelloReader(MOST).feed(data) is None
    with pytest.raises(EgressRefused, match=why):
        _feed_slowly(data)


def _feed_slowly(data: bytes) -> None:
    reader = HelloReader(MOST)
    for at in range(len(data)):
        assert reader.feed(data[at : at + 1]) is None


def test_no_name_is_found_without_one() -> None:
    with pytest.raises(EgressRefused, match="names no server"):
        HelloReader(MOST).feed(hellos.honest(None))


# -- what follows -----------------------------------------------------------------------------------------------------

AFTER = {
    "encrypted data": record(b"x" * 40, 23),
    "a notice and encrypted data": NOTICE + record(b"x" * 40, 23),
    "the keys of TLS 1.2": record(b"\x10\0\0\1x") + NOTICE,
    "an alert": record(b"\2\x28", 21),
    "a second greeting with the same name": NOTICE + hello(server_name(NAME)) + record(b"x", 23),
}


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("data", AFTER.values(), ids=AFTER.keys())
def test_what_follows_an_honest_greeting_goes_on_word_for_word(data: bytes, size: int) -> None:
    second = SecondHello(NAME, MOST)
    assert b"".join(second.feed(data[at : at + size]) for at in range(0, len(data), size)) == data
    assert second.is_over


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("before", [b"", NOTICE, NOTICE * 3])
@pytest.mark.parametrize("ending", [hello(server_name("evil.example")), hello(), hello((0xFE0D, b""))])
def test_a_second_greeting_that_names_another_does_not_go_on(ending: bytes, before: bytes, size: int) -> None:
    second, data, passed = SecondHello(NAME, MOST), before + ending, bytearray()

    def feed() -> None:
        for at in range(0, len(data), size):
            passed.extend(second.feed(data[at : at + size]))

    with pytest.raises(EgressRefused):
        feed()
    assert before.startswith(passed)
