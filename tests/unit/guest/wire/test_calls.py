"""The messages of host calls: whole or in pieces, within the limits or refused."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.guest.wire import framing
from agent_tools.guest.wire.calls import MAX_HEAD_BYTES, MAX_MARKS, MESSAGE, CallReader, pack
from agent_tools.guest.wire.framing import HEADER, FrameError, TooLarge, pack_parts

HEADS = st.dictionaries(st.text(), st.integers() | st.text(), max_size=4)


@given(st.lists(st.tuples(HEADS, st.lists(st.binary(), max_size=3)), max_size=5), st.integers(1, 40))
def test_messages_come_out_as_they_went_in_however_they_are_cut(messages: list[Any], piece: int) -> None:
    stream = b"".join(pack(head, attachments) for head, attachments in messages)
    reader, found = CallReader(), []
    for start in range(0, len(stream), piece):
        found += [(head, attachments) for head, attachments, _ in reader.feed(stream[start : start + piece])]
    assert found == messages


@given(st.binary())
def test_any_bytes_are_messages_or_a_frame_error(data: bytes) -> None:
    with contextlib.suppress(FrameError):
        list(CallReader().feed(data))


def test_the_size_is_that_of_the_head_and_the_attachments() -> None:
    message = pack({"op": "go"}, [b"abc"])
    ((_, _, size),) = CallReader().feed(message)
    assert size == len(message) - HEADER.size


def test_a_message_over_the_limit_is_refused_by_who_sends_it() -> None:
    with pytest.raises(TooLarge, match=r"1,0.. bytes are more than 1,000"):
        pack({"op": "go"}, [bytes(1000)], 1000)


def test_a_message_of_too_many_parts_is_refused_by_who_sends_it() -> None:
    with pytest.raises(TooLarge, match="more than 100,000 parts"):
        pack({"value": [0] * (MAX_MARKS + 1)}, [])
    with pytest.raises(TooLarge, match="of it are JSON"):
        pack({"value": "x" * MAX_HEAD_BYTES}, [])
    with pytest.raises(FrameError):
        list(CallReader().feed(framed(b'"' + b"x" * MAX_HEAD_BYTES + b'"')))


def test_attachments_count_as_parts_on_either_side() -> None:
    with pytest.raises(TooLarge, match="more than 100,000 parts"):
        pack({"value": []}, [b""] * MAX_MARKS)
    with pytest.raises(FrameError):
        list(CallReader().feed(framed(b"{}", *[b""] * MAX_MARKS)))


def framed(*parts: bytes) -> bytes:
    return pack_parts(MESSAGE, parts)


@pytest.mark.parametrize(
    "data",
    [
        HEADER.pack(MESSAGE, 1001 + 64 * 1024),
        HEADER.pack(2, 0),
        framed(),
        framed(b""),
        framed(b"null"),
        framed(b"[]"),
        framed(b'{"x": ' + b"9" * 5000 + b"}"),
        framed(b"\xff{}"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        list(CallReader(1000).feed(data) if len(data) == 8 else CallReader().feed(data))


@pytest.mark.parametrize("head", [b"[" * 100_000, b"[" + b"0," * MAX_MARKS + b"0]"])
def test_what_would_cost_more_than_its_bytes_is_refused(head: bytes) -> None:
    with pytest.raises(FrameError):
        list(CallReader().feed(framed(head)))


def test_a_call_that_is_not_wanted_is_cut_into_no_parts() -> None:
    head = b'{"op": "call", "id": 7, "name": "f", "args": ["' + b"x" * 2_000 + b'"]}'
    unlike = struct.pack(f">3I{len(head)}s", 2, len(head), 5, head)  # a second part of five bytes is not there
    asked: list[tuple[int, str, int]] = []
    data = framing.pack(MESSAGE, unlike)
    assert list(CallReader(screen=lambda *call: bool(asked.append(call))).feed(data)) == []
    assert asked == [(7, "f", len(unlike))]
    with pytest.raises(FrameError):
        list(CallReader(screen=lambda *_: True).feed(data))
