"""The protocol over WebSockets of the gateway: `ws://HOST:PORT/codex/NAME`, a container for each name of a key.

`codex exec-server forward` sends no header, so the key may stand behind the name: `/codex/NAME/KEY`. No log has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket, WebSocketDisconnect

from agent_tools.containers.containers import Containers
from agent_tools.containers.mount import Mount
from agent_tools.containers.records import NAMED
from agent_tools.containers.rows import Rows
from agent_tools.containers.spec import ContainerSpec
from agent_tools.engines.engine import GUEST_WORK_DIR
from agent_tools.wires.codex.connection import CodexWire, Connection, SessionContainer
from agent_tools.wires.paths import Home
from agent_tools.wires.routing import application, digest

ORIGIN = f"{NAMED}codex"
MAX_NAME = 128  # characters
HOME = Home(GUEST_WORK_DIR, ())
_NOT_LET_IN = 1008
_LEFT = "websocket.disconnect"


async def _attach(socket: WebSocket) -> None:
    key = socket.path_params.get("key", "")
    if "owner" not in socket.scope and not await socket.scope["authenticate"](key, in_path=True):
        await socket.close(_NOT_LET_IN)  # answers 403
        return
    wire: CodexWire = socket.app.state.wire
    containers, owner, name = socket.app.state.containers, socket.scope["owner"], socket.path_params.get("name", "")
    if len(name) > MAX_NAME:
        await socket.close(_NOT_LET_IN)
        return
    await socket.accept()
    room = digest("codex", name)[:40]

    def container() -> str:
        spec = ContainerSpec(room, idle_minutes=containers.config.user_container_idle / 60, origin=ORIGIN)
        return str(containers.named(owner, spec, containers.config.max_user_containers).id)

    async def write(message: str) -> None:
        with suppress(WebSocketDisconnect, RuntimeError, OSError):  # the client has left
            await socket.send_text(message)

    connection = Connection(wire, SessionContainer((owner, room), container, HOME), write)
    await _serve(socket, connection, lambda: containers.may_use(owner))


async def _serve(socket: WebSocket, connection: Connection, may_use: Callable[[], bool]) -> None:
    """Serve a client until it leaves, also while a request is handled, or breaks the protocol, or may not use it."""
    coming = asyncio.ensure_future(socket.receive())
    handling: asyncio.Future[bool] | None = None
    try:
        while (message := await coming)["type"] != _LEFT:
            coming = asyncio.ensure_future(socket.receive())
            data = message.get("bytes") or (message.get("text") or "").encode("utf-8", "surrogatepass")
            handling = asyncio.ensure_future(connection.handle(data)) if may_use() else None
            if handling:
                await asyncio.wait((handling, coming), return_when=asyncio.FIRST_COMPLETED)
                if not handling.done() and coming.result()["type"] == _LEFT:
                    break
            if handling is None or not await handling:
                await socket.close(_NOT_LET_IN)
                break
    finally:
        coming.cancel()
        if handling:
            handling.cancel()
        await connection.close()


@asynccontextmanager
async def _opened(containers: Containers[Any], _: Rows) -> AsyncIterator[ASGIApp]:
    app = application([WebSocketRoute(path, _attach) for path in ("/", "/{name}", "/{name}/{key}")])
    app.state.containers, app.state.wire = containers, CodexWire(containers)
    try:
        yield app
    finally:  # another door may fail to close
        await app.state.wire.close()


MOUNT = Mount("/codex", _opened, has_tree=True, has_secret_path=True)
