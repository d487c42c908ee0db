"""Shells of users over WebSockets: processes on a terminal, each of one chat."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException, WebSocketException
from starlette.websockets import WebSocket, WebSocketDisconnect

from agent_tools.limits import KIB
from agent_tools.machine.race import race
from agent_tools.results.commands import Cursor
from agent_tools.sandbox.async_sandbox import AsyncProcess
from agent_tools.wires.open_resources import TYPING_SECONDS, followed
from agent_tools.wires.terminal.commands import Process, Typed, start, type_into
from agent_tools.wires.terminal.state import ROUTES, TerminalRequest

FIRST_SECONDS = 10.0  # for a WebSocket's message with the key
MAX_FIRST = 4 * KIB
MAX_FRAME = 64 * KIB  # of input
MAX_REASON = 100  # characters of a refusal: a reason has at most 123 bytes
UNATTACHED_SECONDS = 60.0  # that a shell waits for its WebSocket
TOUCH_EVERY = 60.0  # seconds between two notes that a shell is used
SHOWN = 64 * KIB  # bytes of a shell's output that a model reads
BAD_KEY, NOT_FOUND, TAKEN, TOO_LARGE = 4001, 4004, 4009, 1009


@ROUTES.on("POST", "/api/terminals")
async def _create_terminal(call: TerminalRequest) -> Any:
    for shell in call.wire.shells.of(call.place[:2]):
        if not shell.is_attached and time.time() > shell.created_at + UNATTACHED_SECONDS:
            await call.wire.shells.end(shell)
    return _described(await start(call, call.wire.shells, "", ["/bin/bash", "-i"], call.cwd, {}))


@ROUTES.on("GET", "/api/terminals")
async def _list_terminals(call: TerminalRequest) -> Any:
    return [_described(shell) for shell in call.wire.shells.of(call.place) if not shell.it.is_over]


@ROUTES.on("GET", "/api/terminals/user/output", is_tool=True)
async def read_user_terminal(call: TerminalRequest) -> Any:
    """Read the end of the user's own terminal."""
    process = _users(call).it.sync
    new = process.read((max(0, process.place.stdout - SHOWN), 0))
    return {"output": new.stdout.decode("utf-8", "replace")}


@ROUTES.on("POST", "/api/terminals/user/input", is_tool=True)
async def send_user_terminal_input(call: TerminalRequest, input: Typed) -> Any:  # noqa: A002
    """Type into the user's own terminal."""
    return await type_into(_users(call).it, input)


@ROUTES.on("GET", "/api/terminals/{id}")
async def _terminal(call: TerminalRequest, id: str) -> Any:  # noqa: A002
    return _described(_shell(call, id))


@ROUTES.on("DELETE", "/api/terminals/{id}")
async def _close_terminal(call: TerminalRequest, id: str) -> Any:  # noqa: A002
    await call.wire.shells.end(_shell(call, id))
    return {"status": "deleted"}


async def attach(socket: WebSocket) -> None:
    """Serve WS /api/terminals/ID: the first message has the key, if the head has none; then bytes go both ways."""
    await socket.accept()
    call = await _first_message(socket)
    try:
        shell = _shell(call, socket.path_params["id"])
    except HTTPException as exc:
        raise WebSocketException(NOT_FOUND, exc.detail) from None
    if shell.is_attached:
        raise WebSocketException(TAKEN, "Session already connected")
    shell.is_attached = True
    try:
        await race(_outwards(socket, shell.it), _inwards(socket, call, shell))
    finally:
        await call.wire.shells.end(shell)
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await socket.close()


def _shell(call: TerminalRequest, id_: str) -> Process:
    return call.wire.shells.find(call.place, id_, "Session not found")


def _described(shell: Process) -> dict[str, Any]:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(shell.created_at))
    return {"id": shell.id, "created_at": at, "pid": shell.it.pid}


def _users(call: TerminalRequest) -> Process:
    """Return the newest shell of the chat to which a client is attached."""
    for shell in reversed(call.wire.shells.of(call.place)):
        if shell.is_attached:
            return shell
    raise HTTPException(404, "No connected user shell")


class FirstMessage(BaseModel):
    """The first message of a WebSocket. The chat counts with a key that is not for users."""

    type: Literal["auth"]
    token: str
    chat_id: str | None = None


class SizeMessage(BaseModel):
    """A new size of the terminal."""

    type: Literal["resize"]
    rows: Annotated[int, Field(strict=True, ge=1, lt=1_000)]
    cols: Annotated[int, Field(strict=True, ge=1, lt=1_000)]


async def _first_message(socket: WebSocket) -> TerminalRequest:
    """Return the request that the first message makes by its key.

    Raises:
        WebSocketException: it is refused.
    """
    with contextlib.suppress(asyncio.TimeoutError, KeyError, WebSocketDisconnect, ValidationError):
        text = await asyncio.wait_for(socket.receive_text(), FIRST_SECONDS)
        first = FirstMessage.model_validate_json(text if len(text) <= MAX_FIRST else "")
        if "owner" in socket.scope or await socket.scope["authenticate"](first.token):
            call = TerminalRequest(socket)
            if first.chat_id and not socket.scope["for_users"]:
                call.session = first.chat_id[:128]
            return call
    refusal = socket.scope.get("refusal")
    raise WebSocketException(BAD_KEY, refusal.message[:MAX_REASON] if refusal else "Invalid API key")


async def _outwards(socket: WebSocket, process: AsyncProcess) -> None:
    """Send a shell's output, to its end. The shell waits while the client does not read."""
    async for new in followed(process, Cursor()):
        if new.omitted:  # before the client was there
            await socket.send_bytes(f"\r\n[{new.omitted:,} bytes are left out]\r\n".encode())
        await socket.send_bytes(new.stdout)


async def _inwards(socket: WebSocket, call: TerminalRequest, shell: Process) -> None:
    """Pass on the user's input until the client disconnects, or the shell takes none."""
    touched_at = 0.0
    while (message := await socket.receive())["type"] != "websocket.disconnect":
        data, text = message.get("bytes") or b"", message.get("text") or ""
        if len(data) > MAX_FRAME or len(text) > MAX_FRAME:
            await socket.close(TOO_LARGE)
            return
        if data:
            if time.monotonic() > touched_at + TOUCH_EVERY:
                touched_at = time.monotonic()
                asyncio.get_running_loop().run_in_executor(None, call.wire.containers.touch, shell.container)
            await shell.it.write_stdin(data, TYPING_SECONDS)
        with contextlib.suppress(ValidationError):  # other messages mean nothing
            size = SizeMessage.model_validate_json(text)
            shell.it.resize(size.rows, size.cols)
