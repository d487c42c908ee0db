"""Scripts that call host functions, from one end to the other, on a sandbox that is a process."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
import typing_extensions

from agent_tools.code_mode import Arg, Toolset
from agent_tools.code_mode.script import EndEvent, HostCallEvent, ResultEvent, Script, StderrEvent, StdoutEvent
from agent_tools.errors import (
    GuestDied,
    GuestError,
    GuestTimeout,
    InvalidParams,
    PreludeError,
    SessionBusy,
    UnclearCode,
)
from agent_tools.tools import CodeInterpreter
from tests.code_mode import process_runtime, sandbox, template
from tests.leaks import Scratch
from tests.unit.machine.test_folder import dig

PRELUDE = """
import asyncio

from typing import Literal, TypedDict, cast

from sandbox.asyncio import hostcall


class Weather(TypedDict):
    city: str  # city name
    temperature_c: int
    uv_index: int  # 7 and more is high


class Advisory(TypedDict):
    kind: Literal["uv", "rain", "air_quality"]
    message: str


async def get_weather(city: str) -> Weather:
    return cast(Weather, await hostcall("get_weather", {"city": city}))


async def get_advisory(kind: str) -> Advisory:
    return cast(Advisory, await hostcall("get_advisory", {"kind": kind}))
""".strip()

REPORT = """
import asyncio

async def main() -> object:
    here, there = await asyncio.gather(get_weather("Tokyo"), get_weather("Oslo"))
    advisory_tasks = [get_advisory("uv") for each in (here, there) if each["uv_index"] >= 7]
    advisories = await asyncio.gather(*advisory_tasks) if advisory_tasks else []
    return "; ".join([f"{each['city']} {each['temperature_c']}" for each in (here, there)]
                     + [each["message"] for each in advisories])
"""


async def weather_of_payload(payload: dict[str, object]) -> object:
    await asyncio.sleep(random.random() / 100)
    return {"city": str(payload["city"]), "temperature_c": 20, "uv_index": 9 if payload["city"] == "Tokyo" else 1}


async def advisory_of_payload(payload: dict[str, object]) -> object:
    return {"kind": payload["kind"], "message": "Use sunscreen."}


class Weather(typing_extensions.TypedDict):
    """The weather now."""

    city: str
    temperature_c: int
    uv_index: int


async def get_weather(city: str) -> Weather:
    """Current weather."""
    return {"city": city, "temperature_c": 20, "uv_index": 9 if city == "Tokyo" else 1}


def get_advisory(kind: typing_extensions.Literal["uv", "rain"]) -> dict[str, str]:
    """Say what to do."""
    return {"kind": kind, "message": "Use sunscreen."}


def add(a: int, b: int = 1) -> int:
    """A sum."""
    return a + b


FOREVER = 20.0  # seconds: only a failing test waits this long


@pytest.fixture
def adder() -> Iterator[Script]:
    """A script that can add, whose code has the time to end when it is interrupted, however busy the machine is."""
    with sandbox([add], kill_grace=FOREVER) as script:
        yield script


def call(script: Script, body: str, *args: Any, **kwargs: Any) -> Any:
    """Run a function with this body."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    names = ", ".join([f"a{index}" for index in range(len(args))])
    script.load_script(f"import asyncio\nasync def it({names}):\n{lines}")
    return script.run("it", *args, **kwargs)


# -- the two ways to give functions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [None, 5, b"x = 1"])
def test_a_script_is_text(code: object) -> None:
    with sandbox([]) as script, pytest.raises(InvalidParams, match="give it as text"):
        script.load_script(code)  # type: ignore[arg-type]


def test_a_script_runs_as_it_is_or_as_the_one_reading_that_is_left() -> None:
    with sandbox([]) as script:
        script.load_script('marks = """\n```python\n>>> 1\n```\n"""')
        assert script.run("marks") == "\n```python\n>>> 1\n```\n"
        assert script.last
        script.load_script("Here it is:\n\n```python\ndef two():\n    return 2\n```\n")
        assert len(script.last.notes) == 1
        assert script.run("two") == 2
        with pytest.raises(UnclearCode):
            script.load_script("Either\n```js\nx = 1\n```\nor\n```sql\nselect 2\n```\n")


def test_a_program_runs_with_payload_handlers_and_a_prelude_written_by_hand() -> None:
    async def main() -> None:
        handlers = {"get_weather": weather_of_payload, "get_advisory": advisory_of_payload}
        async with template(prelude=PRELUDE).create(hostcalls=handlers) as script:
            await script.load_script(REPORT)
            assert await script.run("main") == "Tokyo 20; Oslo 20; Use sunscreen."

    asyncio.run(main())


def test_the_same_program_runs_with_generated_stubs() -> None:
    async def main() -> None:
        async with sandbox([get_weather, get_advisory]) as script:
            await script.load_script(REPORT)
            assert await script.run("main") == "Tokyo 20; Oslo 20; Use sunscreen."

    asyncio.run(main())


def test_a_call_cancelled_before_its_thread_has_begun_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with sandbox([]) as script:
            await script.load_script("ran = []\ndef spin():\n    ran.append(1)\n    while True: pass")
            begin, run = threading.Event(), Script.run

            def late(self: Script, *args: Any, **kwargs: Any) -> Any:
                begin.wait(30)
                return run(self, *args, **kwargs)

            with monkeypatch.context() as patch:
                patch.setattr(Script, "run", late)
                call = asyncio.create_task(script.run("spin", timeout=60))
                await asyncio.sleep(0.05)
                call.cancel()
                await asyncio.sleep(0.05)
                begin.set()
                await asyncio.wait([call], timeout=30)
            assert call.cancelled()
            assert await script.run("ran") == []

    asyncio.run(main())


def test_the_with_twin_does_the_same() -> None:
    with sandbox([get_weather, get_advisory]) as script:
        script.load_script(REPORT)
        assert script.run("main") == "Tokyo 20; Oslo 20; Use sunscreen."


def test_the_temporary_folder_goes_with_the_sandbox_however_deep_the_code_made_it(scratch: Scratch) -> None:
    before = scratch.files()
    with sandbox() as script:
        work_dir = call(script, "import os\nreturn os.getcwd()")
        assert work_dir in scratch.files() - before
        dig(Path(work_dir), 1_500)  # by a few renames, before anyone has looked
    assert scratch.files() == before


def test_the_temporary_folder_goes_where_the_sandbox_cannot_be_started(scratch: Scratch, tmp_path: Path) -> None:
    before = scratch.files()
    with pytest.raises(InvalidParams, match="memory"), template().create(max_memory=1):
        pass
    assert scratch.files() == before


def test_the_code_interpreter_s_cells_call_the_same_functions(work_dir: Path) -> None:
    with CodeInterpreter({"work_dir": str(work_dir)}, runtime=process_runtime(), hostcalls=[add]) as tool:
        execution = tool.run("x = await add(2, b=3)\nx")
        assert execution.result is not None
        assert execution.result.text == "5"
        assert [(each.name, each.status, each.arguments) for each in execution.host_calls] == [
            ("add", "ok", "a=2, b=3")
        ]


def test_stubs_of_the_sync_style_are_not_awaited() -> None:
    with sandbox(Toolset([add], style="sync")) as script:
        assert call(script, "return add(1) + add(2)") == 5


def test_a_sync_stub_works_in_threads_of_the_guest() -> None:
    with sandbox(Toolset([add], style="sync")) as script:
        body = (
            "from concurrent.futures import ThreadPoolExecutor\n"
            "with ThreadPoolExecutor(8) as pool:\n"
            "    return list(pool.map(add, range(50)))"
        )
        assert call(script, body) == [each + 1 for each in range(50)]


def test_a_stub_without_annotations_passes_anything() -> None:
    def anything(value):  # type: ignore[no-untyped-def]
        return [value, value]

    with sandbox([anything]) as script:
        assert call(script, "return await anything({1: (2, 3)})") == [{1: (2, 3)}] * 2


def test_many_calls_at_once_each_get_their_own_answer() -> None:
    async def shuffled(number: int) -> int:
        await asyncio.sleep(random.random() / 50)
        return number * 2

    with sandbox([shuffled], max_calls=600) as script:
        body = "return await asyncio.gather(*[shuffled(number) for number in range(512)])"
        assert call(script, body) == [number * 2 for number in range(512)]


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_wrong_argument_is_an_argument_error_that_names_the_parameter_and_nothing_runs() -> None:
    ran: list[int] = []

    def careful(amount: int) -> int:
        ran.append(amount)
        return amount

    with sandbox([careful]) as script:
        body = (
            "from sandbox import HostCallArgumentError\n"
            "try:\n    await careful('much')\n"
            "except HostCallArgumentError as error:\n    return [isinstance(error, TypeError), str(error)]"
        )
        is_type_error, text = call(script, body)
    assert is_type_error
    assert text.startswith("careful: amount: Input should be a valid integer")
    assert ran == []


@pytest.mark.parametrize("body", ["await add()", "await add(1, 2, 3)", "await add(1, c=2)"])
def test_a_wrong_call_of_a_stub_fails_in_the_guest(adder: Script, body: str) -> None:
    with pytest.raises(GuestError) as caught:
        call(adder, body)
    assert caught.value.name == "TypeError"


def test_a_builtin_exception_keeps_its_type_and_a_custom_one_has_its_name() -> None:
    class OutOfStock(Exception):
        pass

    def buy(thing: str) -> None:
        raise KeyError(thing) if thing == "pear" else OutOfStock(f"no {thing}")

    with sandbox([buy]) as script:
        assert (
            call(script, "try:\n    await buy('pear')\nexcept KeyError as error:\n    return str(error)")
            == "\"'pear'\""
        )
        body = (
            "import sandbox\ntry:\n    await buy('fig')\n"
            "except sandbox.HostCallError as error:\n    return error.type_name, str(error)"
        )
        assert call(script, body) == ("OutOfStock", "OutOfStock: no fig")
        assert script.last is not None
        assert [(each.status, each.error) for each in script.last.host_calls] == [("error", "OutOfStock: no fig")]


def test_the_code_is_told_nothing_of_errors_where_the_limits_say_so() -> None:
    def leaky() -> None:
        raise ValueError("password=hunter2")

    with sandbox([leaky], tell_errors=False) as script:
        with pytest.raises(GuestError) as caught:
            call(script, "await leaky()")
        assert "hunter2" not in repr(caught.value.execution)
        assert caught.value.value == "leaky failed."


def test_an_unknown_function_is_a_name_error_that_says_what_there_is(adder: Script) -> None:
    body = (
        "import sandbox.asyncio\n"
        "try:\n    await sandbox.asyncio.hostcall('nothing', 1)\n"
        "except NameError as error:\n    return type(error).__name__, str(error)"
    )
    assert call(adder, body) == ("HostCallNotFound", "There is no host function 'nothing'. Known: add.")


def test_a_result_that_is_not_of_its_type_is_an_error_of_the_host_function() -> None:
    def liar() -> int:
        return "many"  # type: ignore[return-value]

    with sandbox([liar]) as script, pytest.raises(GuestError, match="the result of liar is not of its type"):
        call(script, "await liar()")


def test_a_host_function_that_is_cancelled_by_itself_answers() -> None:
    async def gives_up() -> None:
        raise asyncio.CancelledError

    with sandbox([gives_up]) as script, pytest.raises(GuestError, match="The call of gives_up was cancelled"):
        call(script, "await gives_up()")


def test_what_the_script_raises_comes_with_its_type_and_traceback(adder: Script) -> None:
    with pytest.raises(GuestError) as caught:
        call(adder, "return {}['missing']")
    assert (caught.value.name, caught.value.value) == ("KeyError", "'missing'")
    assert "return {}['missing']" in caught.value.traceback


def test_a_result_that_cannot_cross_is_named_with_its_place(adder: Script) -> None:
    with pytest.raises(GuestError, match=r"return\.items\[1\] is of type module, which cannot cross"):
        call(adder, "return {'items': [1, asyncio]}")


def test_an_argument_that_cannot_cross_is_the_caller_s_error(adder: Script) -> None:
    with pytest.raises(ValueError, match="which cannot cross"):
        call(adder, "return 1", object())


def test_an_argument_of_a_stub_that_cannot_cross_is_named(adder: Script) -> None:
    with pytest.raises(GuestError, match="add: b is of type module"):
        call(adder, "await add(1, asyncio)")


def test_a_script_without_the_function_is_a_name_error(adder: Script) -> None:
    with pytest.raises(GuestError, match="the script defines no 'absent'"):
        adder.run("absent")


def test_a_name_that_is_none_never_runs(adder: Script) -> None:
    with pytest.raises(ValueError, match="is not the name of a function"):
        adder.run("print(1) or x")


def test_a_prelude_that_fails_is_said_when_the_sandbox_is_made() -> None:
    with pytest.raises(PreludeError, match="ZeroDivisionError"), sandbox(prelude="1 / 0"):
        pass


def test_there_is_no_other_runtime() -> None:
    with pytest.raises(InvalidParams, match="no runtime 'js'"):
        type(template())("js")


# -- run, and its time -------------------------------------------------------------------------------------------------


def test_arguments_go_in_by_place_and_by_name(adder: Script) -> None:
    adder.load_script("def shown(*args, **kwargs): return args, kwargs")
    assert adder.run("shown", 1, Arg(2), Arg(3, "x"), y=b"4") == ((1, 2), {"x": 3, "y": b"4"})


def test_a_variable_is_read_and_state_survives_between_runs(adder: Script) -> None:
    adder.load_script("count = 1\ndef more():\n    global count\n    count += 1\n    return count")
    assert [adder.run("count"), adder.run("more"), adder.run("more"), adder.run("count")] == [1, 2, 3, 3]


def test_a_run_that_is_over_time_raises_and_keeps_the_state(adder: Script) -> None:
    adder.load_script("kept = 7")
    with pytest.raises(GuestTimeout):
        call(adder, "await asyncio.sleep(60)", timeout=0.3)
    assert adder.run("kept") == 7


def test_a_kernel_that_dies_raises_and_the_next_call_finds_the_stubs_again() -> None:
    with sandbox([add]) as script:
        with pytest.raises(GuestDied):
            call(script, "import os\nos._exit(3)")
        assert call(script, "return await add(1)") == 2


def test_no_call_runs_without_a_prelude_that_fails_in_a_later_kernel() -> None:
    prelude = "import os\nassert not os.path.exists('broken')\nready = True"
    with sandbox([add], prelude=prelude) as script:
        with pytest.raises(GuestDied):
            call(script, "open('broken', 'w').close()\nos._exit(3)")
        for _ in range(2):
            with pytest.raises(PreludeError, match="AssertionError"):
                call(script, "return ready")


def test_a_second_call_is_refused_at_once_and_does_not_disturb_the_first() -> None:
    is_in, may_go = threading.Event(), threading.Event()

    def wait() -> str:
        is_in.set()
        may_go.wait(10)
        return "first"

    with sandbox([wait]) as script:
        script.load_script("async def first(): return await wait()\ndef second(): return 'second'")
        answers: list[Any] = []
        runner = threading.Thread(target=lambda: answers.append(script.run("first")))
        runner.start()
        assert is_in.wait(10)
        with pytest.raises(SessionBusy):
            script.run("second")
        may_go.set()
        runner.join()
        assert answers == ["first"]


def test_a_host_function_that_calls_its_own_sandbox_is_told_so_at_once(work_dir: Path) -> None:
    def again() -> str:
        try:
            return str(tool.run("1"))
        except Exception as exc:
            return f"{type(exc).__name__}: {exc}"

    async def again_async() -> str:
        return await asyncio.to_thread(again)

    with CodeInterpreter(
        {"work_dir": str(work_dir)}, runtime=process_runtime(), hostcalls=[again, again_async]
    ) as tool:
        execution = tool.run("print(await again()); print(await again_async())")
        assert execution.stdout.count("A host function cannot run code in the sandbox that called it") == 2


def test_a_host_function_may_use_another_sandbox(adder: Script) -> None:
    adder.load_script("def double(n): return 2 * n")

    def double(n: int) -> int:
        return int(adder.run("double", n))

    with sandbox([double]) as script:
        assert call(script, "return await double(21)") == 42


# -- cancelling --------------------------------------------------------------------------------------------------------


class Endless:
    """A host function that ends only when it is cancelled."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.cancelled = threading.Event()

    async def endless(self) -> None:
        self.begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@pytest.mark.parametrize("style", ["async", "sync"])
def test_an_interrupt_of_code_that_waits_for_a_host_function_cancels_it_and_keeps_the_state(style: Any) -> None:
    function = Endless()
    with sandbox(Toolset([function.endless], style=style), cancel_grace=FOREVER) as script:
        script.load_script(f"kept = 5\nasync def main():\n    return {'await ' * (style == 'async')}endless()")
        stopper = threading.Thread(target=lambda: function.begun.wait(10) and script.cancel())
        stopper.start()
        with pytest.raises(GuestError) as caught:
            script.run("main")
        stopper.join()
        assert caught.value.name in ("KeyboardInterrupt", "CancelledError")
        assert function.cancelled.wait(10)
        assert [each.status for each in caught.value.execution.host_calls] == ["cancelled"]
        assert script.run("kept") == 5


@pytest.mark.parametrize("style", ["async", "sync"])
def test_the_run_s_time_limit_cancels_the_host_function_and_keeps_the_state(style: Any) -> None:
    function = Endless()
    with sandbox(Toolset([function.endless], style=style)) as script:
        script.load_script(f"kept = 5\nasync def main():\n    return {'await ' * (style == 'async')}endless()")
        with pytest.raises(GuestTimeout):
            script.run("main", timeout=0.5)
        assert function.cancelled.wait(10)
        assert script.run("kept") == 5


def test_a_kernel_that_is_killed_in_the_middle_cancels_the_host_function() -> None:
    function = Endless()
    with sandbox([function.endless]) as script:
        body = "import os, signal\nasyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGKILL)\n"
        with pytest.raises(GuestDied):
            call(script, body + "await endless()")
        assert function.cancelled.wait(10)


def test_wait_for_in_the_guest_cancels_the_host_function_and_the_run_goes_on() -> None:
    function = Endless()
    with sandbox([function.endless]) as script:
        body = "try:\n    await asyncio.wait_for(endless(), 0.2)\nexcept asyncio.TimeoutError:\n    return 'late'"
        assert call(script, body) == "late"
        assert function.cancelled.wait(10)
        assert script.last is not None


def test_cancelling_the_await_of_a_run_cancels_the_host_function_and_keeps_the_state() -> None:
    async def main() -> None:
        function = Endless()
        async with sandbox([function.endless]) as script:
            await script.load_script("kept = 5\nasync def main(): await endless()")
            task = asyncio.create_task(script.run("main"))
            await asyncio.to_thread(function.begun.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert function.cancelled.is_set()
            assert await script.run("kept") == 5

    asyncio.run(main())


def test_cancelling_while_the_sandbox_starts_leaves_nothing() -> None:
    async def main() -> None:
        made = sandbox()
        with anyio.move_on_after(0.05) as scope:
            async with made:
                await anyio.sleep_forever()
        assert scope.cancelled_caught

    asyncio.run(main())


# -- whose event loop --------------------------------------------------------------------------------------------------


def test_host_functions_are_tasks_of_the_caller_s_loop() -> None:
    async def main() -> None:
        mine = asyncio.get_running_loop()

        async def is_mine() -> bool:
            return asyncio.get_running_loop() is mine

        async with sandbox([is_mine]) as script:
            await script.load_script(
                "async def main(): return await is_mine()\nasync def each(): yield await is_mine()"
            )
            assert await script.run("main") is True
            events = [event async for event in script.run_stream("each")]
            assert ResultEvent(True) in events

    asyncio.run(main())


def test_a_call_that_blocks_the_loop_is_served_by_another(work_dir: Path) -> None:
    async def main() -> None:
        with CodeInterpreter({"work_dir": str(work_dir)}, runtime=process_runtime(), hostcalls=[get_weather]) as tool:
            code = "print((await get_weather('Oslo'))['city'])"
            assert "Oslo" in await tool.acall(code)
            assert "Oslo" in tool.call(code, timeout=10)

    asyncio.run(main())


def test_trio_s_callers_are_served_by_our_loop(work_dir: Path) -> None:
    async def main() -> None:
        with CodeInterpreter({"work_dir": str(work_dir)}, runtime=process_runtime(), hostcalls=[get_weather]) as tool:
            assert "Oslo" in await tool.acall("print((await get_weather('Oslo'))['city'])")

    trio.run(main)


# -- streams -----------------------------------------------------------------------------------------------------------

STREAM = """
import sys
async def items(count):
    print("begun", flush=True)
    for number in range(count):
        yield await add(number)
    print("done", file=sys.stderr, flush=True)
def plain():
    yield 1
    yield (2,)
async def value():
    print("once")
    return await add(5)
"""


def test_calls_that_are_over_are_in_the_stream_while_the_code_goes_on() -> None:
    seen = threading.Event()

    def first() -> str:
        return "done"

    def second() -> bool:
        return seen.wait(15)

    with sandbox([first, second]) as script:
        script.load_script("async def main():\n    await first()\n    return await second()")
        for event in script.run_stream("main"):
            if isinstance(event, HostCallEvent) and event.data.name == "first":
                seen.set()
        assert event == EndEvent(True)
        assert script.last
        assert [each.name for each in script.last.host_calls] == ["first", "second"]


def test_a_stream_gives_prints_items_and_calls_and_ends_with_the_end(adder: Script) -> None:
    adder.load_script(STREAM)
    events = list(adder.run_stream("items", 3))
    assert [event.data for event in events if isinstance(event, ResultEvent)] == [1, 2, 3]
    assert [event.data for event in events if isinstance(event, StdoutEvent)] == ["begun\n"]
    assert [event.data for event in events if isinstance(event, StderrEvent)] == ["done\n"]
    assert [event.data.status for event in events if isinstance(event, HostCallEvent)] == ["ok"] * 3
    assert events[-1] == EndEvent(None)


def test_a_stream_of_a_plain_generator_and_of_a_value(adder: Script) -> None:
    adder.load_script(STREAM)
    assert list(adder.run_stream("plain")) == [ResultEvent(1), ResultEvent((2,)), EndEvent(None)]
    assert list(adder.run_stream("value"))[-1] == EndEvent(6)


def test_a_stream_that_fails_raises_after_what_came_before(adder: Script) -> None:
    adder.load_script("def broken():\n    yield 1\n    raise ValueError('half')")
    stream = adder.run_stream("broken")
    assert next(stream) == ResultEvent(1)
    with pytest.raises(GuestError, match="half"):
        list(stream)


def test_a_slow_reader_holds_the_generator_back(adder: Script) -> None:
    page = "x" * 100_000  # of which 10,000 have no room between the two, however long the reader takes to close
    adder.load_script(f"made = 0\ndef many():\n    global made\n    for made in range(10000):\n        yield {page!r}")
    with closing(adder.run_stream("many")) as stream:
        assert next(stream) == ResultEvent(page)
    assert adder.run("made") < 5000


def test_closing_a_stream_early_interrupts_the_function_and_the_script_goes_on(adder: Script) -> None:
    async def main() -> None:
        async with sandbox([add], kill_grace=FOREVER) as script:
            await script.load_script("kept = 3\nasync def forever():\n    while True:\n        yield 'x' * 1000")
            async with aclosing(script.run_stream("forever")) as events:
                async for event in events:
                    assert event == ResultEvent("x" * 1000)
                    break
            assert await script.run("kept") == 3

    asyncio.run(main())


def test_a_stream_while_another_call_runs_is_refused_and_leaves_that_alone() -> None:
    refused = threading.Event()

    def hold() -> bool:
        """Returns when the other call was refused."""
        return refused.wait(20)

    with sandbox([hold]) as script:
        script.load_script("async def items():\n    yield 1\n    yield await hold()\ndef plain():\n    yield 2")
        with closing(script.run_stream("items")) as stream:
            assert next(stream) == ResultEvent(1)
            with pytest.raises(SessionBusy):
                list(script.run_stream("plain"))
            refused.set()
            rest = list(stream)
        assert [event for event in rest if isinstance(event, ResultEvent)] == [ResultEvent(True)]
        assert rest[-1] == EndEvent(None)


# -- the record --------------------------------------------------------------------------------------------------------


def test_a_failed_run_s_markdown_says_which_calls_were_made(work_dir: Path) -> None:
    with CodeInterpreter({"work_dir": str(work_dir)}, runtime=process_runtime(), hostcalls=[add]) as tool:
        text = tool.call("await add(1, b=2)\nawait add(3)\nraise RuntimeError('half-way')")
        assert text.index("half-way") < text.index("host calls made before:")
        assert "add(a=1, b=2) ok after" in text
        assert "add(a=3, b=1) ok after" in text
        assert "host calls" not in tool.call("await add(1)")


def test_the_record_has_sizes_and_times() -> None:
    def echo(data: bytes) -> bytes:
        return data

    with sandbox([echo]) as script:
        call(script, "await echo(bytes(1000))")
        assert script.last is not None
        (record,) = script.last.host_calls
        assert record.bytes_in > 1000
        assert record.bytes_out > 1000
        assert 0 < record.duration < record.start + record.duration < 20


def test_a_call_is_recorded_before_what_the_code_prints_after_it(work_dir: Path) -> None:
    with CodeInterpreter({"work_dir": str(work_dir)}, runtime=process_runtime(), hostcalls=[add]) as tool:
        for _ in range(20):
            kinds = [type(output).__name__ for output in tool.run("await add(1); print('after')").outputs]
            assert kinds == ["HostCall", "Stream"]
