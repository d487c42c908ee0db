"""Events from bytes; the fuzzer's target of the same name has the rest."""

from __future__ import annotations

import pytest

from agent_tools.models.reply_events import EventReader, events


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (b"data: 1\n\ndata: 2\n\n", [b"1", b"2"]),
        (b"data:1\r\n\r\ndata:  2\r\r", [b"1", b" 2"]),
        (b": a comment\nevent: a\nid: 1\nretry: 3\ndata: 1\ndata: 2\ndata\n\n", [b"1\n2\n"]),
        (b"data: 1", [b"1"]),
        (b"data: data: 1\n\ndata: data:2\n\n", [b"1", b"2"]),
        (b"data: : a comment\n\ndata: 1\n\n", [b"1"]),
        (b'data: {"a": 1}\ndata: {"b": 2}\ndata: [DONE]\n', [b'{"a": 1}', b'{"b": 2}', b"[DONE]"]),
        (b'data: {"a":\ndata: {"b": 2}}\n\n', [b'{"a":\n{"b": 2}}']),
        (b'data: 1\n\n{"error": "x"}\n', [b"1", b'{"error": "x"}']),
        (b'event: serverException\ndata: {"message": "x"}\n\n', [b'{"message": "x"}']),
        (b"event: modelError\ndata: x\n\n", [b'{"error": "x"}']),
        (b"data\n\ndata:\n\n: still here\n\n\n\n", []),
        (b"database: 1\n\nmetadata: 2\n\n", []),
        ("data: é😀\n\n".encode(), ["é😀".encode()]),
    ],
)
def test_events_are_found_however_the_bytes_are_cut(said: bytes, found: list[bytes]) -> None:
    for size in (1, 2, 3, len(said)):
        assert list(events(said[at : at + size] for at in range(0, len(said), size))) == found


def test_an_event_is_there_with_its_last_byte() -> None:
    stream = EventReader()
    assert stream.feed(b"data: 1\n") == []
    assert stream.feed(b"\nda") == [b"1"]
    assert stream.feed(b"ta: 2\r\n\r\n") == [b"2"]
