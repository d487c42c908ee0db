"""Connections of an HTTP server whose clients have not shown the token: few, short and small."""

from __future__ import annotations

import hmac
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.iostream import IOStream

from agent_tools.limits import MIB

MOST = 64  # at once; the oldest makes room
HEAD_TIMEOUT = 60.0  # seconds in which the next head must come, so also how long a connection stays open unused
BODY_TIMEOUT = 30.0
MAX_BODY = MIB  # of any request; the messages of kernels come by WebSocket


class UnknownClients:
    """The connections of a server, from their start until their client shows the token. For one event loop."""

    def __init__(self, server: HTTPServer, token: str) -> None:
        self._token = token.encode()
        self._streams: dict[Any, None] = {}  # the oldest first
        self._handle = server.handle_stream
        server.handle_stream = self._add  # type: ignore[method-assign]
        limits = server.conn_params
        limits.header_timeout, limits.body_timeout, limits.max_body_size = HEAD_TIMEOUT, BODY_TIMEOUT, MAX_BODY

    def _add(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        self._streams[stream] = None
        if len(self._streams) > MOST:
            oldest = next(iter(self._streams))
            del self._streams[oldest]
            oldest.close()
        self._handle(stream, address)

    def look_at(self, request: HTTPServerRequest) -> None:
        """Forget the connection of a request whose head, or query, has the token."""
        given = request.headers.get("Authorization", "").partition(" ")[2].encode()
        if any(hmac.compare_digest(each, self._token) for each in (given, *request.arguments.get("token", ()))):
            self._streams.pop(getattr(request.connection, "stream", None), None)
