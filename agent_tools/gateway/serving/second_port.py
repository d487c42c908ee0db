"""A second port, for what an operator's own machines ask: a small server beside the first, in the same event loop."""

from __future__ import annotations

import socket
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from agent_tools.errors import InvalidParams


class SecondPort:
    """Listens from the start; answers while it is open.

    Raises:
        InvalidParams: the port cannot be had.
    """

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self.socket = socket.create_server((host, port), family=family)
        except OSError as exc:
            raise InvalidParams(f"metrics_port: {host}:{port} cannot be listened on ({exc.strerror}).") from exc
        self._server: uvicorn.Server | None = None

    async def open(self, app: ASGIApp) -> None:
        """Begin to answer."""
        config = uvicorn.Config(app, lifespan="off", log_config=None, server_header=False, http=_Unlogged, ws="none")
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup([self.socket])

    async def close(self) -> None:
        """Hang up."""
        if self._server:
            self._server.force_exit = True  # nobody's work is lost
            await self._server.shutdown([self.socket])
        self.socket.close()


class _Unlogged(H11Protocol):
    """A connection whose requests are in no log; uvicorn's own setting would end the first port's log, too."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.access_log = False
