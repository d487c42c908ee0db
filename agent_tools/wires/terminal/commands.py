"""Commands of the model, and shells of users over WebSockets: processes on a terminal, each of one chat."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import signal
import time
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException, WebSocketException
from starlette.websockets import WebSocket, WebSocketDisconnect

from agent_tools.bodies.connections import race
from agent_tools.bodies.json_body import at_most
from agent_tools.limits import KIB, MIB
from agent_tools.results.commands import Cursor
from agent_tools.sandbox.async_sandbox import AsyncProcess
from agent_tools.wires.open_resources import TYPING_SECONDS, OpenResource, Processes, followed
from agent_tools.wires.terminal.state import HOME, ROUTES, TerminalRequest, in_sandbox

USUAL_WAIT = 10.0  # seconds
ENVIRONMENT = {"HOME": HOME, "HISTFILE": "/tmp/.bash_history", "PAGER": "cat", "GIT_PAGER": "cat"}
"""Environment variables: caches lie in HOME, which is kept, and no pager waits for a key."""
FIRST_SECONDS = 10.0  # for a WebSocket's message with the key
MAX_FIRST = 4 * KIB
MAX_FRAME = 64 * KIB  # of input
UNATTACHED_SECONDS = 60.0  # that a shell waits for its WebSocket
TOUCH_EVERY = 60.0  # seconds between two notes that a shell is used
SHOWN = 64 * KIB  # bytes of a shell's output that a model reads
BAD_KEY, NOT_FOUND, TAKEN, TOO_LARGE = 4001, 4004, 4009, 1009

Count = Annotated[int, Field(ge=1, le=2**53)]
Wait = Annotated[float | None, Field(ge=0, le=240, description="Seconds to wait for the end, at most 240.")]
Tail = Annotated[Count | None, Field(description="Return only the last lines, at most this number.")]
Typed = Annotated[str, Field(max_length=100_000, description="The text to type; end a line with a newline.")]
Process = OpenResource[AsyncProcess]


async def _start(
    call: TerminalRequest, resources: Processes, label: str, command: str | list[str], cwd: str, env: dict[str, str]
) -> Process:
    return await resources.start(
        call.place,
        call.ensure,
        label,
        command=command,
        cwd="" if cwd == HOME else in_sandbox(cwd),
        env={**ENVIRONMENT, **env},
        stdin=b"",
        terminal=(24, 80),
        max_output=MIB,
    )


@ROUTES.on("POST", "/execute", query=("wait", "tail"), is_tool=True)
async def run_command(
    call: TerminalRequest,
    command: Annotated[str, Field(max_length=100_000, description="A command line for bash.")],
    wait: Wait = None,
    tail: Tail = None,
    cwd: Annotated[str | None, Field(description="The folder to start in.")] = None,
    env: Annotated[dict[str, str] | None, at_most(1_000), Field(description="Further environment variables.")] = None,
) -> Any:
    """Run a command line in bash, on a terminal.

    The answer comes after at most `wait` seconds (10 by default); a longer command has status running: use
    get_process_status.
    """
    folder = call.path(cwd or ".")
    run = await _start(call, call.wire.commands, command, command, folder, env or {})
    await _awaited(run, USUAL_WAIT if wait is None else wait)
    return {**command_shown(run, 0, tail), "cwd": folder}


@ROUTES.on("GET", "/execute", is_tool=True)
async def list_processes(call: TerminalRequest) -> Any:
    """List the commands of this chat that run or ended recently."""
    return [_shown(run) for run in call.wire.commands.of(call.place)]


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
    return command_shown(run, offset, tail)


@ROUTES.on("POST", "/execute/{process_id}/input", is_tool=True)
async def send_process_input(call: TerminalRequest, process_id: str, input: Typed) -> Any:  # noqa: A002
    """Type into a running command."""
    return await _type(_run(call, process_id).it, input)


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
    for shell in call.wire.shells.of(call.place[:2]):
        if not shell.is_attached and time.time() > shell.created_at + UNATTACHED_SECONDS:
            await call.wire.shells.end(shell)
    return _described(await _start(call, call.wire.shells, "", ["/bin/bash", "-i"], call.cwd, {}))


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
    return await _type(_users(call).it, input)


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


# -- parts --------------------------------------------------------------------------------------------------------


def _run(call: TerminalRequest, id_: str) -> Process:
    return call.wire.commands.find(call.place, id_, "Process not found")


def _shell(call: TerminalRequest, id_: str) -> Process:
    return call.wire.shells.find(call.place, id_, "Session not found")


async def _awaited(run: Process, seconds: float) -> None:
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(run.it.wait(), seconds)


async def _type(process: AsyncProcess, text: str) -> dict[str, str]:
    await process.write_stdin(text.encode("utf-8", "replace"), TYPING_SECONDS)
    return {"status": "ok"}


def _shown(run: Process) -> dict[str, Any]:
    status = "killed" if run.was_killed or run.it.sync.reason else "done"
    status = status if run.it.is_over else "running"
    return {"id": run.id, "command": run.label, "status": status, "exit_code": run.it.poll(), "log_path": None}


def command_shown(run: Process, offset: int, tail: int | None) -> dict[str, Any]:
    """Return a command with its output from a byte offset on; no character is cut in two."""
    shown, is_over, new = _shown(run), run.it.is_over, run.it.sync.read((offset, 0))
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(new.stdout, final=is_over)
    last = last_lines(text, tail) if tail else text
    why = run.it.sync.result().reason if is_over else ""
    output = last + (f"[{why}]\n" if why else "")
    return {
        **shown,
        "output": [{"type": "output", "data": output}] if output else [],
        "next_offset": new.cursor.stdout - len(decoder.getstate()[0]),
        "truncated": len(last) < len(text) or bool(new.omitted),
    }


def last_lines(text: str, number: int) -> str:
    """Return the last lines of a text, at most this number. Only these cost anything."""
    cuts = number + text.endswith("\n")
    before, *lines = text.rsplit("\n", cuts)
    return text[len(before) + 1 :] if len(lines) == cuts else text


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
    raise WebSocketException(BAD_KEY, "Invalid API key")


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
