"""Answers of another gateway that break off."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence

import anyio
import httpx
import pytest

from agent_tools.gateway.peers import relayed

EVENTS = (
    b'event: a\ndata: {"type":"a","delta":"\\"sequence_number\\":99","sequence_number":7}\n\n',
    b'event: b\ndata: {"type":"b","sequence_number":8}\n\n',
)


class Cut(httpx.AsyncByteStream):
    """Pieces, and then the end of the connection."""

    def __init__(self, pieces: Sequence[bytes], *, ends: bool) -> None:
        self.pieces, self.ends = pieces, ends
        self.is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece
        if not self.ends:
            raise httpx.ReadError("gone")

    async def aclose(self) -> None:
        self.is_closed = True


def read(stream: Cut, kind: str) -> bytes:
    """What a client reads."""

    async def work() -> bytes:
        answer = httpx.Response(200, headers={"content-type": kind}, stream=stream)
        return b"".join([piece async for piece in relayed(answer)])

    try:
        return anyio.run(work)
    finally:
        assert stream.is_closed


@pytest.mark.parametrize("size", [1, 2, 50, 1000])
def test_a_stream_passes_as_it_is(size: int) -> None:
    whole = b"".join(EVENTS)
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    assert read(Cut(pieces, ends=True), "text/event-stream; charset=utf-8") == whole


@pytest.mark.parametrize("more", [b"", b"event: c\nda", b'data: {"type":"c","sequence_number":9}\n'])
def test_a_stream_that_breaks_off_ends_with_a_whole_event_that_says_so(more: bytes) -> None:
    said = read(Cut([*EVENTS, more], ends=False), "text/event-stream")
    assert said.startswith(b"".join(EVENTS))
    name, data, _, done, *_ = said.removeprefix(b"".join(EVENTS)).split(b"\n")
    event = json.loads(data.removeprefix(b"data: "))
    assert (name, done) == (b"event: error", b"data: [DONE]")
    assert (event["type"], event["code"], event["sequence_number"]) == ("error", "gateway_lost", 9)
    assert event["error"]["message"] == event["message"]


def test_another_answer_that_breaks_off_stays_cut() -> None:
    with pytest.raises(httpx.ReadError):
        read(Cut([b'{"id": '], ends=False), "application/json")


def test_the_rest_of_a_stream_without_an_end_passes_too() -> None:
    assert read(Cut([EVENTS[0], b"data: x"], ends=True), "text/event-stream") == EVENTS[0] + b"data: x"
