"""Commands, shells and kernels that stay open in containers, longer than the request that began them."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from starlette.exceptions import HTTPException

from agent_tools.containers.containers import Containers
from agent_tools.limits import KIB
from agent_tools.results.commands import CommandOutput, Cursor
from agent_tools.results.execution import Execution
from agent_tools.runtime.in_thread import in_thread, made_in_thread
from agent_tools.sandbox.async_sandbox import AsyncProcess
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.routing import aside

SLOT_TIMEOUT = 30.0  # seconds that a request waits for a slot
MAX_ENDED = 16  # commands of one container that are remembered, for `FORGET_AFTER` seconds
FORGET_AFTER = 300.0
TYPING_SECONDS = 10.0  # in which a process takes what was typed
AHEAD, UNPACED = 256 * KIB, 2**62  # bytes that a command may print before its client takes them
SHELL, COMMAND = 1, 2  # ranks
Place = tuple[str, ...]
"""The owner, the name of the container in a wire, and the part of it that the thing belongs to."""
T = TypeVar("T")


class PinsContainers(Protocol):
    """The methods of `Containers` that `OpenResources` uses."""

    def pin(
        self, id_: str, rank: int, begin: Callable[[Sandbox], T], timeout: float = 0.0
    ) -> AbstractContextManager[T]:
        """Begin something that stays open in a container's sandbox."""


class UsesContainers(PinsContainers, Protocol):
    """The methods of `Containers` that `used` needs, too."""

    def use(self, id_: str, timeout: float = 0.0) -> AbstractContextManager[tuple[Sandbox, str]]:
        """Acquire a container's sandbox for a short use."""


@dataclass(eq=False)
class OpenResource(Generic[T]):
    """An open thing, and its container, which is kept for it until `close` is called. `close` blocks."""

    place: Place
    container: str
    it: T
    close: Callable[[], None]
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    created_at: float = field(default_factory=time.time)
    ended_at: float | None = None
    label: Any = None
    was_killed: bool = False
    is_attached: bool = False


@dataclass(eq=False)
class OpenResources(Generic[T]):
    """All things of one kind, at most `most` in a container. For one event loop.

    Attributes:
        rank: what is parked first has the lowest.
        noun: the kind, in the plural.
        ends: ends a thing, for good.
        is_over: returns whether it has ended by itself; such a thing does not count.
    """

    containers: PinsContainers
    rank: int
    most: int
    noun: str
    ends: Callable[[T], object]
    is_over: Callable[[T], bool] = lambda _: False
    _things: dict[str, OpenResource[T]] = field(default_factory=dict)
    _starting: Counter[Place] = field(default_factory=Counter)

    async def open(self, place: Place, container: Callable[[], str], begin: Callable[[Sandbox], T]) -> OpenResource[T]:
        """Open a thing in a container, which is found or created in a thread.

        Raises:
            HTTPException: 429, too many are open in it.
        """
        room = place[:2]
        open_ = sum(not self.is_over(each.it) for each in self._things.values() if each.place[:2] == room)
        if open_ + self._starting[room] >= self.most:
            raise HTTPException(429, f"{self.most} {self.noun} are open in this container already: end one of them.")
        self._starting[room] += 1
        try:
            thing = await made_in_thread(partial(self._begun, place, container, begin), lambda lost: lost.close())
        finally:
            self._starting[room] -= 1
            self._starting += Counter()  # which forgets rooms where nothing starts
        self._things[thing.id] = thing
        return thing

    def _begun(self, place: Place, container: Callable[[], str], begin: Callable[[Sandbox], T]) -> OpenResource[T]:
        with ExitStack() as stack:
            id_ = container()
            it = stack.enter_context(self.containers.pin(id_, self.rank, begin, SLOT_TIMEOUT))
            stack.callback(self.ends, it)
            return OpenResource(place, id_, it, stack.pop_all().close)

    def of(self, place: Place) -> list[OpenResource[T]]:
        """List the things whose place begins so, oldest first."""
        return [each for each in self._things.values() if each.place[: len(place)] == place]

    def find(self, place: Place, id_: str, missing: str) -> OpenResource[T]:
        """Return a thing of a place.

        Raises:
            HTTPException: 404, with the message `missing`: there is none.
        """
        for each in self.of(place):
            if each.id == id_:
                return each
        raise HTTPException(404, missing)

    async def end(self, thing: OpenResource[T]) -> None:
        """End a thing, and forget it."""
        if self._things.pop(thing.id, None):
            await aside(thing.close)

    async def close(self, place: Place = ()) -> None:
        """End all things whose place begins so, also if one fails; then raise that failure."""
        ends = await asyncio.gather(*map(self.end, self.of(place)), return_exceptions=True)
        for failure in filter(None, ends):
            raise failure


class Processes(OpenResources[AsyncProcess]):
    """Commands. An ended one releases its container, and is kept in memory for a while with the end of its output.

    A sandbox has `start_seconds` to say that a command has begun.
    """

    start_seconds = 30.0

    def __init__(self, containers: PinsContainers, rank: int, most: int, noun: str = "commands") -> None:
        super().__init__(containers, rank, most, noun, AsyncProcess.kill, lambda process: process.is_over)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(
        self, place: Place, container: Callable[[], str], label: Any = None, pace: int = UNPACED, **command: Any
    ) -> OpenResource[AsyncProcess]:
        """Start a command, with the arguments of `Sandbox.start_command`; return when it runs or has ended.

        It pauses after about `pace` bytes of stdout, until `followed` lets it go on. Errors as for `open`.
        """

        def begin(sandbox: Sandbox) -> AsyncProcess:
            process = sandbox.start_command(**command)
            process.pace(pace)
            return AsyncProcess(process)

        self._forget()
        thing = await self.open(place, container, begin)
        thing.label = label
        task = asyncio.create_task(self._follow(thing))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        process = thing.it.sync
        try:
            has_begun = await in_thread(partial(process.has_begun, self.start_seconds), process.kill)
        except BaseException:
            process.kill()  # also if it has just begun: nobody knows of it
            raise
        if not has_begun:
            process.kill(f"the sandbox did not start it within {self.start_seconds:g} s")  # unless it has ended
        return thing

    def of(self, place: Place) -> list[OpenResource[AsyncProcess]]:
        """List the commands whose place begins so, oldest first."""
        self._forget()
        return super().of(place)

    async def close(self, place: Place = ()) -> None:
        """End all things whose place begins so, also if one fails; then raise that failure."""
        try:
            await super().close(place)
        finally:
            if not place:
                await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, thing: OpenResource[AsyncProcess]) -> None:
        try:
            await thing.it.wait()
        finally:
            await aside(thing.close)
            thing.ended_at = time.monotonic()

    def _forget(self) -> None:
        """Forget commands that ended long ago, and all but the last `MAX_ENDED` of each container."""
        ended = Counter[Place]()
        for thing in reversed(list(self._things.values())):
            if thing.ended_at:
                ended[thing.place[:2]] += 1
                if ended[thing.place[:2]] > MAX_ENDED or thing.ended_at < time.monotonic() - FORGET_AFTER:
                    del self._things[thing.id]


async def followed(
    process: AsyncProcess, cursor: Cursor, ahead: int = AHEAD, silence: float | None = None
) -> AsyncGenerator[CommandOutput, None]:
    """Yield the output of a command from a cursor on, to its end; an empty output after `silence` seconds without any.

    The command pauses while its reader is `ahead` bytes of stdout behind, as long as there is a reader.
    """
    try:
        while True:
            process.sync.pace(cursor.stdout + ahead)
            is_over, new = process.is_over, process.sync.read(cursor)
            cursor = new.cursor
            if new.stdout or new.stderr or new.omitted:
                yield new
                await asyncio.sleep(0)  # a command that prints without end, and a fast reader, leave others their turn
            elif is_over:
                return
            else:
                try:
                    await asyncio.wait_for(process.changed(cursor), silence)
                except TimeoutError:
                    yield new
    finally:
        process.sync.pace(UNPACED)


def program(source: Path, given: Mapping[str, Any], script: str = "") -> dict[str, Any]:
    """Return the arguments of a command: a Python program that reads one line of JSON, since arguments are bounded.

    The audit log has `script`, by default the JSON.
    """
    line = json.dumps(given)
    command = ["python3", "-I", "-c", source.read_text()]
    return {"command": command, "stdin": f"{line}\n".encode(), "script": script or line}


async def used(containers: UsesContainers, container: Callable[[], str], work: Callable[[Sandbox], T]) -> T:
    """Run a short function on the sandbox of a container, which is found or created in a thread."""

    def done() -> T:
        with containers.use(container(), SLOT_TIMEOUT) as (sandbox, _):
            return work(sandbox)

    return await aside(done)


class CodeRun:
    """Code that threads run in kernels, and that `cancel` ends; variables stay."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._kernels: list[Sandbox] = []

    def of(self, kernel: Sandbox) -> Sandbox:
        """Return a kernel, whose code `cancel` ends from now on."""
        self._kernels.append(kernel)
        return kernel

    def run(
        self,
        containers: Containers[Any],
        container: str,
        code: str,
        seconds: float | None = None,
        kernel_of: Callable[[Sandbox], Sandbox] = lambda sandbox: sandbox,
    ) -> tuple[Execution, str]:
        """Run code in a container; return the execution and the note on variables that came back, or ''. Blocking."""
        with containers.acquire(container, SLOT_TIMEOUT) as (sandbox, woken):
            note = woken.result()
            kernel = self.of(kernel_of(sandbox))
            return kernel.run_code(code, timeout=seconds, cancelled=self.event), note

    def cancel(self) -> None:
        """End the code."""
        self.event.set()
        for kernel in self._kernels:
            kernel.cancel(self.event)
