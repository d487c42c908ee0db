"""What stays open in containers."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from agent_tools.containers.mount import Mount
from agent_tools.guest.wire.commands import Spec
from agent_tools.runtime.commands.process import Process
from agent_tools.wires import e2b, librechat
from agent_tools.wires.open_resources import OpenResources, Processes
from tests.gateway.in_loop import until_true

PLACE = ("owner", "container")


class Containers:
    """Holds containers as long as something is open in them."""

    def __init__(self, sandbox: Any = None) -> None:
        self.held = 0
        self._sandbox = sandbox

    @contextmanager
    def pin(self, id_: str, rank: int, begin: Callable[[Any], Any], timeout: float = 0.0) -> Iterator[Any]:
        self.held += 1
        yield begin(self._sandbox)
        self.held -= 1


@pytest.fixture
def never_begun() -> Iterator[Process]:
    """A process that a hostile sandbox never starts."""
    ours, theirs = socket.socketpair()
    with theirs:
        yield Process(ours, Spec(("true",), "", {}, None, 1.0), 1_000)


def test_what_a_cancelled_request_has_opened_ends() -> None:
    containers, ended, may_begin = Containers(), list[str](), threading.Event()
    resources = OpenResources(containers, 1, 1, "things", ended.append, lambda _: False)

    async def main() -> None:
        has_begun, loop = asyncio.Event(), asyncio.get_running_loop()

        def begin(_: object) -> str:
            loop.call_soon_threadsafe(has_begun.set)
            may_begin.wait(30)
            return "thing"

        opening = asyncio.ensure_future(resources.open(PLACE, lambda: "id", begin))
        await has_begun.wait()
        opening.cancel()
        may_begin.set()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert (resources.of(PLACE), ended, containers.held) == ([], ["thing"], 0)
        assert (await resources.open(PLACE, lambda: "id", lambda _: "other")).it == "other"

    asyncio.run(main())


def test_all_end_also_if_one_fails() -> None:
    ended = list[str]()

    def end(thing: str) -> None:
        ended.append(thing)
        if thing == "failing":
            raise OSError("it is gone")

    async def main() -> None:
        resources = OpenResources(Containers(), 1, 9, "things", end, lambda _: False)
        for thing in ("failing", "other"):
            await resources.open(PLACE, lambda: "id", lambda _, thing=thing: thing)  # type: ignore[misc]
        with pytest.raises(OSError, match="it is gone"):
            await resources.close()

    asyncio.run(main())
    assert sorted(ended) == ["failing", "other"]


def test_things_of_one_place_end_alone() -> None:
    async def main() -> None:
        resources = OpenResources(Containers(), 1, 9, "things", ended.append, lambda _: False)
        for place in (("owner", "other"), (*PLACE, "1"), (*PLACE, "2")):
            await resources.open(place, lambda: "id", lambda _, place=place: place)  # type: ignore[misc]
        await resources.close(PLACE)
        assert [each.it for each in resources.of(())] == [("owner", "other")]

    ended = list[Any]()
    asyncio.run(main())
    assert sorted(ended) == [(*PLACE, "1"), (*PLACE, "2")]


def test_a_sandbox_that_never_starts_a_command_holds_nobody_up(never_begun: Process) -> None:
    async def main() -> None:
        containers = Containers(SimpleNamespace(start_command=lambda **_: never_begun))
        processes = Processes(containers, 1, 1)
        processes.start_seconds = 0.05
        started = await processes.start(PLACE, lambda: "id")
        assert (started.it.pid, started.it.is_over) == (0, True)
        assert "within 0.05 s" in started.it.sync.reason
        await processes.close()
        assert containers.held == 0

    asyncio.run(main())


def test_a_command_whose_start_is_cancelled_ends(never_begun: Process) -> None:
    async def main() -> None:
        processes = Processes(Containers(SimpleNamespace(start_command=lambda **_: never_begun)), 1, 1)
        starting = asyncio.ensure_future(processes.start(PLACE, lambda: "id"))
        await until_true(lambda: processes.of(PLACE))
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert never_begun.is_over
        await processes.close()

    asyncio.run(main())


@pytest.mark.parametrize(("mount", "resources"), [(e2b.MOUNT, "commands"), (librechat.MOUNT, "processes")])
def test_a_door_ends_what_is_open_also_if_another_door_fails_to_close(mount: Mount, resources: str) -> None:
    containers, rows = Containers(), SimpleNamespace()
    ended = threading.Event()

    async def main() -> None:
        async with mount.open(containers, rows) as app:  # type: ignore[arg-type]
            resources_of: Any = getattr(app.state.wire, resources)
            process = SimpleNamespace(sync=SimpleNamespace(kill=ended.set), is_over=False)
            await resources_of.open(PLACE, lambda: "id", lambda _: process)
            raise OSError("another door")

    with pytest.raises(OSError, match="another door"):
        asyncio.run(main())
    assert ended.is_set()
