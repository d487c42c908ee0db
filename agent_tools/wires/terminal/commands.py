"""Commands: each is a process on a terminal, which outlives the request that started it."""

from __future__ import annotations

import asyncio
import codecs
import secrets
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from agent_tools.limits import MIB
from agent_tools.sandbox.async_sandbox import AsyncProcess
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.terminal import requests as asked
from agent_tools.wires.terminal.callers import HOME, Caller, caller_of, in_sandbox, resolved
from agent_tools.wires.terminal.requests import Json, body_of, query_of
from agent_tools.wires.terminal.rooms import COMMAND, PATIENCE, Rooms, aside, rooms_of

USUAL_WAIT = 10.0  # seconds
SIZE = (24, 80)
MAX_RUNNING = 16  # commands of one container
MAX_ENDED = 16  # of one container that are remembered, for `FORGET_AFTER` seconds
FORGET_AFTER = 300.0
MAX_OUTPUT = MIB  # bytes kept of what one prints, the last ones
ENVIRONMENT = {"HOME": HOME, "HISTFILE": "/tmp/.bash_history", "PAGER": "cat", "GIT_PAGER": "cat"}
"""Only what lies in HOME is kept, and no pager waits for a key."""


@dataclass(eq=False)
class Started:
    """A process in a caller's sandbox, which is kept for it until `close` is called. It blocks: for a thread."""

    caller: Caller
    container: str
    process: AsyncProcess
    close: Any


def started(
    rooms: Rooms, caller: Caller, rank: int, command: str | list[str], cwd: str, env: dict[str, str]
) -> Started:
    """Start a process on a terminal. It blocks: for a thread."""

    def begin(sandbox: Sandbox) -> AsyncProcess:
        options: dict[str, Any] = {"stdin": b"", "terminal": SIZE, "max_output": MAX_OUTPUT}
        return AsyncProcess(
            sandbox.start_command(
                command, cwd="" if cwd == HOME else in_sandbox(cwd), env={**ENVIRONMENT, **env}, **options
            )
        )

    container = rooms.ensure(caller).id
    with ExitStack() as stack:
        process = stack.enter_context(rooms.containers.attended(container, rank, begin, PATIENCE))
        stack.callback(process.kill)
        return Started(caller, container, process, stack.pop_all().close)


@dataclass(eq=False)
class CommandRun:
    """A command that was started."""

    id: str
    command: str
    cwd: str
    started: Started
    was_killed: bool = False
    ended_at: float | None = None

    @property
    def status(self) -> str:
        """Return running, done or killed."""
        if not self.started.process.is_over:
            return "running"
        return "killed" if self.was_killed or self.started.process.sync.reason else "done"

    def shown(self) -> dict[str, Any]:
        """Return it as lists have it."""
        exit_code = self.started.process.poll()
        return {"id": self.id, "command": self.command, "status": self.status, "exit_code": exit_code, "log_path": None}

    def told(self, offset: int = 0, tail: int | None = None) -> dict[str, Any]:
        """Return it with its output from a byte offset on; no character is cut in two."""
        shown, is_over = self.shown(), self.started.process.is_over
        new = self.started.process.sync.read((offset, 0))
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(new.stdout, final=is_over)
        lines = text.splitlines(keepends=True)
        is_cut = bool(tail and len(lines) > tail)
        text = "".join(lines[-tail:]) if tail and is_cut else text
        if why := self.started.process.sync.result().reason if is_over else "":
            text += f"[{why}]\n"
        return {
            **shown,
            "output": [{"type": "output", "data": text}] if text else [],
            "next_offset": new.cursor.stdout - len(decoder.getstate()[0]),
            "truncated": is_cut or bool(new.omitted),
        }


class CommandRuns:
    """The commands of all callers. For one event loop."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._runs: dict[str, CommandRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, caller: Caller, command: str, cwd: str, env: dict[str, str]) -> CommandRun:
        """Start one.

        Raises:
            HTTPException: 429, too many go on.
        """
        self._forget()
        running = len([run for run in self._of_room(caller) if not run.ended_at])
        refusal = f"{MAX_RUNNING} commands run in this chat already: end one of them."
        with self._rooms.starting(caller, COMMAND, running, MAX_RUNNING, refusal):
            begun = await aside(partial(started, self._rooms, caller, COMMAND, command, cwd, env))
        run = CommandRun(secrets.token_hex(8), command, cwd, begun)
        self._runs[run.id] = run
        task = asyncio.create_task(self._follow(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return run

    def find(self, caller: Caller, id_: str) -> CommandRun:
        """Return a command of the caller's chat.

        Raises:
            HTTPException: 404.
        """
        run = self._runs.get(id_)
        if run is None or run.started.caller.place != caller.place:
            raise HTTPException(404, "Process not found")
        return run

    def all_of(self, caller: Caller) -> list[CommandRun]:
        """List the commands of the caller's chat, oldest first. It counts as no use."""
        self._forget()
        return [run for run in self._runs.values() if run.started.caller.place == caller.place]

    async def close(self) -> None:
        """End all."""
        for run in self._runs.values():
            run.started.process.kill()
        await asyncio.gather(*self._tasks)

    async def _follow(self, run: CommandRun) -> None:
        try:
            await run.started.process.wait()
        finally:
            await aside(run.started.close)
            run.ended_at = time.monotonic()

    def _of_room(self, caller: Caller) -> list[CommandRun]:
        return [run for run in self._runs.values() if run.started.caller.place[:2] == caller.place[:2]]

    def _forget(self) -> None:
        """Forget commands that ended long ago, and all but the last `MAX_ENDED` of each container."""
        ended: dict[tuple[str, str], list[str]] = {}
        for run in self._runs.values():
            if run.ended_at:
                ended.setdefault(run.started.caller.place[:2], []).append(run.id)
        old = time.monotonic() - FORGET_AFTER
        for ids in ended.values():
            for number, id_ in enumerate(reversed(ids)):
                if number >= MAX_ENDED or (self._runs[id_].ended_at or 0) < old:
                    del self._runs[id_]


async def execute(request: Request) -> Response:
    """POST /execute."""
    given, how = await body_of(request, asked.ExecuteBody), query_of(request, asked.WaitQuery)
    rooms, caller = rooms_of(request), caller_of(request)
    cwd = resolved(given.cwd or ".", rooms.cwd(caller))
    run = await _runs(request).start(caller, given.command, cwd, given.env or {})
    await _awaited(run, USUAL_WAIT if how.wait is None else how.wait)
    return Json({**run.told(0, how.tail), "cwd": run.cwd})


async def list_processes(request: Request) -> Response:
    """GET /execute: asked for each second while a panel is open."""
    return Json([run.shown() for run in _runs(request).all_of(caller_of(request))])


async def process_status(request: Request) -> Response:
    """GET /execute/ID/status."""
    run, how = _run(request), query_of(request, asked.StatusQuery)
    await _awaited(run, how.wait or 0)
    return Json(run.told(how.offset, how.tail))


async def process_input(request: Request) -> Response:
    """POST /execute/ID/input."""
    run, text = _run(request), (await body_of(request, asked.InputBody)).input
    await typed(run.started.process, text)
    return Json({"status": "ok"})


async def kill_process(request: Request) -> Response:
    """DELETE /execute/ID."""
    run, how = _run(request), query_of(request, asked.ForceQuery)
    run.was_killed = run.was_killed or not run.started.process.is_over
    if how.force:
        run.started.process.kill()
    else:
        run.started.process.signal(signal.SIGTERM)
        await _awaited(run, 1.0)
    return Json({"status": "killed"})


async def typed(process: AsyncProcess, text: str) -> None:
    """Type into a process.

    Raises:
        HTTPException: 400, it has ended; 409, it does not read.
    """
    try:
        await process.write_stdin(text.encode("utf-8", "replace"), 10)
    except BrokenPipeError:
        raise HTTPException(400, "Process has already exited") from None
    except TimeoutError as exc:
        raise HTTPException(409, str(exc)) from None


async def _awaited(run: CommandRun, seconds: float) -> None:
    try:
        await asyncio.wait_for(run.started.process.wait(), seconds)
    except asyncio.TimeoutError:
        return


def _runs(request: Request) -> CommandRuns:
    runs: CommandRuns = request.app.state.runs
    return runs


def _run(request: Request) -> CommandRun:
    return _runs(request).find(caller_of(request), request.path_params["id"])
