"""The sandbox awaited, on asyncio and trio."""

from __future__ import annotations

import inspect
import io
import threading
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, nullcontext
from types import SimpleNamespace

import anyio
import pytest

from agent_tools import AsyncSandbox, CodeInterpreter, Sandbox
from agent_tools.errors import SessionBusy
from agent_tools.runtime.in_thread import in_thread
from agent_tools.runtime.runtime import Runtime

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def sandbox(process_runtime: Runtime) -> AsyncIterator[AsyncSandbox]:
    async with AsyncSandbox(runtime=process_runtime) as sandbox:
        yield sandbox


def test_both_colours_have_the_same_methods() -> None:
    def methods(cls: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(cls) if not name.startswith("_")}

    left_out = {"cancel", "cfg", "container", "options", "takes_functions", "workspace"}
    assert methods(Sandbox) - left_out == methods(AsyncSandbox)


async def test_code_commands_and_files(sandbox: AsyncSandbox) -> None:
    await sandbox.start()
    assert sandbox.is_alive
    await sandbox.write_file("a", b"1")
    assert (await sandbox.run_command("cat a")).stdout == b"1"
    execution = await sandbox.run_code("x + 1", variables={"x": 1})
    assert execution.result is not None
    assert execution.result.text == "2"
    assert [each.name for each in await sandbox.list_files()] == ["a"]
    assert [output async for output in sandbox.stream("print(3)")]


async def test_files_and_variables_are_saved_and_come_back(sandbox: AsyncSandbox, process_runtime: Runtime) -> None:
    await sandbox.run_code("x = [1]; open('a', 'w').write('a'); print()")
    assert not sandbox.is_busy
    saved, alone = await sandbox.save(variables=True), io.BytesIO()
    assert (await sandbox.save_to(alone, files=False)).kept == saved.variables.kept == ("x",)
    async with AsyncSandbox(runtime=process_runtime) as other:
        assert not (await other.load(await sandbox.save())).kept
        assert await other.read_file("a") == b"a"
    async with AsyncSandbox(runtime=process_runtime) as other:
        assert (await other.load(saved)).is_complete
        assert (await other.run_code("x, open('a').read()")).value == ([1], "a")
    async with AsyncSandbox(runtime=process_runtime) as other:
        assert (await other.load(alone.getvalue())).kept == ("x",)
        assert await other.list_files() == []


async def test_cancelling_ends_what_runs_and_keeps_the_variables(sandbox: AsyncSandbox) -> None:
    await sandbox.run_code("x = 5")
    for work in (sandbox.run_code("import time; time.sleep(600)"), sandbox.run_command("sleep 600")):
        started = time.monotonic()
        with anyio.move_on_after(0.3) as scope:
            await work
        assert scope.cancelled_caught
        assert time.monotonic() - started < 60
    execution = await sandbox.run_code("x")
    assert execution.result is not None


@pytest.mark.parametrize("method", ["start_command", "fork", "fresh_kernel"])
async def test_what_a_cancelled_call_has_opened_ends(method: str) -> None:
    has_begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work(*_: object, **__: object) -> SimpleNamespace:
        has_begun.set()
        may_end.wait(30)
        return SimpleNamespace(kill=ended.set, close=ended.set)

    sandbox = object.__new__(AsyncSandbox)
    sandbox.sync = SimpleNamespace(**{method: work})  # type: ignore[assignment]
    async with anyio.create_task_group() as group:
        group.start_soon(getattr(sandbox, method), *(["sleep 600"] if method == "start_command" else []))
        await anyio.to_thread.run_sync(has_begun.wait, 30)
        group.cancel_scope.cancel()
        may_end.set()
    assert ended.is_set()


async def test_others_wait_while_one_reads_a_stream_and_the_reader_is_refused(sandbox: AsyncSandbox) -> None:
    await sandbox.run_code("kept = 1")
    values = []

    async def other() -> None:
        values.append((await sandbox.run_code("kept")).value)

    async with anyio.create_task_group() as group:
        stream = sandbox.stream("import time\nfor n in range(5): print(n, flush=True); time.sleep(0.1)")
        async for _ in stream:
            if not values:
                values.append(0)
                for _ in range(3):
                    group.start_soon(other)
            await anyio.sleep(0.05)  # the thread that reads is free
            with pytest.raises(SessionBusy):
                await sandbox.run_code("kept")
    assert values == [0, 1, 1, 1]


async def test_calls_that_wait_keep_no_others_from_a_thread() -> None:
    waiting, free = threading.Barrier(101), threading.Event()

    async def wait() -> None:
        await in_thread(lambda: waiting.wait(30), lambda: None)

    async with anyio.create_task_group() as group:
        for _ in range(100):
            group.start_soon(wait)
        await in_thread(lambda: free.set() or waiting.wait(30), lambda: None)
    assert free.is_set()


async def test_many_at_once(sandbox: AsyncSandbox) -> None:
    found: dict[int, bytes] = {}

    async def one(number: int) -> None:
        found[number] = (await sandbox.run_command(["echo", str(number)])).stdout

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(one, number)
    assert found == {number: b"%d\n" % number for number in range(20)}


async def test_a_command_in_the_background(sandbox: AsyncSandbox) -> None:
    process = await sandbox.start_command("read x; echo got $x", stdin=b"")
    assert process.poll() is None
    await process.write_stdin(b"it\n")
    assert (await process.read(wait=30)).stdout == b"got it\n"
    assert (await process.wait()).ok
    assert process.pid > 0


async def test_the_tool_is_awaited_too(process_runtime: Runtime, work_dir: object) -> None:
    async with CodeInterpreter({"work_dir": str(work_dir)}, runtime=process_runtime) as tool:
        execution = await tool.arun("1 + 1")
        assert execution.result is not None
        outputs = [output async for output in tool.astream({"code": "print(1)\nprint(2)"})]
        assert "".join(getattr(output, "text", "") for output in outputs) == "1\n2\n"


LEFT = pytest.mark.filterwarnings(
    "ignore:Async generator:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
"""For streams that are left to the event loop: trio closes them, and warns."""
ENDLESS = "import time\nwhile True:\n    print('on', flush=True)\n    time.sleep(0.01)"


async def read_some(sandbox: AsyncSandbox, how: str) -> None:
    """Read the first output of endless code, and leave the loop."""
    if how == "a cancelled reader":
        with anyio.move_on_after(0.3):
            async for _ in sandbox.stream(ENDLESS):
                pass
        return
    async for _ in sandbox.stream(ENDLESS):
        if how == "return":
            return
        if how == "an exception":
            raise KeyError("the reader's")
        break


@LEFT
@pytest.mark.parametrize("how", ["break", "return", "an exception", "a cancelled reader", "another task"])
async def test_a_stream_that_is_left_early_ends_and_the_next_call_waits_for_it(sandbox: AsyncSandbox, how: str) -> None:
    await sandbox.run_code("x = 1")
    for number in range(3):
        if how == "another task":
            async with anyio.create_task_group() as group:
                group.start_soon(read_some, sandbox, "break")
        else:
            with pytest.raises(KeyError, match="the reader's") if how == "an exception" else nullcontext():
                await read_some(sandbox, how)
        assert (await sandbox.run_code("x += 1; x")).value == number + 2
    await sandbox.checkpoint()
    await read_some(sandbox, "break")
    await sandbox.undo()
    await read_some(sandbox, "break")
    async with await sandbox.fork() as fork:
        await read_some(fork, "break")
        assert (await fork.run_code("x")).value == 4
    await read_some(sandbox, "break")


@LEFT
async def test_a_sandbox_whose_stream_is_left_early_is_closed_with_its_container(process_runtime: Runtime) -> None:
    for how in ("break", "an exception"):
        with pytest.raises(KeyError, match="the reader's") if how == "an exception" else nullcontext():
            async with AsyncSandbox(runtime=process_runtime) as left:
                await read_some(left, how)
        assert not left.is_alive


async def test_a_stream_that_is_still_held_is_in_the_way_of_its_own_reader(sandbox: AsyncSandbox) -> None:
    async with aclosing(sandbox.stream(ENDLESS)) as stream:
        await anext(stream)
        with pytest.raises(SessionBusy):
            await sandbox.run_code("1")
    assert (await sandbox.run_code("1")).value == 1


def test_a_run_is_over_once_its_stream_is_closed_in_another_thread(process_runtime: Runtime) -> None:
    for _ in range(3):
        sandbox = Sandbox(runtime=process_runtime)
        stream = sandbox.stream(ENDLESS)
        next(stream)
        closing = threading.Thread(target=stream.close)
        closing.start()
        sandbox.close()
        closing.join()
        assert not sandbox.is_alive
