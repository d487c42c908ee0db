from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from agent_tools.guest.wire.framing import HEADER, WINDOW, FrameError
from agent_tools.guest.wire.mux import CREDIT, MAX_FRAME
from agent_tools.runtime.egress.link import MAX_UNREAD, ClientHungUp, Link, ProxyChannel


class Transport(asyncio.Transport):
    """Keeps what is written; is `unread` bytes behind."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[tuple[int, bytes]] = []
        self.unread = 0
        self.is_aborted = False

    def write(self, data: Any) -> None:
        self.frames.append((HEADER.unpack_from(data)[0], bytes(data[HEADER.size :])))

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


def frame(channel: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(channel, len(payload)) + payload


async def made() -> tuple[Link, Transport, list[ProxyChannel]]:
    opened: list[ProxyChannel] = []
    link, transport = Link(opened.append), Transport()
    link.connection_made(transport)
    return link, transport, opened


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 10))


def test_a_channel_begins_with_its_first_bytes_and_ends_with_an_empty_frame() -> None:
    async def work() -> None:
        link, transport, opened = await made()
        link.feed(frame(1) + frame(3, b"ab") + frame(3, b"c") + frame(2, b"late") + frame(3))
        assert len(opened) == 1
        assert [await opened[0].read(), await opened[0].read()] == [b"abc", b""]
        opened[0].close()
        assert transport.frames == []
        with pytest.raises(ClientHungUp):
            await opened[0].write(b"x")

    run(work())


def test_no_more_is_sent_than_was_granted_and_read_bytes_are_granted_anew() -> None:
    async def work() -> None:
        link, transport, opened = await made()
        link.feed(frame(1, b"x"))
        writing = asyncio.ensure_future(opened[0].write(bytes(WINDOW + 5)))
        await asyncio.sleep(0)
        assert sum(len(payload) for _, payload in transport.frames) == WINDOW
        link.feed(frame(CREDIT | 1, (5).to_bytes(4, "big")))
        await writing
        assert max(len(payload) for _, payload in transport.frames) <= MAX_FRAME
        transport.frames.clear()
        for _ in range(WINDOW // MAX_FRAME // 4):
            link.feed(frame(1, bytes(MAX_FRAME)))
        while not transport.frames:
            await opened[0].read()
        assert transport.frames[0][0] == CREDIT | 1

    run(work())


@pytest.mark.parametrize(
    "data",
    [
        frame(0, b"ready"),
        frame(CREDIT, b"\0\0\0\1"),
        HEADER.pack(1, MAX_FRAME + 1),
        frame(1, b"x") + frame(CREDIT | 1, b"\0"),
        frame(1, b"x") + frame(1, bytes(MAX_FRAME)) * (WINDOW // MAX_FRAME),
    ],
)
def test_a_guest_that_breaks_the_frames_is_hung_up_on(data: bytes) -> None:
    async def work() -> None:
        link, transport, _ = await made()
        link.data_received(data)
        assert transport.is_aborted
        with pytest.raises(FrameError):
            (await made())[0].feed(data)

    run(work())


def test_a_guest_that_opens_channels_and_reads_nothing_is_hung_up_on() -> None:
    async def work() -> None:
        link, transport, opened = await made()
        transport.unread = MAX_UNREAD + 1
        link.feed(frame(1, b"x"))
        opened[0].close()
        assert transport.is_aborted

    run(work())


def test_a_guest_that_is_gone_ends_every_channel() -> None:
    async def work() -> None:
        link, _, opened = await made()
        link.feed(frame(1, b"x") + frame(2, b"y"))
        link.connection_lost(None)
        assert [await opened[1].read(), await opened[1].read()] == [b"y", b""]

    run(work())
