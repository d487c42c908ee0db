"""A second port for an operator's own machines: a small server beside the first, in the same event loop."""

from __future__ import annotations

import os
import socket

import uvicorn
from starlette.types import ASGIApp

from agent_tools.errors import InvalidParams


def listening(host: str, port: int, option: str) -> socket.socket:
    """Return a socket that listens there.

    Raises:
        InvalidParams: the port cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as exc:
        reason = f"{option}: {host}:{port} cannot be listened on ({os.strerror(exc.errno or 0)})"
        raise InvalidParams(f"{reason}. Give another port, or end the program that has it.") from exc


class SecondPort:
    """Listens from the start; answers while it is open.

    Raises:
        InvalidParams: the port cannot be had.
    """

    def __init__(self, host: str, port: int) -> None:
        self.socket = listening(host, port, "metrics_port")
        self._server: uvicorn.Server | None = None

    async def open(self, app: ASGIApp) -> None:
        """Begin to answer."""
        config = uvicorn.Config(app, lifespan="off", log_config=None, server_header=False, access_log=False, ws="none")
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
