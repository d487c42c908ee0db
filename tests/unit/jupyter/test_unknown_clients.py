"""Clients of Jupyter's API that do not have the token."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from agent_tools.jupyter.unknown_clients import MAX_BODY, MOST, UnknownClients

GET = b"GET / HTTP/1.1\r\nHost: a\r\n"
KEY = b"Authorization: token the-token\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Hello(RequestHandler):
    def get(self) -> None:
        self.write("hello")

    post = get


@contextlib.asynccontextmanager
async def server() -> AsyncIterator[int]:
    app = Application([("/", _Hello)])
    http = HTTPServer(app)
    unknown = UnknownClients(http, "the-token")
    find_handler: Any = app.find_handler

    def looked_at(request: Any, **options: Any) -> Any:
        unknown.look_at(request)
        return find_handler(request, **options)

    app.find_handler = looked_at  # type: ignore[method-assign]
    (listening,) = bind_sockets(0, "127.0.0.1", socket.AF_INET)
    http.add_sockets([listening])
    try:
        yield listening.getsockname()[1]
    finally:
        http.stop()
        await http.close_all_connections()


async def opened(stack: contextlib.AsyncExitStack, port: int, request: bytes) -> Streams:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    stack.callback(writer.close)
    writer.write(request)
    return reader, writer


async def answered(streams: Streams) -> bytes:
    return await asyncio.wait_for(streams[0].readuntil(b"hello"), 30)


def test_connections_without_the_token_make_room_for_others() -> None:
    async def crowd() -> None:
        async with server() as port, contextlib.AsyncExitStack() as stack:
            known = await opened(stack, port, GET + KEY)
            await answered(known)
            in_query = await opened(stack, port, GET.replace(b"/ ", b"/?token=the-token ") + b"\r\n")
            await answered(in_query)
            silent = [await opened(stack, port, b"GET / HT") for _ in range(MOST)]
            wrong = await opened(stack, port, GET + KEY.replace(b"the-token", b"another"))
            await answered(wrong)
            assert await asyncio.wait_for(silent[0][0].read(), 30) == b""
            for each in (known, in_query):
                each[1].write(GET + KEY)
                await answered(each)

    asyncio.run(crowd())


def test_a_body_has_a_limit_that_is_looked_at_before_the_body_comes() -> None:
    async def send() -> bytes:
        async with server() as port, contextlib.AsyncExitStack() as stack:
            length = b"Content-Length: %d\r\n\r\n" % (MAX_BODY + 1)
            reader, _ = await opened(stack, port, GET.replace(b"GET", b"POST") + length)
            return await asyncio.wait_for(reader.read(), 30)

    assert b" 200 " not in asyncio.run(send())
