"""The routes for commands and terminals: start, follow, input, signals."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import signal
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from agent_tools.limits import KIB, MIB
from agent_tools.results.execution import Cursor
from agent_tools.sandbox.async_sandbox import AsyncProcess
from agent_tools.wires.e2b.calls import HOME, Box, E2BRequest, in_sandbox, path_of
from agent_tools.wires.e2b.connect import first_message, messages, seconds_of, streamed
from agent_tools.wires.http import Routes, checked
from agent_tools.wires.opened import Opened

AHEAD = 256 * KIB  # bytes that a command may print before its client takes them
KEEPALIVE = 30.0  # seconds of silence between two signs of life
TYPING_SECONDS = 10.0  # in which a process takes what was typed
KILL_SECONDS = 5.0  # that an answer waits for the end of a process that was killed
MAX_OUTPUT = MIB  # of each stream, kept for a client that connects late
_SIGNALS = {"SIGNAL_SIGTERM": signal.SIGTERM, 15: signal.SIGTERM, "SIGNAL_SIGKILL": signal.SIGKILL, 9: signal.SIGKILL}
Process = Opened[AsyncProcess]


class Config(BaseModel):
    """The command."""

    cmd: Annotated[str, Field(max_length=10_000)]
    args: Annotated[list[str], Field(max_length=1_000)] = []
    envs: Annotated[dict[str, str], Field(max_length=1_000)] = {}
    cwd: str | None = None


class TerminalSize(BaseModel):
    """The size of a terminal, in characters."""

    cols: Annotated[int, Field(ge=1, lt=1_000)] = 80
    rows: Annotated[int, Field(ge=1, lt=1_000)] = 24


class Pty(BaseModel):
    """A terminal."""

    size: TerminalSize = TerminalSize()


class StartRequest(BaseModel):
    """A command to be started."""

    process: Config
    pty: Pty | None = None
    tag: Annotated[str | None, Field(max_length=256)] = None
    stdin: bool = True


class Selector(BaseModel):
    """The command that is meant."""

    pid: int | None = None
    tag: str | None = None


class Selected(BaseModel):
    """A request for a command."""

    process: Selector


class InputRequest(BaseModel):
    """Bytes to be typed, in base64."""

    stdin: str | None = None
    pty: str | None = None

    @property
    def data(self) -> bytes:
        """The bytes themselves."""
        try:
            return base64.b64decode(self.stdin or self.pty or "", validate=True)
        except (binascii.Error, ValueError):
            raise HTTPException(400, "The input is not base64.") from None


ROUTES = Routes(E2BRequest)


@ROUTES.on("POST", "/Start")
async def _start(call: E2BRequest) -> Any:
    return await streamed(_started(call))


async def _started(call: E2BRequest) -> AsyncGenerator[dict[str, Any], None]:
    box = await call.here()
    given = StartRequest(**checked(StartRequest, await first_message(call), "body"))
    run = await _begun(call, box, given, seconds_of(call))
    async for event in _events(call, run, Cursor(), is_terminal=given.pty is not None):
        yield event


async def _begun(call: E2BRequest, box: Box, given: StartRequest, seconds: float | None) -> Process:
    config, size = given.process, given.pty.size if given.pty else None
    folder = path_of(config.cwd or HOME)
    if folder != HOME:
        await call.use(lambda sandbox: _check_folder(sandbox.stat(in_sandbox(folder)).is_dir, folder), box)
    run = await call.wire.commands.start(
        box.place,
        lambda: box.id,
        pace=AHEAD,
        command=[config.cmd, *config.args],
        stdin=b"" if given.stdin or size else None,
        cwd="" if folder == HOME else in_sandbox(folder),
        env={**box.facts.envs, **config.envs},
        timeout=seconds,
        max_output=MAX_OUTPUT,
        terminal=(size.rows, size.cols) if size else None,
    )
    shown = {"cmd": config.cmd, "args": config.args, "envs": config.envs, "cwd": folder}
    run.label = json.dumps({"config": shown, "tag": given.tag, "is_terminal": size is not None})
    return run


def _check_folder(is_folder: bool, path: str) -> None:
    if not is_folder:
        raise HTTPException(400, f"cwd {path[:200]!r} is no folder.")


@ROUTES.on("POST", "/Connect")
async def _connect(call: E2BRequest) -> Any:
    async def events() -> AsyncGenerator[dict[str, Any], None]:
        box = await call.here()
        run = _run(call, box, Selected(**checked(Selected, await first_message(call), "body")).process)
        async for event in _events(call, run, run.it.place, is_terminal=json.loads(run.label)["is_terminal"]):
            yield event

    return await streamed(events())


async def _events(
    call: E2BRequest, run: Process, cursor: Cursor, *, is_terminal: bool
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the events of a command, to its end. The command waits for a client that takes nothing."""
    process = run.it
    while not process.pid and not process.is_over:
        await process.read(cursor, 0.01)  # until the sandbox has started it
    yield {"event": {"start": {"pid": process.pid}}}
    try:
        while True:
            process.sync.pace(cursor.stdout + AHEAD)
            is_over, new = process.is_over, process.sync.read(cursor)
            cursor = new.cursor
            if new.omitted:
                yield _data("stderr", f"[{new.omitted:,} bytes are left out]\n".encode())
            for name, data in (("pty" if is_terminal else "stdout", new.stdout), ("stderr", new.stderr)):
                if data:
                    yield _data(name, data)
            if is_over:
                break
            if not (new.stdout or new.stderr):
                try:
                    await asyncio.wait_for(process.changed(cursor), KEEPALIVE)
                except asyncio.TimeoutError:
                    yield {"event": {"keepalive": {}}}
    finally:
        process.sync.pace(2**62)
    ended = process.sync.result()
    if ended.timed_out:
        raise HTTPException(504, f"The command {ended.reason}.")
    await call.here()  # a command that has ended with its sandbox has no exit code
    end = {"exitCode": ended.exit_code, "exited": True, "status": f"exit status {ended.exit_code}"}
    yield {"event": {"end": {**end, **({"error": ended.reason} if ended.reason else {})}}}


def _data(name: str, data: bytes) -> dict[str, Any]:
    return {"event": {"data": {name: base64.b64encode(data).decode()}}}


@ROUTES.on("POST", "/List")
async def _list(call: E2BRequest) -> Any:
    box = await call.here()
    found = []
    for run in call.wire.commands.of(box.place):
        if not run.it.is_over and run.label:
            label = json.loads(run.label)
            tag = {"tag": label["tag"]} if label["tag"] else {}
            found.append({"config": label["config"], "pid": run.it.pid, **tag})
    return {"processes": found}


@ROUTES.on("POST", "/SendSignal")
async def _signal(call: E2BRequest, process: Selector, signal: str | int) -> Any:
    run = _run(call, await call.here(), process)
    if signal not in _SIGNALS:
        raise HTTPException(400, "The signal must be SIGNAL_SIGTERM or SIGNAL_SIGKILL.")
    run.it.signal(number := _SIGNALS[signal])
    if number == _SIGNALS["SIGNAL_SIGKILL"]:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(run.it.wait(), KILL_SECONDS)
    return {}


@ROUTES.on("POST", "/SendInput")
async def _input(call: E2BRequest, process: Selector, input: InputRequest) -> Any:  # noqa: A002
    await _type(_run(call, await call.here(), process), input.data)
    return {}


@ROUTES.on("POST", "/StreamInput")
async def _stream_input(call: E2BRequest) -> Any:
    async def answers() -> AsyncGenerator[dict[str, Any], None]:
        box, run = await call.here(), None
        async for message in messages(call):
            if "start" in message:
                run = _run(call, box, Selected(**checked(Selected, message["start"], "start")).process)
            elif run and isinstance(data := message.get("data"), dict):
                await _type(run, InputRequest(**checked(InputRequest, data.get("input"), "input")).data)
        yield {}

    return await streamed(answers())


@ROUTES.on("POST", "/CloseStdin")
async def _close_stdin(call: E2BRequest, process: Selector) -> Any:
    _run(call, await call.here(), process).it.close_stdin()
    return {}


@ROUTES.on("POST", "/Update")
async def _update(call: E2BRequest, process: Selector, pty: Pty | None = None) -> Any:
    run = _run(call, await call.here(), process)
    if pty:
        run.it.resize(pty.size.rows, pty.size.cols)
    return {}


def _run(call: E2BRequest, box: Box, asked: Selector) -> Process:
    """Return a command that goes on.

    Raises:
        HTTPException: 404, there is none.
    """
    for run in reversed(call.wire.commands.of(box.place)):
        if run.it.is_over or not run.label:
            continue
        if asked.pid == run.it.pid or (asked.tag and asked.tag == json.loads(run.label)["tag"]):
            return run
    raise HTTPException(404, f"There is no process {asked.pid or asked.tag!r:.80}.")


async def _type(run: Process, data: bytes) -> None:
    try:
        await run.it.write_stdin(data, TYPING_SECONDS)
    except BrokenPipeError:
        raise HTTPException(400, "The process has no stdin: start it with stdin.") from None
    except TimeoutError as exc:
        raise HTTPException(504, str(exc)) from None
