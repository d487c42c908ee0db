"""Codex's exec-server protocol: the sandbox of Codex (stdio) and of OpenAI's Agents API (`codex exec-server forward`).

The executor stands on the host: keys, relay and network stay there, and processes and files are those of a sandbox.
Format: https://github.com/openai/codex, codex-rs/exec-server-protocol/src/protocol.rs, compared with what
`codex exec-server --listen stdio` of 0.171.0 answers (`scripts/try codex`).

Over WebSockets of the gateway it is at `ws://HOST:PORT/codex/NAME`, a container for each name of a key. `codex
exec-server forward` sends no header, so the key may stand behind the name: `/codex/NAME/KEY`. No log has it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
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


async def _attach(socket: WebSocket) -> None:
    key, name = socket.path_params.get("key", ""), socket.path_params.get("name", "")
    is_let_in = "owner" in socket.scope or await socket.scope["authenticate"](key, in_path=True)
    if not is_let_in and (refusal := socket.scope["refusal"]):
        raise refusal
    if not is_let_in or len(name) > MAX_NAME:
        await socket.close(_NOT_LET_IN)  # answers 403
        return
    await socket.accept()
    containers, owner, room = socket.app.state.containers, socket.scope["owner"], digest("codex", name)[:40]

    def container() -> str:
        spec = ContainerSpec(room, idle_minutes=containers.config.user_container_idle / 60, origin=ORIGIN)
        return str(containers.named(owner, spec, containers.config.max_user_containers).id)

    async def receive() -> bytes | None:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        if not containers.may_use(owner):
            await socket.close(_NOT_LET_IN)
            return None
        return message.get("bytes") or (message.get("text") or "").encode("utf-8", "surrogatepass")

    async def write(message: str) -> None:
        with suppress(WebSocketDisconnect, RuntimeError, OSError):  # the client has left
            await socket.send_text(message)

    connection = Connection(socket.app.state.wire, SessionContainer((owner, room), container, HOME), write)
    if not await connection.serve(receive):
        await socket.close(_NOT_LET_IN)


@asynccontextmanager
async def _opened(containers: Containers[Any], _: Rows) -> AsyncIterator[ASGIApp]:
    app = application([WebSocketRoute(path, _attach) for path in ("/", "/{name}", "/{name}/{key}")])
    app.state.containers, app.state.wire = containers, CodexWire(containers)
    try:
        yield app
    finally:  # another door may fail to close
        await app.state.wire.close()


MOUNT = Mount("/codex", _opened, has_tree=True, has_secret_path=True)
