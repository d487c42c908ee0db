"""Shells of users: a terminal over a WebSocket, which ends with it; the model may read it and type into it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from agent_tools.errors import AgentToolsError
from agent_tools.limits import KIB
from agent_tools.results.command import Cursor
from agent_tools.wires.terminal import requests as asked
from agent_tools.wires.terminal.callers import Caller, caller_of
from agent_tools.wires.terminal.commands import Started, started, typed
from agent_tools.wires.terminal.requests import Json, body_of
from agent_tools.wires.terminal.rooms import SHELL, Rooms, aside

MAX_SHELLS = 4  # of one container
FIRST_SECONDS = 10.0  # for the message with the key
MAX_FIRST = 4 * KIB
MAX_FRAME = 64 * KIB  # of input
UNATTACHED_SECONDS = 60.0  # that a shell waits for its WebSocket
TYPING_SECONDS = 30.0  # in which a shell takes what was typed
TOUCH_EVERY = 60.0  # seconds between two notes that a shell is used
SHOWN = 64 * KIB  # bytes of a shell's output that a model reads
BAD_KEY, NOT_FOUND, TAKEN, TOO_LARGE = 4001, 4004, 4009, 1009


@dataclass(eq=False)
class Shell:
    """A shell; its chat alone may use it."""

    id: str
    started: Started
    created_at: float
    is_connected: bool = False
    touched_at: float = 0.0

    def shown(self) -> dict[str, Any]:
        """Return it as lists have it."""
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.created_at))
        return {"id": self.id, "created_at": at, "pid": self.started.process.pid}


class Shells:
    """The shells of all callers. For one event loop."""

    def __init__(self, rooms: Rooms) -> None:
        self.rooms = rooms
        self._shells: dict[str, Shell] = {}

    async def open(self, caller: Caller) -> Shell:
        """Open a shell.

        Raises:
            HTTPException: 429, too many are open.
        """
        for shell in list(self._shells.values()):
            is_left = not shell.is_connected and time.time() > shell.created_at + UNATTACHED_SECONDS
            if is_left or shell.started.process.is_over:
                await self.end(shell)
        there = [each for each in self._shells.values() if each.started.caller.place[:2] == caller.place[:2]]
        refusal = f"Maximum number of terminal sessions ({MAX_SHELLS}) reached"
        with self.rooms.starting(caller, SHELL, len(there), MAX_SHELLS, refusal):
            cwd = self.rooms.cwd(caller)
            begun = await aside(partial(started, self.rooms, caller, SHELL, ["/bin/bash", "-i"], cwd, {}))
        shell = Shell(secrets.token_hex(16), begun, time.time())
        self._shells[shell.id] = shell
        return shell

    def all_of(self, caller: Caller) -> list[Shell]:
        """List the shells of the caller's chat that go on, oldest first."""
        found = [shell for shell in self._shells.values() if shell.started.caller.place == caller.place]
        return [shell for shell in found if not shell.started.process.is_over]

    def find(self, caller: Caller, id_: str) -> Shell | None:
        """Return a shell of the caller's chat."""
        return next((shell for shell in self.all_of(caller) if shell.id == id_), None)

    def touch(self, shell: Shell) -> None:
        """Note that a shell is used, now and then."""
        if time.monotonic() > shell.touched_at + TOUCH_EVERY:
            shell.touched_at = time.monotonic()
            asyncio.get_running_loop().run_in_executor(None, self.rooms.containers.touch, shell.started.container)

    async def end(self, shell: Shell) -> None:
        """End a shell."""
        if self._shells.pop(shell.id, None):
            await aside(shell.started.close)

    async def close(self) -> None:
        """End all."""
        for shell in list(self._shells.values()):
            await self.end(shell)


async def create_terminal(request: Request) -> Response:
    """POST /api/terminals. Its failures have an `error`, which the panel shows."""
    try:
        return Json((await _shells(request).open(caller_of(request))).shown())
    except HTTPException as exc:
        return Json({"error": exc.detail}, exc.status_code)
    except AgentToolsError as exc:
        return Json({"error": str(exc)}, 503)


async def list_terminals(request: Request) -> Response:
    """GET /api/terminals."""
    return Json([shell.shown() for shell in _shells(request).all_of(caller_of(request))])


async def one_terminal(request: Request) -> Response:
    """GET and DELETE /api/terminals/ID."""
    shell = _shells(request).find(caller_of(request), request.path_params["id"])
    if shell is None:
        return Json({"error": "Session not found"}, 404)
    if request.method == "DELETE":
        await _shells(request).end(shell)
        return Json({"status": "deleted"})
    return Json(shell.shown())


async def read_user_terminal(request: Request) -> Response:
    """GET /api/terminals/user/output."""
    process = _users_shell(request).started.process.sync
    new = process.read((max(0, process.place.stdout - SHOWN), 0))
    return Json({"output": new.stdout.decode("utf-8", "replace")})


async def send_user_terminal_input(request: Request) -> Response:
    """POST /api/terminals/user/input."""
    shell, text = _users_shell(request), (await body_of(request, asked.InputBody)).input
    await typed(shell.started.process, text)
    return Json({"status": "ok"})


async def attach(socket: WebSocket) -> None:
    """WS /api/terminals/ID: the first message has the key, then bytes go both ways."""
    shells: Shells = socket.app.state.shells
    await socket.accept()
    caller = await _first_message(socket)
    if caller is None:
        return await socket.close(BAD_KEY, "Invalid API key")
    shell = shells.find(caller, socket.path_params["id"])
    if shell is None:
        return await socket.close(NOT_FOUND, "Session not found")
    if shell.is_connected:
        return await socket.close(TAKEN, "Session already connected")
    shell.is_connected = True
    both = [asyncio.create_task(_outwards(socket, shell)), asyncio.create_task(_inwards(socket, shells, shell))]
    code = 1000
    try:
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        code = next((found for task in done if not task.exception() and (found := task.result())), code)
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        await shells.end(shell)
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await socket.close(code)


async def _first_message(socket: WebSocket) -> Caller | None:
    """Return the caller that the first message names by its key; None if it is refused."""
    try:
        text = await asyncio.wait_for(socket.receive_text(), FIRST_SECONDS)
    except (asyncio.TimeoutError, KeyError, WebSocketDisconnect):
        return None
    first = read_first(text)
    if first is None or not await aside(socket.scope["let_in"], first[0]):
        return None
    chat = first[1]
    if chat and not socket.scope["for_users"]:
        socket.scope["headers"] = [*socket.scope["headers"], (b"x-session-id", chat.encode("latin-1", "replace"))]
        return caller_of(WebSocket(socket.scope, socket.receive, socket.send))
    return caller_of(socket)


async def _outwards(socket: WebSocket, shell: Shell) -> int:
    """Send what the shell prints, to its end. A slow client makes it wait; of what it misses, the end is sent."""
    process, cursor = shell.started.process, Cursor()
    while True:
        is_over = process.is_over
        new = process.sync.read(cursor)
        cursor = new.cursor
        if new.omitted:
            await socket.send_bytes(f"\r\n[{new.omitted:,} bytes are left out]\r\n".encode())
        if new.stdout:
            await socket.send_bytes(new.stdout)
        elif is_over:
            return 0
        else:
            await process.changed(cursor)


async def _inwards(socket: WebSocket, shells: Shells, shell: Shell) -> int:
    """Take what the user types, until the client leaves; return a code for closing."""
    process = shell.started.process
    while (message := await socket.receive())["type"] != "websocket.disconnect":
        data, text = message.get("bytes") or b"", message.get("text") or ""
        if len(data) > MAX_FRAME or len(text) > MAX_FRAME:
            return TOO_LARGE
        if data:
            shells.touch(shell)
            try:
                await process.write_stdin(data, TYPING_SECONDS)
            except (TimeoutError, BrokenPipeError):
                return 0
        elif size := read_size(text):
            process.resize(*size)
    return 0


def read_first(text: str) -> tuple[str, str] | None:
    """Return the key and the chat, '' for none, that a client's first message has; None if it is another message."""
    with contextlib.suppress(ValueError, RecursionError):
        first = json.loads(text) if len(text) <= MAX_FIRST else None
        if isinstance(first, dict) and first.get("type") == "auth" and isinstance(first.get("token"), str):
            chat = first.get("chat_id")
            return first["token"], chat if isinstance(chat, str) else ""
    return None


def read_size(text: str) -> tuple[int, int] | None:
    """Return the rows and columns that a message names, None for any other message."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text)
        if isinstance(found, dict) and found.get("type") == "resize":
            rows, columns = found.get("rows"), found.get("cols")
            if type(rows) is int and type(columns) is int and 0 < rows < 1_000 and 0 < columns < 1_000:
                return rows, columns
    return None


def _shells(request: Request) -> Shells:
    shells: Shells = request.app.state.shells
    return shells


def _users_shell(request: Request) -> Shell:
    """Return the newest connected shell of the chat.

    Raises:
        HTTPException: 404, there is none.
    """
    for shell in reversed(_shells(request).all_of(caller_of(request))):
        if shell.is_connected:
            return shell
    raise HTTPException(404, "No connected user shell")
