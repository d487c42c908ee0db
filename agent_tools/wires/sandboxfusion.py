"""SandboxFusion's API for scripts, for trainers of models: /run_code and /run_jupyter.

A script is a process, never a cell. Each request has a container of its own, which ends with it. Below /shared the
requests of one key share a container instead, each with a folder and processes of its own: faster, and without a wall
between these scripts, which can read, change and end each other.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import posixpath
import secrets
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Annotated, Any, TypeVar

from pydantic import Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount as Tree
from starlette.routing import Route
from starlette.types import ASGIApp

from agent_tools.bodies.json_body import at_most
from agent_tools.containers.containers import Containers
from agent_tools.containers.mount import Mount
from agent_tools.containers.records import NAMED
from agent_tools.containers.rows import Rows
from agent_tools.containers.sandbox_queue import Ticket
from agent_tools.containers.spec import ContainerSpec
from agent_tools.errors import AgentToolsError, InvalidParams
from agent_tools.limits import MIB
from agent_tools.results.commands import CommandResult
from agent_tools.results.execution import Error, Execution
from agent_tools.results.outputs import Died, Display, Result, TimedOut
from agent_tools.runtime.in_thread import in_thread
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.open_resources import CodeRun
from agent_tools.wires.routing import Routes, WireRequest, application, aside, bundle, while_connected

MAX_BODY = 32 * MIB
MAX_OUTPUT = MIB  # bytes of each stream that are answered, the last ones
MAX_FETCHED = 16 * MIB  # of all files of an answer
MAX_SECONDS = 3_600.0
SLOT_TIMEOUT = 600.0  # seconds that a request waits for a slot
SHARED = 8  # scripts of one key that run at once in a container that they share
SHARED_SCRIPTS = 2_000  # that a shared container runs before another takes its place
COMMANDS = {"python": ["python3"], "pytest": ["python3", "-m", "pytest"], "bash": ["/bin/bash"]}
NAMES = {"python": "main.py", "pytest": "test_main.py", "bash": "main.sh"}
_LIMITED = 'ulimit -v "$1"; shift; exec "$@"'
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
Files = dict[str, str | None]
T = TypeVar("T")


class _Wire:
    """The places where scripts run. For one event loop."""

    def __init__(self, containers: Containers[Any]) -> None:
        self.containers = containers
        self._shared = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(SHARED))  # by owner
        self._scripts = Counter[str]()  # that shared a container, by owner
        self._ends: set[asyncio.Task[None]] = set()

    async def run(self, call: WireRequest, work: Callable[[Sandbox, str], T], cancel: Callable[[], object]) -> T | None:
        """Run a function in a sandbox, in its own folder; return None if the client has disconnected."""
        run = self._run_in_shared if "/shared/" in call.request.scope["path"] else self._run_alone
        return await while_connected(call.request, run(call.owner, work, cancel))

    async def _run_in_shared(self, owner: str, work: Callable[[Sandbox, str], T], cancel: Callable[[], object]) -> T:
        self._scripts[owner] += 1
        name = f"shared-{self._scripts[owner] // SHARED_SCRIPTS}"
        async with self._shared[owner]:
            return await in_thread(partial(self._in_shared, owner, name, work), cancel)

    async def _run_alone(self, owner: str, work: Callable[[Sandbox, str], T], cancel: Callable[[], object]) -> T:
        ticket, made = self.containers.queue.enter(owner), list[str]()
        await self.containers.queue.wait(ticket, SLOT_TIMEOUT)
        try:
            return await in_thread(partial(self._alone, owner, made, work), cancel)
        finally:
            end = asyncio.create_task(self._end(ticket, made))  # beside the answer; its place is taken until then
            self._ends.add(end)
            end.add_done_callback(self._ends.discard)

    def _alone(self, owner: str, made: list[str], work: Callable[[Sandbox, str], T]) -> T:
        made.append(self.containers.create(owner, ContainerSpec("script", origin="script")).id)
        with self.containers.acquire(made[0], SLOT_TIMEOUT, has_ticket=True) as (sandbox, woken):
            woken.result()
            return work(sandbox, "")

    def _in_shared(self, owner: str, name: str, work: Callable[[Sandbox, str], T]) -> T:
        spec = ContainerSpec(name, origin=f"{NAMED}scripts")
        folder = f"s-{secrets.token_hex(8)}"
        with self.containers.use(self.containers.named(owner, spec, 2).id, SLOT_TIMEOUT) as (sandbox, _):
            sandbox.make_dir(folder)
            try:
                return work(sandbox, folder)
            finally:
                with suppress(OSError):  # a process of the script still writes; it expires with the container
                    sandbox.remove(folder, recursive=True)

    async def _end(self, ticket: Ticket, made: list[str]) -> None:
        try:
            for id_ in made:
                await aside(self.containers.discard, ticket.owner, id_)
        finally:
            self.containers.queue.leave(ticket)

    async def close(self) -> None:
        """Wait until the containers of all requests are gone."""
        for failure in filter(None, await asyncio.gather(*self._ends, return_exceptions=True)):
            raise failure


ROUTES = Routes(WireRequest, MAX_BODY)


@ROUTES.on("POST", "/run_code")
async def _run_code(
    call: WireRequest,
    code: str,
    language: str,
    stdin: str | None = None,
    args: Annotated[list[str] | None, at_most(1_000)] = None,
    files: Annotated[Files | None, at_most(1_000)] = None,
    fetch_files: Annotated[list[str] | None, at_most(100)] = None,
    run_timeout: Seconds = 10,
    memory_limit_MB: int = -1,  # noqa: N803
) -> Any:
    if language not in COMMANDS:
        return _failure(f"language {language!r:.40} is not available here: use {', '.join(COMMANDS)}.")
    stop = CodeRun()

    def work(sandbox: Sandbox, folder: str) -> dict[str, Any]:
        _put(
            sandbox,
            folder,
            {**(files or {}), NAMES[language]: base64.b64encode(code.encode("utf-8", "surrogatepass")).decode()},
        )
        command = [*COMMANDS[language], NAMES[language], *(args or [])]
        if memory_limit_MB > 0:
            command = ["/bin/bash", "-c", _LIMITED, "-", str(memory_limit_MB * 1_024), *command]
        ran = sandbox.run_command(
            command,
            stdin=(stdin or "").encode("utf-8", "surrogatepass"),
            cwd=folder,
            timeout=max(run_timeout, 0.01),
            max_output=MAX_OUTPUT,
            cancelled=stop.event,
            script=code,
        )
        if language == "pytest" and b"No module named pytest" in ran.stderr:
            return _failure("pytest is not in this image: serve with --package pytest.")
        told = {"compile_result": None, "run_result": result_of(ran), "files": _got(sandbox, folder, fetch_files)}
        return {"status": "Success" if ran.ok else "Failed", "message": "", "executor_pod_name": None, **told}

    return await _answered(call, work, stop)


@ROUTES.on("POST", "/run_jupyter")
async def _run_jupyter(
    call: WireRequest,
    cells: Annotated[list[str], at_most(1_000)],
    cell_timeout: Seconds = 0,
    total_timeout: Seconds = 45,
    files: Annotated[Files | None, at_most(1_000)] = None,
    fetch_files: Annotated[list[str] | None, at_most(100)] = None,
) -> Any:
    stop = CodeRun()

    def work(sandbox: Sandbox, folder: str) -> dict[str, Any]:
        _put(sandbox, folder, files or {})
        if folder:
            sandbox = sandbox.fresh_kernel()
        try:
            if folder:
                sandbox.run_code(f"import os; os.chdir({folder!r})")
            shown, driver = _cells(stop.of(sandbox), cells, cell_timeout, total_timeout, stop.event)
            told = {"driver": driver, "cells": shown, "files": _got(sandbox, folder, fetch_files)}
        finally:
            if folder:
                sandbox.close()
        is_done = driver["status"] == "Finished" and not any(each["error"] for each in shown)
        return {"status": "Success" if is_done else "Failed", "message": "", "executor_pod_name": None, **told}

    return await _answered(call, work, stop)


async def _ping(_: Request) -> Response:
    return PlainTextResponse("pong")


async def _answered(call: WireRequest, work: Callable[[Sandbox, str], Any], stop: CodeRun) -> Any:
    """Return the answer; a failure of the server has a status for which clients retry."""
    try:
        return await call.wire.run(call, work, stop.cancel) or _failure("The client has left.")
    except (AgentToolsError, OSError) as exc:
        return _failure(str(exc))


def _failure(message: str) -> dict[str, Any]:
    return {"status": "SandboxError", "message": message, "files": {}}


def result_of(ran: CommandResult) -> dict[str, Any]:
    """Return a command's result in this API's form."""
    stdout, stderr = ran.texts
    status = "TimeLimitExceeded" if ran.timed_out else "Error" if ran.reason else "Finished"
    return {
        "status": status,
        "execution_time": ran.duration,
        "return_code": None if ran.timed_out else ran.exit_code,
        "stdout": stdout,
        "stderr": f"{stderr}[{ran.reason}]\n" if ran.reason else stderr,
    }


def _cells(
    sandbox: Sandbox, cells: list[str], each_seconds: float, seconds: float, cancelled: threading.Event
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run cells up to the first that does not end in time; return them and the end of all."""
    began = time.monotonic()
    shown, status = list[dict[str, Any]](), "Finished"
    for code in cells:
        left = began + seconds - time.monotonic()
        if left <= 0 or cancelled.is_set():
            status = "TimeLimitExceeded"
            break
        try:
            done = sandbox.run_code(code, timeout=min(left, each_seconds or left), cancelled=cancelled)
        except InvalidParams as exc:
            done = Execution((Error("InvalidParams", exc.message, ""),))
        shown.append(cell_of(done))
        if any(isinstance(output, TimedOut) for output in done.outputs):
            status = "TimeLimitExceeded"
            break
    return shown, {"status": status, "execution_time": time.monotonic() - began, "return_code": 0, "stdout": ""}


def cell_of(done: Execution) -> dict[str, Any]:
    """Return a cell's result in this API's form."""
    display: list[dict[str, Any]] = []
    error: list[dict[str, Any]] = []
    for output in done.outputs:
        match output:
            case Result() | Display():
                display.append(bundle(output.data))
            case Error():
                error.append({"ename": output.name, "evalue": output.value, "traceback": output.text.split("\n")})
            case TimedOut() | Died():
                error.append({"ename": type(output).__name__, "evalue": output.text, "traceback": []})
    stderr = "\n".join((*done.notes, done.stderr))
    return {"stdout": done.stdout, "stderr": stderr, "display": display, "error": error}


def _put(sandbox: Sandbox, folder: str, files: Files) -> None:
    """Write files, which are in base64."""
    for name, content in files.items():
        try:
            data = base64.b64decode(content or "", validate=True)
        except (binascii.Error, ValueError):
            raise OSError(f"files: the content of {name!r:.80} is not base64.") from None
        sandbox.write_file(posixpath.join(folder, name), data)


def _got(sandbox: Sandbox, folder: str, names: list[str] | None) -> dict[str, str]:
    """Return files that are there, in base64."""
    found, room = {}, MAX_FETCHED
    for name in names or ():
        try:
            data = sandbox.read_file(posixpath.join(folder, name), max_bytes=room + 1)
        except OSError:
            continue
        room -= len(data)
        if room < 0:
            raise OSError(f"fetch_files: the files have more than {MAX_FETCHED:,} bytes.")
        found[name] = base64.b64encode(data).decode()
    return found


@asynccontextmanager
async def _opened(containers: Containers[Any], _: Rows) -> AsyncIterator[ASGIApp]:
    routes = ROUTES.made()
    app = application([Route("/v1/ping", _ping), *routes, Tree("/shared", routes=[Route("/v1/ping", _ping), *routes])])
    app.state.wire = wire = _Wire(containers)
    try:
        yield app
    finally:  # another door may fail to close
        await wire.close()


MOUNT = Mount("/sandboxfusion", _opened, has_tree=True)
