"""Host calls from real sandboxes, over both transports."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

from agent_tools.code_mode import Template, Toolset
from agent_tools.errors import GuestDied
from agent_tools.limits import Limits
from agent_tools.results.execution import Died, TimedOut
from agent_tools.runtime.runtime import Runtime
from agent_tools.tools import CodeInterpreter
from tests.docker.lasting import lasting_tool

pytestmark = pytest.mark.docker


def double(frame: pd.DataFrame, by: np.ndarray) -> pd.DataFrame:
    """Scale a frame."""
    return frame * by[0]


def add(a: int, b: int = 1) -> int:
    """A sum."""
    return a + b


def echo(data: bytes) -> bytes:
    """What was given."""
    return data


class Endless:
    """A call without an end, that tells of its beginning and of its end."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()

    async def wait(self) -> None:
        """Wait for nothing."""
        self.begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            self.ended.set()


@pytest.fixture(scope="module")
def endless() -> Endless:
    return Endless()


@pytest.fixture(scope="module", params=["sockets", "stdio"])
def connected(request: pytest.FixtureRequest, docker_runtime: Runtime, endless: Endless) -> Iterator[CodeInterpreter]:
    """A tool that calls all the functions, on each transport: tests have it one after another."""
    functions: list[Any] = [double, add, echo, endless.wait]
    cfg = {"transport": request.param, "call_limits": {"max_calls": 600}}
    with lasting_tool(docker_runtime, cfg, hostcalls=functions) as tool:
        yield tool


@pytest.fixture
def tool(connected: CodeInterpreter, endless: Endless) -> CodeInterpreter:
    """That tool, with a fresh kernel."""
    connected.restart()
    endless.begun.clear()
    endless.ended.clear()
    return connected


def test_many_calls_at_once_are_answered_without_any_network(tool: CodeInterpreter) -> None:
    code = (
        "import asyncio, os\n"
        "found = await asyncio.gather(*[add(n) for n in range(512)])\n"
        "print(found == list(range(1, 513)), sorted(os.listdir('/sys/class/net')))"
    )
    assert tool.run(code).stdout == "True ['lo']\n"


def test_frames_and_arrays_cross_both_ways(tool: CodeInterpreter) -> None:
    code = (
        "frame = pd.DataFrame({'a': [1.5, None], 'd': pd.to_timedelta([1, 2], 's')}, index=['x', 'y'])\n"
        "back = await double(frame, np.array([2]))\n"
        "print(type(back).__name__, back.loc['x', 'a'], back.loc['y', 'd'], list(back.index))"
    )
    execution = tool.run(code)
    assert execution.stdout == "DataFrame 3.0 0 days 00:00:04 ['x', 'y']\n", execution.outputs


def test_a_megabyte_crosses_both_ways(tool: CodeInterpreter) -> None:
    code = "import os\ndata = os.urandom(2**20)\nprint([await echo(data) == data for _ in range(5)])"
    assert tool.run(code).stdout == "[True, True, True, True, True]\n"


@pytest.mark.parametrize("megabytes", [1, 6])
def test_more_than_may_wait_unread_arrives_whole(tool: CodeInterpreter, megabytes: int) -> None:
    """With few of them the answers wait for the code, with large ones calls and answers meet each other."""
    code = (
        "import asyncio, time\n"
        f"calls = [asyncio.create_task(echo(bytes({megabytes} * 2**20))) for _ in range(120 // {megabytes})]\n"
        "await asyncio.sleep(0)\ntime.sleep(0.5)\n"
        "print(sum([len(each) for each in await asyncio.gather(*calls)]) // 2**20)"
    )
    assert tool.run(code, timeout=150).stdout == "120\n"


def test_an_interrupt_and_a_time_out_cancel_what_is_awaited_and_keep_the_state(
    tool: CodeInterpreter, endless: Endless
) -> None:
    stopper = threading.Thread(target=lambda: endless.begun.wait(60) and tool.interrupt())
    stopper.start()
    execution = tool.run("kept = 1\nawait wait()")
    stopper.join()
    assert execution.error is not None
    assert endless.ended.wait(10)
    endless.ended.clear()
    assert isinstance(tool.run("await wait()", timeout=1).error, TimedOut)
    assert endless.ended.wait(10)
    assert tool.run("print(kept)").stdout == "1\n"


def test_a_kernel_that_is_killed_cancels_what_it_called_and_the_next_one_has_the_stubs(
    tool: CodeInterpreter, endless: Endless
) -> None:
    code = (
        "import asyncio, os, signal\nasyncio.get_running_loop().call_later(0.3, os.kill, os.getpid(), 9)\nawait wait()"
    )
    assert isinstance(tool.run(code).error, Died)
    assert endless.ended.wait(10)
    assert tool.run("print(await add(1))").stdout == "2\n"


def test_a_script_runs_and_dies_and_runs_again(docker_runtime: Runtime) -> None:
    template = Template(hostcalls=Toolset([add]), limits=Limits(timeout=30), runtime=docker_runtime)
    with template.create() as script:
        script.load_script(
            "import os\nasync def main(n): return {'sum': await add(n), 'raw': b'x'}\ndef die(): os._exit(1)"
        )
        assert script.run("main", 41) == {"sum": 42, "raw": b"x"}
        with pytest.raises(GuestDied):
            script.run("die")
        script.load_script("async def main(n): return await add(n, n)")
        assert script.run("main", 4) == 8
