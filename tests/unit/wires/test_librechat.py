"""LibreChat's scripts: the part of the guest and the host's function for it, in one event loop of this process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from agent_tools.errors import SandboxGone
from agent_tools.results.execution import Died, Error, Execution, Output, Stream, TimedOut
from agent_tools.runtime.host_calls.function import ArgumentError
from agent_tools.wires.librechat.scripts import MAX_CALLS, ClientTools, ToolScript, identifier


def defined(tools: ClientTools, call: Callable[..., Any] | None = None) -> dict[str, Any]:
    """Return the names that a kernel would have, whose host functions are called at once."""
    found: dict[str, Any] = {"_call": call or (lambda name, args, kwargs: tools.functions[name].call(args, kwargs))}
    sandbox = ModuleType("sandbox")
    sandbox.define = lambda _name, source: exec(source, found)  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "sandbox", sandbox)
        exec(tools.source())
    return {name: found[name] for name in found["__all__"]}


def run(code: str, *results: list[dict[str, Any]]) -> tuple[list[Any], list[list[str]]]:
    """Run a function body whose questions get these results; return what it printed, and the ids of each question."""

    async def ran() -> tuple[list[Any], list[list[str]]]:
        tools, printed, asked = ClientTools(["get-weather"]), list[Any](), list[list[str]]()
        namespace = {**defined(tools), "print": lambda *values: printed.extend(values)}
        body = "".join(f"    {line}\n" for line in code.splitlines())
        exec(f"async def main():\n{body}", namespace)
        script = asyncio.ensure_future(namespace["main"]())
        script.add_done_callback(lambda _: tools.changed.set())
        for given in results:
            while not (calls := tools.ask()):
                assert not script.done(), script.result()
                tools.changed.clear()
                await tools.changed.wait()
            asked.append([each["id"] for each in calls])
            tools.answer({each["call_id"]: each for each in given})
        await script
        return printed, asked

    return asyncio.run(asyncio.wait_for(ran(), 60))


def answers(ids: range, **given: Any) -> list[dict[str, Any]]:
    return [{"call_id": f"call_{each:03}", "result": None, "is_error": False, **given} for each in ids]


def test_calls_made_at_once_are_asked_for_together_and_the_rest_one_after_the_other() -> None:
    code = "print(sum(await asyncio.gather(*(get_weather(city=str(i)) for i in range(450)))), await get_weather())"
    results = [answers(range(450), result=1)] * 3
    printed, asked = run(code, *results, answers(range(450, 451), result="r"))
    assert printed == [450, "r"]
    assert sorted(id_ for ids in asked[:3] for id_ in ids) == sorted(f"call_{each:03}" for each in range(450))
    assert max(map(len, asked)) == MAX_CALLS
    assert asked[3] == ["call_450"]


def test_a_result_that_is_missing_unknown_or_there_twice_ends_no_other_call() -> None:
    code = (
        "for each in await asyncio.gather(*(get_weather(city=i) for i in range(3)), return_exceptions=True):\n"
        "    print(str(each))\n"
        "left = asyncio.ensure_future(get_weather())\nawait asyncio.sleep(0)\nleft.cancel()\n"
        "print(await get_weather())"
    )
    first = [*answers(range(99, 100)), *answers(range(1), result="old"), *answers(range(1), result="new")]
    failed = answers(range(1, 2), is_error=True, error_message="no city")
    printed, asked = run(code, first + failed, answers(range(3, 5), result=1))
    assert printed == ["new", "no city", "There is no result of this call.", 1]
    assert [len(ids) for ids in asked] == [3, 2]


def test_arguments_that_are_no_json_fail_in_the_code() -> None:
    code = (
        "for bad in ({(1, 2): 3}, float('nan')):\n"
        "    try:\n        await get_weather(city=bad)\n    except (TypeError, ValueError) as exc:\n"
        "        print(type(exc).__name__)\n"
        "print(await get_weather(name='x', city={1}))"
    )
    assert run(code, answers(range(1), result=1)) == (["TypeError", "ValueError", 1], [["call_000"]])


def test_calls_that_the_host_refuses_fail_in_the_code() -> None:
    async def refused(*_: object) -> None:
        raise OSError("too large")

    async def failure() -> str:
        namespace = defined(ClientTools(["f"]), refused)
        try:
            await asyncio.wait_for(namespace["f"](), 60)
        except RuntimeError as exc:
            return str(exc)
        return ""

    assert asyncio.run(failure()) == "too large"


@pytest.mark.parametrize(
    "calls", [1, [1], {"name": "a", "input": {}}, [{"name": "a"}], [{"name": "a", "input": {"x": b""}}], [1] * 1_000]
)
def test_what_are_no_calls_of_tools_is_refused(calls: object) -> None:
    with pytest.raises(ArgumentError):
        asyncio.run(ClientTools([]).functions["call_tools"].call((calls,), {}))


def test_a_function_has_the_name_that_libre_chat_tells_the_model() -> None:
    names = ("get-weather", "a b", "1x", "class", "x.y", "ä")
    assert [identifier(each) for each in names] == ["get_weather", "a_b", "_1x", "class_tool", "xy", ""]


def ended(*outputs: Output) -> dict[str, Any]:
    """Return the answer to the client of code that ended with these outputs."""

    def run_code(*_: object, **__: object) -> Execution:
        if not outputs:
            raise SandboxGone("The sandbox is gone.")
        return Execution(outputs)

    async def told() -> dict[str, Any]:
        kernel: Any = SimpleNamespace(run_code=run_code)
        script = ToolScript(kernel, ClientTools([]), "", 60.0, "missing ")
        await script.wait()
        return await script.go_on()

    return asyncio.run(told())


@pytest.mark.parametrize(
    ("outputs", "error"),
    [
        ((Error("SystemExit", "7", ""),), "Sandbox exited with code 7"),
        ((Error("SystemExit", "no more", ""),), "Sandbox exited with code 1"),
        ((Error("ValueError", "7", ""),), "Sandbox exited with code 1"),
        ((Died("it was killed"),), "Sandbox exited with code 137"),
        ((TimedOut(600.0, state_kept=False),), "Time limit exceeded"),
        ((), "The sandbox is gone."),
    ],
)
def test_a_script_that_failed_says_how(outputs: tuple[Output, ...], error: str) -> None:
    printed = (Stream("stdout", "a"),) if outputs else ()
    told = ended(*printed, *outputs)
    assert (told["status"], told["error"]) == ("error", error)
    assert told["stdout"] == ("missing a" if outputs else "missing ")


def test_a_script_that_ended_says_what_it_printed() -> None:
    assert ended(Stream("stdout", "a"), Stream("stderr", "b")) == {
        "status": "completed",
        "stdout": "missing a",
        "stderr": "b",
        "files": [],
    }
