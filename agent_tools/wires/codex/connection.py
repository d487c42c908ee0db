"""Connections and their sessions, over a WebSocket or over stdin and stdout.

A session outlives its connection for a while, in which the client may resume it and read the missed output.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import anyio
from pydantic import BaseModel, create_model
from pydantic.alias_generators import to_camel
from starlette.exceptions import HTTPException

from agent_tools.bodies.json_body import BodyRefused, read_json, written
from agent_tools.engines.engine import GUEST_WORK_DIR
from agent_tools.engines.first_process import GUEST_HOME
from agent_tools.limits import KIB, MIB
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.codex.files import FileMethods, refuse_links
from agent_tools.wires.codex.http_request import fetch
from agent_tools.wires.codex.messages import (
    ATTACHED,
    CAMEL,
    NO_METHOD,
    Name,
    RpcError,
    RpcRequest,
    dumped,
    error_of,
    parameters,
    read,
    uri_of,
)
from agent_tools.wires.codex.processes import SessionProcesses
from agent_tools.wires.open_resources import COMMAND, Place, Processes, UsesContainers, used
from agent_tools.wires.paths import Home

VERSION = "0.171.0"  # of the protocol that this was compared with
MAX_COMMANDS = 32  # that run in a container
MAX_SESSIONS = 16  # of a container, those that wait for their client included
MESSAGE_BYTES = 16 * KIB  # that a message takes beside its own
WAITING_BYTES = 4 * MIB  # of messages of a connection that are not answered; while there are more, none is read
MAX_FETCHES = 8  # `http/request`s of a key that are answered at once
Send = Callable[[str], Awaitable[None]]


@dataclass(frozen=True)
class SessionContainer:
    """The container of sessions: its owner and name, and a function that finds or creates it, in a thread."""

    place: Place
    container: Callable[[], str]
    home: Home


class CodexWire:
    """The state of the wire: sessions, and the processes of all. For one event loop.

    A session outlives its connection by `detached_seconds`.
    """

    detached_seconds = 30.0  # as in codex, whose client tries for 25 s

    def __init__(self, sandboxes: UsesContainers) -> None:
        self.sandboxes = sandboxes
        self.commands = Processes(sandboxes, COMMAND, MAX_COMMANDS)
        self.fetches: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # by owner
        self._sessions: dict[str, CodexSession] = {}

    def attach(self, box: SessionContainer, connection: Connection, resumed: str | None) -> CodexSession:
        """Return a new session of a container, or resume one without a connection, to which events go from now on.

        Raises:
            RpcError: no session has this id, it has a connection already, or the container has too many sessions.
        """
        if resumed is None:
            if sum(each.box.place == box.place for each in self._sessions.values()) >= MAX_SESSIONS:
                raise RpcError(f"The sandbox has {MAX_SESSIONS} sessions already: close one of them.")
            session = CodexSession(self, box)
            self._sessions[session.id] = session
        else:
            found = self._sessions.get(resumed)
            if found is None or found.box.place != box.place:
                raise RpcError(f"unknown session id {resumed}")
            if found.connection:
                raise RpcError(f"session {resumed} is already attached to another connection", ATTACHED)
            session = found
        session.connection = connection
        session.cancel_end()
        return session

    def detach(self, session: CodexSession) -> None:
        """End a session with its processes unless the client resumes it in time."""
        session.connection = None
        session.ending = asyncio.create_task(self._end_late(session))

    async def _end_late(self, session: CodexSession) -> None:
        await asyncio.sleep(self.detached_seconds)
        del self._sessions[session.id]
        await self.commands.close(session.place)

    async def close(self) -> None:
        """End all sessions."""
        for session in self._sessions.values():
            session.connection = None
            session.cancel_end()
        await self.commands.close()


class CodexSession:
    """Processes and open files of one client."""

    def __init__(self, wire: CodexWire, box: SessionContainer) -> None:
        self.id = secrets.token_hex(16)
        self.box = box
        self.place = (*box.place, self.id)
        self.connection: Connection | None = None
        self.ending: asyncio.Task[None] | None = None
        self.files = FileMethods(box.home)
        self.processes = SessionProcesses(wire.commands, self.place, box.container, self._notify)

    def cancel_end(self) -> None:
        """Let it go on: its client is back, or the wire ends."""
        if self.ending:
            self.ending.cancel()

    async def _notify(self, method: str, params: dict[str, Any]) -> None:
        if self.connection:
            await self.connection.send({"method": method, "params": params})


def _methods(prefix: str, kind: type) -> dict[str, Callable[..., Any]]:
    """Return the public functions of a class by the names that they have in the protocol."""
    functions = [each for name, each in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")]
    return {f"{prefix}/{to_camel(each.__name__)}": each for each in functions}


_FILES, _PROCESSES = _methods("fs", FileMethods), _methods("process", SessionProcesses)
METHODS: dict[str, type[BaseModel]] = {
    "initialize": create_model("initialize", __config__=CAMEL, client_name=Name, resume_session_id=(Name | None, None)),
    "environment/info": create_model("info"),
    "environment/status": create_model("status"),
    "http/request": parameters(fetch, 1),
    **{name: parameters(function, 1) for name, function in _PROCESSES.items()},
    **{name: parameters(function, 2, follow_symlinks=(bool | None, None)) for name, function in _FILES.items()},
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
    _is_broken: bool = False
    _waiting_bytes: int = 0
    _answered: asyncio.Event = field(default_factory=asyncio.Event)
    _order: asyncio.Lock = field(default_factory=asyncio.Lock)
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def serve(self, receive: Callable[[], Awaitable[bytes | None]], *, to_the_last: bool = False) -> bool:
        """Answer messages until `receive` returns None: the client has left, also while a request is handled.

        With `to_the_last`, all messages that came before that are answered. Returns False if one broke the protocol.
        """
        try:
            async with anyio.create_task_group() as answers:
                while (message := await receive()) is not None:
                    self._waiting_bytes += len(message) + MESSAGE_BYTES
                    answers.start_soon(self._handle, message, answers.cancel_scope.cancel)
                    while self._waiting_bytes > WAITING_BYTES:
                        self._answered.clear()
                        await self._answered.wait()
                if not to_the_last:
                    self._detach()  # so that the session may be resumed at once
                    answers.cancel_scope.cancel()
        finally:
            self._detach()
        return not self._is_broken

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message; wait until the client can read it."""
        async with self._sending:  # so that of many answers for a slow client only one is written
            await self.write(await written(message, dumped))

    def _detach(self) -> None:
        if self._session and self._session.connection is self:
            self.wire.detach(self._session)

    async def _handle(self, message: bytes, end: Callable[[], None]) -> None:
        try:
            async with self._order:
                id_, method, given = await self._read(message)
                if method not in _WAITING:
                    await self._answer(id_, method, given)
            if method in _WAITING:
                await self._answer(id_, method, given)
            elif id_ is None and not self._is_initialized:
                self._is_broken = True
                end()
        finally:
            self._waiting_bytes -= len(message) + MESSAGE_BYTES
            self._answered.set()

    async def _read(self, message: bytes) -> tuple[int | str | None, str, dict[str, Any] | Exception]:
        """Return id, method and parameters of a request, or the error of these."""
        try:
            return await read_json(message, self._request)
        except (BodyRefused, RpcError) as exc:
            detail = exc if isinstance(exc, RpcError) else exc.detail
            return -1, "", RpcError(f"This is no JSON-RPC message: {detail}")

    def _request(self, message: object) -> tuple[int | str | None, str, dict[str, Any] | Exception]:
        """Return as `_read`; raise RpcError for what is no request."""
        if isinstance(message, list):
            raise RpcError("it is a batch, which the protocol does not have: send each request alone")
        asked: RpcRequest = read(RpcRequest, message, self.box.home)
        try:
            if asked.method not in METHODS:
                raise RpcError(f"This exec-server has no method {asked.method}.", NO_METHOD)
            return asked.id, asked.method, dict(read(METHODS[asked.method], asked.params or {}, self.box.home))
        except (RpcError, HTTPException) as exc:
            return asked.id, asked.method, exc

    async def _answer(self, id_: int | str | None, method: str, given: dict[str, Any] | Exception) -> None:
        try:
            if id_ is None:
                self._is_initialized = method == "initialized" and self._session is not None
                if not self._is_initialized:
                    raise RpcError(f"unexpected notification {method}: only initialized, after initialize")
                return
            if isinstance(given, Exception):
                raise given
            is_large = method == "http/request"  # and held until it is sent
            async with self._fetches() if is_large else nullcontext():
                result, *events = await self._results(method, given)
                for message in ({"id": id_, "result": result}, *events):
                    await self.send(message)
        except Exception as exc:
            if (error := error_of(exc)) is None:
                raise
            await self.send({"error": error.body, "id": -1 if id_ is None else id_})

    def _fetches(self) -> asyncio.Semaphore:
        """Return the places for `http/request`s of this owner, which are kept while it has some."""
        return self.wire.fetches.setdefault(self.box.place[0], asyncio.Semaphore(MAX_FETCHES))

    async def _results(self, method: str, given: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the result of a method, and notifications that follow it."""
        if method == "initialize":
            if self._session:
                raise RpcError("initialize may only be sent once per connection")
            self._session = self.wire.attach(self.box, self, given["resume_session_id"])
            return [{"sessionId": self._session.id, "environmentInfo": self._info()}]
        if not (session := self._session) or not self._is_initialized:
            missing = "send initialized" if session else "call initialize"
            raise RpcError(f"client must {missing} before using {method}")
        if method in _PROCESSES:
            return [await _PROCESSES[method](session.processes, **given) or {}]
        if method in _FILES:
            is_strict = given.pop("follow_symlinks") is False

            def work(sandbox: Sandbox) -> Any:
                if is_strict and "path" in given:
                    refuse_links(sandbox, given["path"])
                return _FILES[method](session.files, sandbox, **given)

            return [await used(self.wire.sandboxes, self.box.container, work) or {}]
        if method == "http/request":
            return await used(self.wire.sandboxes, self.box.container, partial(fetch, **given))
        return [self._info() if method == "environment/info" else {"status": "ready"}]

    def _info(self) -> dict[str, Any]:
        return {
            "shell": {"name": "bash", "path": "/bin/bash"},
            "executorVersion": VERSION,
            "cwd": uri_of(self.box.home.shown(GUEST_WORK_DIR)),
            "userHomeDir": uri_of(GUEST_HOME),
            "platformOs": "linux",
            "temporaryDirectories": [],
            "tempDir": uri_of("/tmp"),
            "capabilities": {"sandboxedFileStreaming": True, "fileWriteStreaming": True},
        }
