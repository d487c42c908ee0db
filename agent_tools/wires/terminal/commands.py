"""Commands of the model, and shells of users over WebSockets: processes on a terminal, each of one chat."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import signal
import time
from typing import Annotated, Any

from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.websockets import WebSocket, WebSocketDisconnect

from agent_tools.errors import AgentToolsError
from agent_tools.limits import KIB, MIB
from agent_tools.results.execution import Cursor
from agent_tools.sandbox.async_sandbox import AsyncProcess
from agent_tools.wires.http import Json, aside
from agent_tools.wires.opened import Opened, Processes
from agent_tools.wires.terminal.callers import HOME, ROUTES, Caller, TerminalRequest, caller_of, in_sandbox

USUAL_WAIT = 10.0  # seconds
OPTIONS = {"stdin": b"", "terminal": (24, 80), "max_output": MIB}  # of its output, the end is kept
ENVIRONMENT = {"HOME": HOME, "HISTFILE": "/tmp/.bash_history", "PAGER": "cat", "GIT_PAGER": "cat"}
"""Environment variables: caches lie in HOME, which is kept, and no pager waits for a key."""
FIRST_SECONDS = 10.0  # for a WebSocket's message with the key
MAX_FIRST = 4 * KIB
MAX_FRAME = 64 * KIB  # of input
UNATTACHED_SECONDS = 60.0  # that a shell waits for its WebSocket
TYPING_SECONDS = 10.0  # in which a process takes what was typed
TOUCH_EVERY = 60.0  # seconds between two notes that a shell is used
SHOWN = 64 * KIB  # bytes of a shell's output that a model reads
AHEAD = 256 * KIB  # bytes that a shell may print beyond what its client has read
BAD_KEY, NOT_FOUND, TAKEN, TOO_LARGE = 4001, 4004, 4009, 1009

Count = Annotated[int, Field(ge=1, le=2**53)]
Wait = Annotated[float | None, Field(ge=0, le=240, description="Seconds to wait for the end, at most 240.")]
Tail = Annotated[Count | None, Field(description="Return only the last lines, at most this number.")]
Typed = Annotated[str, Field(max_length=100_000, description="The text to type; end a line with a newline.")]
Process = Opened[AsyncProcess]
_GONE = {"error": "Session not found"}  # failures of shells have an `error`, which the panel shows


async def _start(
    call: TerminalRequest, shelf: Processes, command: str | list[str], cwd: str, env: dict[str, str]
) -> Process:
    options = {**OPTIONS, "cwd": "" if cwd == HOME else in_sandbox(cwd), "env": {**ENVIRONMENT, **env}}
    return await shelf.start(call.caller.place, call.caller.ensure, command=command, **options)


@ROUTES.on("POST", "/execute", query=("wait", "tail"), is_tool=True)
async def run_command(
    call: TerminalRequest,
    command: Annotated[str, Field(max_length=100_000, description="A command line for bash.")],
    wait: Wait = None,
    tail: Tail = None,
    cwd: Annotated[str | None, Field(description="The folder to start in.")] = None,
    env: Annotated[dict[str, str] | None, Field(description="Further environment variables.")] = None,
) -> Any:
    """Run a command line in bash, on a terminal.

    The answer comes after at most `wait` seconds (10 by default); a longer command has status running: use
    get_process_status.
    """
    folder = call.caller.path(cwd or ".")
    run = await _start(call, call.wire.commands, command, folder, env or {})
    run.label = command
    await _awaited(run, USUAL_WAIT if wait is None else wait)
    return {**_told(run, 0, tail), "cwd": folder}


@ROUTES.on("GET", "/execute", is_tool=True)
async def list_processes(call: TerminalRequest) -> Any:
    """List the commands of this chat that run or ended recently."""
    return [_shown(run) for run in call.wire.commands.of(call.caller.place)]


@ROUTES.on("GET", "/execute/{process_id}/status", is_tool=True)
async def get_process_status(
    call: TerminalRequest,
    process_id: str,
    wait: Wait = None,
    tail: Tail = None,
    offset: Annotated[int, Field(ge=0, le=2**53, description="Where to read on: `next_offset` of before.")] = 0,
) -> Any:
    """Read the output of a running command, from `offset` on, and whether it has ended."""
    run = _run(call, process_id)
    await _awaited(run, wait or 0)
    return _told(run, offset, tail)


@ROUTES.on("POST", "/execute/{process_id}/input", is_tool=True)
async def send_process_input(call: TerminalRequest, process_id: str, input: Typed) -> Any:  # noqa: A002
    """Type into a running command."""
    return await _type(_run(call, process_id), input)


@ROUTES.on("DELETE", "/execute/{process_id}", is_tool=True)
async def kill_process(
    call: TerminalRequest,
    process_id: str,
    force: Annotated[bool, Field(description="Kill at once, instead of asking the command to end.")] = False,
) -> Any:
    """End a command that goes on."""
    run = _run(call, process_id)
    run.was_killed = run.was_killed or not run.it.is_over
    if force:
        run.it.kill()
    else:
        run.it.signal(signal.SIGTERM)
        await _awaited(run, 1.0)
    return {"status": "killed"}


@ROUTES.on("POST", "/api/terminals")
async def _create_terminal(call: TerminalRequest) -> Any:
    """Open a shell; failures have an `error`, which the panel shows."""
    for shell in call.wire.shells.of(call.caller.place[:2]):
        if not shell.is_attached and time.time() > shell.created_at + UNATTACHED_SECONDS:
            await call.wire.shells.end(shell)
    try:
        return _described(await _start(call, call.wire.shells, ["/bin/bash", "-i"], call.caller.cwd, {}))
    except HTTPException as exc:
        return Json({"error": exc.detail}, exc.status_code)
    except AgentToolsError as exc:
        return Json({"error": str(exc)}, 503)


@ROUTES.on("GET", "/api/terminals")
async def _list_terminals(call: TerminalRequest) -> Any:
    return [_described(shell) for shell in _shells(call.caller)]


@ROUTES.on("GET", "/api/terminals/user/output", is_tool=True)
async def read_user_terminal(call: TerminalRequest) -> Any:
    """Read the end of the user's own terminal."""
    process = _users(call.caller).it.sync
    new = process.read((max(0, process.place.stdout - SHOWN), 0))
    return {"output": new.stdout.decode("utf-8", "replace")}


@ROUTES.on("POST", "/api/terminals/user/input", is_tool=True)
async def send_user_terminal_input(call: TerminalRequest, input: Typed) -> Any:  # noqa: A002
    """Type into the user's own terminal."""
    return await _type(_users(call.caller), input)


@ROUTES.on("GET", "/api/terminals/{id}")
async def _terminal(call: TerminalRequest, id: str) -> Any:  # noqa: A002
    shell = _shell(call.caller, id)
    return _described(shell) if shell else Json(_GONE, 404)


@ROUTES.on("DELETE", "/api/terminals/{id}")
async def _close_terminal(call: TerminalRequest, id: str) -> Any:  # noqa: A002
    if (shell := _shell(call.caller, id)) is None:
        return Json(_GONE, 404)
    await call.wire.shells.end(shell)
    return {"status": "deleted"}


async def attach(socket: WebSocket) -> None:
    """Serve WS /api/terminals/ID: the first message has the key, then bytes go both ways."""
    await socket.accept()
    caller = await _first_message(socket)
    if caller is None:
        return await socket.close(BAD_KEY, "Invalid API key")
    shell = _shell(caller, socket.path_params["id"])
    if shell is None:
        return await socket.close(NOT_FOUND, "Session not found")
    if shell.is_attached:
        return await socket.close(TAKEN, "Session already connected")
    shell.is_attached = True
    both = [asyncio.create_task(_outwards(socket, shell.it)), asyncio.create_task(_inwards(socket, caller, shell))]
    code = 1000
    try:
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        code = next((found for task in done if not task.exception() and (found := task.result())), code)
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        await caller.wire.shells.end(shell)
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await socket.close(code)


# -- parts --------------------------------------------------------------------------------------------------------


def _run(call: TerminalRequest, id_: str) -> Process:
    run = call.wire.commands.find(call.caller.place, id_)
    if run is None:
        raise HTTPException(404, "Process not found")
    return run


async def _awaited(run: Process, seconds: float) -> None:
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(run.it.wait(), seconds)


async def _type(thing: Process, text: str) -> dict[str, str]:
    try:
        await thing.it.write_stdin(text.encode("utf-8", "replace"), TYPING_SECONDS)
    except BrokenPipeError:
        raise HTTPException(400, "Process has already exited") from None
    except TimeoutError as exc:
        raise HTTPException(409, str(exc)) from None
    return {"status": "ok"}


def _shown(run: Process) -> dict[str, Any]:
    status = "killed" if run.was_killed or run.it.sync.reason else "done"
    status = status if run.it.is_over else "running"
    return {"id": run.id, "command": run.label, "status": status, "exit_code": run.it.poll(), "log_path": None}


def _told(run: Process, offset: int, tail: int | None) -> dict[str, Any]:
    """Return a command with its output from a byte offset on; no character is cut in two."""
    shown, is_over, new = _shown(run), run.it.is_over, run.it.sync.read((offset, 0))
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(new.stdout, final=is_over)
    lines = text.splitlines(keepends=True)
    is_cut = bool(tail and len(lines) > tail)
    text = "".join(lines[-tail:]) if tail and is_cut else text
    if why := run.it.sync.result().reason if is_over else "":
        text += f"[{why}]\n"
    return {
        **shown,
        "output": [{"type": "output", "data": text}] if text else [],
        "next_offset": new.cursor.stdout - len(decoder.getstate()[0]),
        "truncated": is_cut or bool(new.omitted),
    }


def _described(shell: Process) -> dict[str, Any]:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(shell.created_at))
    return {"id": shell.id, "created_at": at, "pid": shell.it.pid}


def _shells(caller: Caller) -> list[Process]:
    """List the running shells of the caller's chat, oldest first."""
    return [shell for shell in caller.wire.shells.of(caller.place) if not shell.it.is_over]


def _shell(caller: Caller, id_: str) -> Process | None:
    return next((shell for shell in _shells(caller) if shell.id == id_), None)


def _users(caller: Caller) -> Process:
    """Return the newest shell of the chat to which a client is attached."""
    for shell in reversed(_shells(caller)):
        if shell.is_attached:
            return shell
    raise HTTPException(404, "No connected user shell")


async def _first_message(socket: WebSocket) -> Caller | None:
    """Return the caller that the first message names by its key; None if it is refused."""
    try:
        text = await asyncio.wait_for(socket.receive_text(), FIRST_SECONDS)
    except (asyncio.TimeoutError, KeyError, WebSocketDisconnect):
        return None
    first = read_first(text)
    if first is None or not await aside(socket.scope["let_in"], first[0]):
        return None
    if first[1] and not socket.scope["for_users"]:
        chat = (b"x-session-id", first[1].encode("latin-1", "replace"))
        socket.scope["headers"] = [*socket.scope["headers"], chat]
        socket = WebSocket(socket.scope, socket.receive, socket.send)
    return caller_of(socket)


async def _outwards(socket: WebSocket, process: AsyncProcess) -> int:
    """Send a shell's output, to its end. The shell waits while the client does not read."""
    cursor = Cursor()
    while True:
        process.sync.pace(cursor.stdout + AHEAD)
        is_over, new = process.is_over, process.sync.read(cursor)
        cursor = new.cursor
        if new.omitted:  # before the client was there
            await socket.send_bytes(f"\r\n[{new.omitted:,} bytes are left out]\r\n".encode())
        if new.stdout:
            await socket.send_bytes(new.stdout)
        elif is_over:
            return 0
        else:
            await process.changed(cursor)


async def _inwards(socket: WebSocket, caller: Caller, shell: Process) -> int:
    """Pass on the user's input until the client disconnects; return a code for closing."""
    touched_at = 0.0
    while (message := await socket.receive())["type"] != "websocket.disconnect":
        data, text = message.get("bytes") or b"", message.get("text") or ""
        if len(data) > MAX_FRAME or len(text) > MAX_FRAME:
            return TOO_LARGE
        if data:
            if time.monotonic() > touched_at + TOUCH_EVERY:
                touched_at = time.monotonic()
                asyncio.get_running_loop().run_in_executor(None, caller.wire.containers.touch, shell.container)
            try:
                await shell.it.write_stdin(data, TYPING_SECONDS)
            except (TimeoutError, BrokenPipeError):
                return 0
        elif size := read_size(text):
            shell.it.resize(*size)
    return 0


def read_first(text: str) -> tuple[str, str] | None:
    """Return the key and the chat, '' for none, that a client's first message has; None if it is another message."""
    first = _object(text) if len(text) <= MAX_FIRST else {}
    token, chat = first.get("token"), first.get("chat_id")
    if first.get("type") != "auth" or not isinstance(token, str):
        return None
    return token, chat if isinstance(chat, str) else ""


def read_size(text: str) -> tuple[int, int] | None:
    """Return the rows and columns that a message names, None for any other message."""
    found = _object(text)
    rows, columns = found.get("rows"), found.get("cols")
    if found.get("type") == "resize" and type(rows) is int and type(columns) is int:
        return (rows, columns) if 0 < rows < 1_000 and 0 < columns < 1_000 else None
    return None


def _object(text: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text)
        return found if isinstance(found, dict) else {}
    return {}
