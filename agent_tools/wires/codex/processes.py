"""Processes of a session: each has its events by sequence number, sent as they come and read again by number."""

from __future__ import annotations

import asyncio
import posixpath
import signal as signals
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Annotated, Any, Literal

import anyio
from pydantic import BaseModel, Field

from agent_tools.bodies.base64_text import Base64
from agent_tools.bodies.json_body import at_most
from agent_tools.engines.engine import GUEST_WORK_DIR
from agent_tools.limits import KIB, MIB
from agent_tools.results.commands import Cursor
from agent_tools.sandbox.async_sandbox import AsyncProcess
from agent_tools.wires.codex.messages import FAILED, Name, Number, Path, RpcError, Texts
from agent_tools.wires.open_resources import AHEAD, TYPING_SECONDS, OpenResource, Place, Processes, followed
from agent_tools.wires.routing import aside

KEPT = MIB  # bytes of output and events of a process that can be read again
CHUNK_BYTES = 12 * KIB  # of output in one event, which is small JSON
EVENT = 100  # bytes that an event takes beside its output
MAX_ENDED = 16  # processes of a session that are remembered after their end
KEPT_ENDED = 4 * MIB  # bytes of output of all of them
MAX_WAIT = 600.0  # seconds of one `process/read`
WRITES = 64  # ids of writes that are remembered, since a client may repeat one
TERMINAL = (24, 80)  # rows and columns
_SPAWN_FAILURES = {126: "spawnPermissionDenied", 127: "spawnNotFound"}


class EnvPolicy(BaseModel):
    """The variables that a process inherits. There are only the sandbox's own, so that `set` is all that counts."""

    set: Texts = {}


@dataclass(eq=False)
class Log:
    """A process, None once it has ended, and the end of its output: pieces, each with number and name of its stream."""

    run: OpenResource[AsyncProcess] | None
    takes_input: bool
    chunks: deque[dict[str, Any]] = field(default_factory=deque)
    size: int = 0
    seq: int = 0
    exit_code: int | None = None
    failure: str | None = None
    following: asyncio.Task[None] | None = None
    written: deque[str] = field(default_factory=lambda: deque(maxlen=WRITES))
    typing: asyncio.Lock = field(default_factory=asyncio.Lock)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, stream: str, data: bytes) -> dict[str, Any]:
        """Add output; return the piece."""
        self.chunks.append({"seq": self.step(), "stream": stream, "chunk": data})
        self.size += len(data) + EVENT
        while self.size > KEPT:
            self.size -= len(self.chunks.popleft()["chunk"]) + EVENT
        return self.chunks[-1]

    def step(self) -> int:
        """Return the number of the next event, and wake its readers."""
        self.seq += 1
        self.changed.set()
        self.changed = asyncio.Event()
        return self.seq


class SessionProcesses:
    """The processes of one session, in one container. Each public function is the `process/` method of its name.

    `tell` sends an event to the client. For one event loop.
    """

    def __init__(
        self,
        resources: Processes,
        place: Place,
        container: Callable[[], str],
        tell: Callable[[str, dict[str, Any]], Awaitable[None]],
    ) -> None:
        self._begin = partial(resources.start, place, container, pace=AHEAD, max_output=2 * AHEAD)
        self._tell = tell
        self._logs: dict[str, Log] = {}

    async def start(
        self,
        process_id: Name,
        argv: Annotated[list[str], at_most(10_000), Field(min_length=1)],
        cwd: Path,
        env: Texts,
        tty: bool,
        pipe_stdin: bool = False,
        arg0: str | None = None,
        env_policy: EnvPolicy | None = None,
    ) -> dict[str, Any]:
        """`process/start`. RpcError: the id is taken, there is no program, or it cannot be started."""
        if process_id in self._logs:
            raise RpcError(f"process {process_id} already exists")
        where = posixpath.normpath(posixpath.join(GUEST_WORK_DIR, cwd))  # by which a shell names it
        run = await self._begin(
            command=[*(["bash", "-c", 'exec -a "$0" "$@"', arg0] if arg0 else []), *argv],
            cwd=cwd,
            env={"PWD": where, **(env_policy.set if env_policy else {}), **env},
            stdin=b"" if tty or pipe_stdin else None,
            terminal=TERMINAL if tty else None,
        )
        if not run.it.pid:
            result = run.it.sync.result()
            raise RpcError(result.reason, FAILED, kind=_SPAWN_FAILURES.get(result.exit_code, "spawnFailed"))
        self._logs[process_id] = log = Log(run, tty or pipe_stdin)
        self._forget()
        log.following = asyncio.create_task(self._follow(process_id, log, run, "pty" if tty else "stdout"))
        return {"processId": process_id, "sandboxType": "none"}

    async def read(
        self,
        process_id: Name,
        after_seq: Number | None = None,
        max_bytes: Number | None = None,
        wait_ms: Number | None = None,
    ) -> dict[str, Any]:
        """`process/read`: events after a number; wait for one."""
        if (log := self._logs.get(process_id)) is None:
            raise RpcError(f"unknown process id {process_id}")
        after = after_seq or 0
        with anyio.move_on_after(min((wait_ms or 0) / 1000, MAX_WAIT)):
            while log.seq <= after and log.run:
                await log.changed.wait()
        new = [each for each in log.chunks if each["seq"] > after]
        sizes = accumulate(len(each["chunk"]) for each in new)
        given = [each for each, size in zip(new, sizes) if max_bytes is None or size <= max_bytes] or new[:1]
        return {
            "chunks": given,
            "nextSeq": new[len(given)]["seq"] if len(given) < len(new) else log.seq + 1,
            "exited": log.run is None,
            "exitCode": log.exit_code,
            "closed": log.run is None,
            "failure": log.failure,
            "sandboxDenied": False,
        }

    async def write(self, process_id: Name, chunk: Base64, write_id: Name) -> dict[str, Any]:
        """`process/write`. A write that was made already is not repeated."""
        if (log := self._logs.get(process_id)) is None:
            return {"status": "unknownProcess"}
        async with log.typing:
            if log.run is None or not log.takes_input:
                return {"status": "stdinClosed"}
            type_into = log.run.it.sync.write_stdin

            def written() -> None:
                type_into(chunk, TYPING_SECONDS)
                log.written.append(write_id)  # here, since the client may have left meanwhile

            try:
                if write_id not in log.written:
                    await aside(written)
            except BrokenPipeError:
                return {"status": "stdinClosed"}
        return {"status": "accepted"}

    async def signal(self, process_id: Name, signal: Literal["interrupt"]) -> None:
        """`process/signal`."""
        if (log := self._logs.get(process_id)) and log.run:
            log.run.it.signal(signals.SIGINT)

    async def terminate(self, process_id: Name) -> dict[str, Any]:
        """`process/terminate`: kill a process with all of its session."""
        if not (log := self._logs.get(process_id)) or not log.run:
            return {"running": False}
        log.run.was_killed = True
        log.run.it.kill()
        return {"running": True}

    async def _follow(self, id_: str, log: Log, run: OpenResource[AsyncProcess], name: str) -> None:
        """Send the events of a process to its end. It waits for a client that takes nothing."""
        named = {"processId": id_}
        async with aclosing(followed(run.it, Cursor())) as outputs:
            async for new in outputs:
                left_out = f"[{new.omitted:,} bytes are left out]\n".encode() if new.omitted else b""
                for stream, data in ((name, new.stdout), ("stderr", left_out + new.stderr)):
                    for start in range(0, len(data), CHUNK_BYTES):
                        event = log.add(stream, data[start : start + CHUNK_BYTES])
                        await self._tell("process/output", {**named, **event})
        log.exit_code, log.run = run.it.poll(), None
        log.failure = None if run.was_killed else run.it.sync.reason or None
        exited, closed = log.step(), log.step()
        about = {"exitCode": log.exit_code, "sandboxDenied": False}
        await self._tell("process/exited", {**named, "seq": exited, **about})
        await self._tell("process/closed", {**named, "seq": closed})

    def _forget(self) -> None:
        """Forget ended processes but for the last ones, and output of these beyond `KEPT_ENDED`, the oldest first."""
        ended = [(id_, log) for id_, log in self._logs.items() if log.run is None]
        room = KEPT_ENDED
        for number, (id_, log) in enumerate(reversed(ended)):
            room -= log.size
            if room < 0:
                log.chunks.clear()
            if number >= MAX_ENDED:
                del self._logs[id_]
