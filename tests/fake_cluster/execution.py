"""A program executed in a pod: `docker exec`, with its streams as channels of a WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from agent_tools.engines.docker.attached_stdio import OutputFrames
from tests.fake_cluster.pods import api

PIECE = 32 * 1024  # bytes in one message, as real servers send them


async def execute(websocket: WebSocket, container: str) -> None:
    """Carry the streams until either side ends."""
    wanted = websocket.scope.get("subprotocols", [])
    protocol = next((each for each in ("v5.channel.k8s.io", "v4.channel.k8s.io") if each in wanted), None)
    await websocket.accept(subprotocol=protocol)
    for channel in (1, 2, 3):
        await websocket.send_bytes(bytes([channel]))  # as real ones do
    command = websocket.query_params.getlist("command")
    made = await asyncio.to_thread(api.exec_create, container, command, stdin=True)
    raw = await asyncio.to_thread(api.exec_start, made["Id"], socket=True)
    stream: socket.socket = raw._sock
    stream.setblocking(False)
    outward = asyncio.create_task(_outward(websocket, stream, made["Id"]))
    try:
        await _inward(websocket, stream)
    finally:
        outward.cancel()
        stream.close()
        raw.close()


async def _inward(websocket: WebSocket, stream: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(WebSocketDisconnect, OSError, RuntimeError):
        while True:
            data = await websocket.receive_bytes()
            if data[:1] == b"\0":
                await loop.sock_sendall(stream, data[1:])


async def _outward(websocket: WebSocket, stream: socket.socket, id_: str) -> None:
    loop, frames = asyncio.get_running_loop(), OutputFrames()
    with contextlib.suppress(OSError):
        while data := await loop.sock_recv(stream, 256 * 1024):
            found = frames.stdout_of(data)
            for at in range(0, len(found), PIECE):
                await websocket.send_bytes(b"\1" + found[at : at + PIECE])
    code = (await asyncio.to_thread(api.exec_inspect, id_))["ExitCode"]
    with contextlib.suppress(RuntimeError):  # it has hung up
        await websocket.send_bytes(b"\3" + json.dumps(_status(code)).encode())
        await websocket.close()


def _status(code: int | None) -> dict[str, Any]:
    if not code:
        return {"metadata": {}, "status": "Success"}
    message = f"command terminated with non-zero exit code: exit status {code}"
    return {"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "message": message}
