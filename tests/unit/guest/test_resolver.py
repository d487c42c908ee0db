"""The sandbox's own names by DNS: what is answered, and that whatever comes does no harm."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.guest.resolver import MAX_QUESTION, answer

ADDRESS, ADDRESS_6 = 1, 28
OK, FAILED = 0, 2


def question(name: str, kind: int = ADDRESS, flags: int = 0x0100, count: int = 1) -> bytes:
    labels = b"".join(bytes((len(label),)) + label.encode() for label in name.split(".") if label)
    return struct.pack(">6H", 7, flags, count, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


def told(said: bytes | None) -> tuple[int, bytes]:
    """Its code, and the address at its end or b''."""
    assert said
    number, flags, questions, answers, *_ = struct.unpack_from(">6H", said)
    assert (number, flags & 0x8000, questions) == (7, 0x8000, 1)
    return flags & 0xF, said[-4:] if answers else b""


@pytest.mark.parametrize("name", ["localhost", "LocalHost", "a.b.localhost", "sandbox", "SANDBOX"])
def test_our_names_are_the_loopback_address(name: str) -> None:
    assert told(answer(question(name), "sandbox")) == (OK, bytes((127, 0, 0, 1)))
    assert told(answer(question(name, ADDRESS_6), "sandbox")) == (OK, b"")


@pytest.mark.parametrize("name", ["", "example.org", "notlocalhost", "localhost.org", "a.sandbox", "sandbox.local"])
def test_every_other_name_could_not_be_looked_up(name: str) -> None:
    assert told(answer(question(name), "sandbox")) == (FAILED, b"")
    assert told(answer(question(name), "")) == (FAILED, b"")


@pytest.mark.parametrize(
    "said",
    [
        b"",
        question("localhost")[:-1],
        question("localhost", flags=0x8180),
        question("localhost", count=2),
        question("localhost", count=0),
        question("")[:12] + b"\xc0\x0c" + bytes(4),
        question("")[:12] + bytes((63,)) + b"a" * 63,
    ],
)
def test_what_is_no_question_gets_no_answer(said: bytes) -> None:
    assert answer(said, "sandbox") is None


@given(st.binary(max_size=MAX_QUESTION) | st.binary(max_size=64).map(lambda tail: question("")[:12] + tail))
def test_any_bytes_get_no_more_than_a_short_answer_of_their_own_number(said: bytes) -> None:
    back = answer(said, "sandbox")
    assert back is None or (back[:2] == said[:2] and len(back) <= len(said) + 16)
