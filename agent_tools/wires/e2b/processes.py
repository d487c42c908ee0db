"""The routes for commands and terminals: start, follow, input, signals."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from agent_tools.bodies.base64_text import Base64, encoded
from agent_tools.bodies.envelopes import messages
from agent_tools.bodies.json_body import at_most, read_json
from agent_tools.limits import MIB
from agent_tools.results.commands import Cursor
from agent_tools.sandbox.async_sandbox import AsyncProcess
from agent_tools.wires.e2b.connect import seconds_of, streamed
from agent_tools.wires.e2b.state import HOME, ROUTES, E2BRequest, in_sandbox, path_of
from agent_tools.wires.open_resources import AHEAD, TYPING_SECONDS, OpenResource, followed
from agent_tools.wires.routing import checked

KEEPALIVE = 30.0  # seconds of silence between two signs of life
KILL_SECONDS = 5.0  # that an answer waits for the end of a process that was killed
MAX_OUTPUT = MIB  # of each stream, kept for a client that connects late
_SIGNALS = {"SIGNAL_SIGTERM": signal.SIGTERM, 15: signal.SIGTERM, "SIGNAL_SIGKILL": signal.SIGKILL, 9: signal.SIGKILL}
Process = OpenResource[AsyncProcess]


@dataclass(frozen=True)
class Label:
    """A command as clients see it."""

    config: dict[str, Any]
    tag: str | None
    is_terminal: bool


class Config(BaseModel):
    """The command."""

    cmd: Annotated[str, Field(max_length=10_000)]
    args: Annotated[list[str], at_most(1_000)] = []
    envs: Annotated[dict[str, str], at_most(1_000)] = {}
    cwd: str | None = None


class TerminalSize(BaseModel):
    """The size of a terminal, in characters."""

    cols: Annotated[int, Field(ge=1, lt=1_000)] = 80
    rows: Annotated[int, Field(ge=1, lt=1_000)] = 24


class Pty(BaseModel):
    """A terminal."""

    size: TerminalSize = TerminalSize()


class Selector(BaseModel):
    """The command that is meant."""

    pid: int | None = None
    tag: str | None = None


class InputRequest(BaseModel):
    """Bytes to be typed."""

    stdin: Base64 = b""
    pty: Base64 = b""


class InputMessage(BaseModel):
    """A message of a stream of input: the first names the command, of the others some have input."""

    class Data(BaseModel):
        """Input."""

        input: InputRequest = InputRequest()

    class ProcessStart(BaseModel):
        """The command."""

        process: Selector

    start: ProcessStart | None = None
    data: Data = Data()


@ROUTES.on("POST", "/process.Process/Start")
async def _start(
    call: E2BRequest,
    process: Config,
    pty: Pty | None = None,
    tag: Annotated[str | None, Field(max_length=256)] = None,
    stdin: bool = True,
) -> Any:
    box, size = await call.here(), pty.size if pty else None
    folder = path_of(process.cwd or HOME)
    if folder != HOME and not (await call.use(lambda sandbox: sandbox.stat(in_sandbox(folder)), box)).is_dir:
        raise HTTPException(400, f"cwd {folder[:200]!r} is no folder.")
    shown = {"cmd": process.cmd, "args": process.args, "envs": process.envs, "cwd": folder}
    run = await call.wire.commands.start(
        box.place,
        lambda: box.id,
        Label(shown, tag, size is not None),
        AHEAD,
        command=[process.cmd, *process.args],
        stdin=b"" if stdin or size else None,
        cwd="" if folder == HOME else in_sandbox(folder),
        env={"PWD": folder, **box.state.envs, **process.envs},  # by which a shell knows the folder by this name
        timeout=seconds_of(call.request),
        max_output=MAX_OUTPUT,
        terminal=(size.rows, size.cols) if size else None,
    )
    return streamed(_events(call, run, Cursor()))


@ROUTES.on("POST", "/process.Process/Connect")
async def _connect(call: E2BRequest, process: Selector) -> Any:
    run = await _run(call, process)
    return streamed(_events(call, run, run.it.place))


async def _events(call: E2BRequest, run: Process, cursor: Cursor) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the events of a command, to its end. The command waits for a client that takes nothing."""
    process, name = run.it, "pty" if run.label.is_terminal else "stdout"
    yield {"event": {"start": {"pid": process.pid}}}
    async with aclosing(followed(process, cursor, silence=KEEPALIVE)) as outputs:
        async for new in outputs:
            left_out = f"[{new.omitted:,} bytes are left out]\n".encode() if new.omitted else b""
            for stream, data in ((name, new.stdout), ("stderr", left_out + new.stderr)):
                if data:
                    yield {"event": {"data": {stream: encoded(data)}}}
            if not (new.stdout or new.stderr or new.omitted):
                yield {"event": {"keepalive": {}}}
    ended = process.sync.result()
    if ended.timed_out:
        raise HTTPException(504, f"The command {ended.reason}.")
    await call.here(resumes=False)  # a command that has ended with its sandbox has no exit code
    end = {"exitCode": ended.exit_code, "exited": True, "status": f"exit status {ended.exit_code}"}
    yield {"event": {"end": {**end, **({"error": ended.reason} if ended.reason else {})}}}


@ROUTES.on("POST", "/process.Process/List")
async def _list(call: E2BRequest) -> Any:
    found = []
    for run in call.wire.commands.of((await call.here()).place):
        if not run.it.is_over:
            tag = {"tag": run.label.tag} if run.label.tag else {}
            found.append({"config": run.label.config, "pid": run.it.pid, **tag})
    return {"processes": found}


@ROUTES.on("POST", "/process.Process/SendSignal")
async def _signal(call: E2BRequest, process: Selector, signal: str | int) -> Any:
    run = await _run(call, process)
    if signal not in _SIGNALS:
        raise HTTPException(400, "The signal must be SIGNAL_SIGTERM or SIGNAL_SIGKILL.")
    run.it.signal(number := _SIGNALS[signal])
    if number == _SIGNALS["SIGNAL_SIGKILL"]:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(run.it.wait(), KILL_SECONDS)
    return {}


@ROUTES.on("POST", "/process.Process/SendInput")
async def _input(call: E2BRequest, process: Selector, input: InputRequest) -> Any:  # noqa: A002
    await (await _run(call, process)).it.write_stdin(input.stdin or input.pty, TYPING_SECONDS)
    return {}


@ROUTES.on("POST", "/process.Process/StreamInput")
async def _stream_input(call: E2BRequest) -> Any:
    run: Process | None = None
    async for message in messages(call.request):
        given = await read_json(message, lambda found: InputMessage(**checked(InputMessage, found, "message")))
        if given.start:
            run = await _run(call, given.start.process)
        elif run:
            await run.it.write_stdin(given.data.input.stdin or given.data.input.pty, TYPING_SECONDS)
    return streamed(_nothing())


async def _nothing() -> AsyncGenerator[dict[str, Any], None]:
    yield {}


@ROUTES.on("POST", "/process.Process/CloseStdin")
async def _close_stdin(call: E2BRequest, process: Selector) -> Any:
    (await _run(call, process)).it.close_stdin()
    return {}


@ROUTES.on("POST", "/process.Process/Update")
async def _update(call: E2BRequest, process: Selector, pty: Pty | None = None) -> Any:
    run = await _run(call, process)
    if pty:
        run.it.resize(pty.size.rows, pty.size.cols)
    return {}


async def _run(call: E2BRequest, asked: Selector) -> Process:
    """Return a command that goes on in the sandbox of the request.

    Raises:
        HTTPException: 404, there is none.
    """
    for run in reversed(call.wire.commands.of((await call.here()).place)):
        if not run.it.is_over and (asked.pid == run.it.pid or (asked.tag and asked.tag == run.label.tag)):
            return run
    raise HTTPException(404, f"There is no process {asked.pid or asked.tag!r:.80}.")
