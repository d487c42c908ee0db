"""Connections and their sessions, over a WebSocket or over stdin and stdout.

A session outlives its connection by `DETACHED_SECONDS`, in which the client may resume it and read the missed output.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, create_model

from agent_tools.bodies.json_body import BodyRefused, read_json
from agent_tools.engines.engine import GUEST_WORK_DIR
from agent_tools.engines.first_process import GUEST_HOME
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.codex.files import FileMethods
from agent_tools.wires.codex.http_request import fetch
from agent_tools.wires.codex.messages import (
    CAMEL,
    INVALID_REQUEST,
    NO_METHOD,
    Name,
    RpcError,
    RpcRequest,
    error_of,
    parameters,
    read,
    uri_of,
)
from agent_tools.wires.codex.processes import SessionProcesses
from agent_tools.wires.http import aside
from agent_tools.wires.opened import COMMAND, PATIENCE, Attendable, Place, Processes
from agent_tools.wires.paths import Home

VERSION = "0.171.0"  # of the protocol that this was compared with
DETACHED_SECONDS = 10.0
MAX_COMMANDS = 32  # that run in a container
MAX_SESSIONS = 16  # of a container, those that wait for their client included
MAX_WAITING = 256  # requests of a connection that wait for a process
Send = Callable[[bytes], Awaitable[None]]
T = TypeVar("T")


class Sandboxes(Attendable, Protocol):
    """The methods of `Containers` that a session uses."""

    def use(self, id_: str, patience: float = 0.0) -> AbstractContextManager[tuple[Sandbox, str]]:
        """Acquire a container's sandbox for a short use."""


@dataclass(frozen=True)
class SessionContainer:
    """The container of sessions: its owner and name, and a function that finds or creates it, in a thread."""

    place: Place
    container: Callable[[], str]
    home: Home


class CodexWire:
    """The state of the wire: sessions, and the processes of all. For one event loop."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self.sandboxes = sandboxes
        self.commands = Processes(sandboxes, COMMAND, MAX_COMMANDS)
        self._sessions: dict[str, CodexSession] = {}

    async def attach(self, box: SessionContainer, connection: Connection, resumed: str | None) -> CodexSession:
        """Return a new session of a container, or resume one without a connection.

        Raises:
            RpcError: no session has this id, it has a connection already, or the container has too many sessions.
        """
        if resumed is not None:
            session = self._sessions.get(resumed)
            if session is None or session.box.place != box.place:
                raise RpcError(INVALID_REQUEST, f"unknown session id {resumed}")
            if session.connection:
                raise RpcError(INVALID_REQUEST, f"session {resumed} is already attached to another connection")
        else:
            if sum(each.box.place == box.place for each in self._sessions.values()) >= MAX_SESSIONS:
                raise RpcError(INVALID_REQUEST, f"The sandbox has {MAX_SESSIONS} sessions already: close one of them.")
            session = CodexSession(self, box)
            self._sessions[session.id] = session
        session.attach(connection)
        return session

    async def end(self, session: CodexSession) -> None:
        """End a session with its processes."""
        if self._sessions.pop(session.id, None):
            await session.processes.close()

    async def close(self) -> None:
        """End all sessions."""
        for session in list(self._sessions.values()):
            session.attach(None)
            await self.end(session)
        await self.commands.close()


class CodexSession:
    """Processes and open files of one client."""

    def __init__(self, wire: CodexWire, box: SessionContainer) -> None:
        self.id = secrets.token_hex(16)
        self.box = box
        self.connection: Connection | None = None
        self._wire = wire
        self.files = FileMethods(box.home)
        self.processes = SessionProcesses(
            wire.commands, (*box.place, self.id), box.container, self.files.inside, self._notify
        )
        self._end: asyncio.Task[None] | None = None

    def attach(self, connection: Connection | None) -> None:
        """Set the connection to which events go."""
        self.connection = connection
        if self._end:
            self._end.cancel()
            self._end = None

    def detach(self, connection: Connection) -> None:
        """End the session unless the client resumes it in time."""
        if self.connection is connection:
            self.connection = None
            self._end = asyncio.create_task(self._end_late())

    async def use(self, work: Callable[[Sandbox], T]) -> T:
        """Run a short function on the sandbox, which is started if needed."""

        def done() -> T:
            with self._wire.sandboxes.use(self.box.container(), PATIENCE) as (sandbox, _):
                return work(sandbox)

        return await aside(done)

    async def _notify(self, method: str, params: dict[str, Any]) -> None:
        if self.connection:
            await self.connection.send({"method": method, "params": params})

    async def _end_late(self) -> None:
        await asyncio.sleep(DETACHED_SECONDS)
        self._end = None
        await self._wire.end(self)


_FILES: dict[str, Callable[..., dict[str, Any]]] = {
    "fs/getMetadata": FileMethods.metadata,
    "fs/readFile": FileMethods.read,
    "fs/writeFile": FileMethods.write,
    "fs/createDirectory": FileMethods.make_directory,
    "fs/canonicalize": FileMethods.canonicalize,
    "fs/readDirectory": FileMethods.read_directory,
    "fs/walk": FileMethods.walk,
    "fs/remove": FileMethods.remove,
    "fs/copy": FileMethods.copy,
    "fs/open": FileMethods.open,
    "fs/readBlock": FileMethods.read_block,
    "fs/writeBlock": FileMethods.write_block,
    "fs/close": FileMethods.close,
}
_PROCESSES: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
    "process/start": SessionProcesses.start,
    "process/read": SessionProcesses.read,
    "process/write": SessionProcesses.write,
    "process/signal": SessionProcesses.signal,
    "process/terminate": SessionProcesses.terminate,
}
METHODS: dict[str, type[BaseModel]] = {
    "initialize": create_model("initialize", __config__=CAMEL, client_name=Name, resume_session_id=(Name | None, None)),
    "environment/info": create_model("info"),
    "environment/status": create_model("status"),
    "http/request": parameters(fetch, 1),
    **{name: parameters(function, 1) for name, function in _PROCESSES.items()},
    **{name: parameters(function, 2) for name, function in _FILES.items()},
}
"""The model of each method's parameters."""
_WAITING = ("process/read", "process/write", "http/request")  # answered concurrently with other requests


@dataclass(eq=False)
class Connection:
    """One client's connection. Requests are answered in order; only a wait for a process is answered later."""

    wire: CodexWire
    box: SessionContainer
    write: Send
    _session: CodexSession | None = None
    _is_initialized: bool = False
    _waiting: set[asyncio.Task[None]] = field(default_factory=set)

    async def handle(self, message: bytes) -> bool:
        """Handle a message; return False if the connection must be closed after it."""
        try:
            request: RpcRequest = await read_json(message, partial(read, RpcRequest))
        except (BodyRefused, RpcError) as exc:
            detail = exc if isinstance(exc, RpcError) else exc.detail
            await self._fail(-1, RpcError(INVALID_REQUEST, f"This is no JSON-RPC message: {detail}"))
            return True
        if request.id is None:
            self._is_initialized = request.method == "initialized" and self._session is not None
            if not self._is_initialized:
                message_ = f"unexpected notification {request.method}: only initialized, after initialize"
                await self._fail(-1, RpcError(INVALID_REQUEST, message_))
            return self._is_initialized
        if request.method in _WAITING and len(self._waiting) < MAX_WAITING:
            task = asyncio.create_task(self._answer(request))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)
        else:
            await self._answer(request)
        return True

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message; wait until the client can read it."""
        await self.write(json.dumps(message, separators=(",", ":")).encode())

    async def close(self) -> None:
        """Close the connection; its session may be resumed."""
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)
        if self._session:
            self._session.detach(self)

    async def _answer(self, request: RpcRequest) -> None:
        try:
            await self.send({"id": request.id, "result": await self._result(request)})
        except Exception as exc:
            if (error := error_of(exc)) is None:
                raise
            await self._fail(request.id, error)

    async def _fail(self, id_: int | str | None, error: RpcError) -> None:
        await self.send({"error": error.body, "id": id_})

    async def _result(self, request: RpcRequest) -> dict[str, Any]:
        if request.method != "initialize" and not self._is_initialized:
            missing = "send initialized" if self._session else "call initialize"
            raise RpcError(INVALID_REQUEST, f"client must {missing} before using {request.method}")
        if request.method not in METHODS:
            raise RpcError(NO_METHOD, f"This exec-server has no method {request.method}.")
        given = dict(read(METHODS[request.method], request.params))
        if request.method == "initialize":
            return await self._initialize(given["resume_session_id"])
        session = self._session
        assert session
        if request.method in _PROCESSES:
            return await _PROCESSES[request.method](session.processes, **given)
        if request.method in _FILES:
            return await session.use(lambda sandbox: _FILES[request.method](session.files, sandbox, **given))
        if request.method == "http/request":
            return await self._fetch(session, given)
        return self._info(session) if request.method == "environment/info" else {"status": "ready"}

    async def _initialize(self, resumed: str | None) -> dict[str, Any]:
        if self._session:
            raise RpcError(INVALID_REQUEST, "initialize may only be sent once per connection")
        self._session = await self.wire.attach(self.box, self, resumed)
        return {"sessionId": self._session.id, "environmentInfo": self._info(self._session)}

    async def _fetch(self, session: CodexSession, given: dict[str, Any]) -> dict[str, Any]:
        answer = await session.use(lambda sandbox: fetch(sandbox, **given))
        if given["stream_response"]:
            delta = {"requestId": given["request_id"], "seq": 1, "deltaBase64": answer["bodyBase64"], "done": True}
            task = asyncio.create_task(self.send({"method": "http/request/bodyDelta", "params": delta}))
            self._waiting.add(task)  # it begins once the answer's head is sent
            task.add_done_callback(self._waiting.discard)
            answer["bodyBase64"] = ""
        return answer

    def _info(self, session: CodexSession) -> dict[str, Any]:
        return {
            "shell": {"name": "bash", "path": "/bin/bash"},
            "executorVersion": VERSION,
            "cwd": session.files.uri(GUEST_WORK_DIR),
            "userHomeDir": uri_of(GUEST_HOME),
            "platformOs": "linux",
            "temporaryDirectories": [],
            "tempDir": uri_of("/tmp"),
            "capabilities": {"sandboxedFileStreaming": True, "fileWriteStreaming": True},
        }
