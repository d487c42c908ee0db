"""LibreChat's scripts: the part of the guest, in a process of this machine, and the state of one on the host."""

from __future__ import annotations

import asyncio
import errno
import json
import subprocess
from types import SimpleNamespace
from typing import Any, cast

from agent_tools.results.commands import CommandOutput, CommandResult, Cursor
from agent_tools.results.execution import Execution, Picture, Stream
from agent_tools.wires.librechat import _Call, _digest, _File, _printed
from agent_tools.wires.librechat.state import MAX_CALLS, SOURCE, ScriptLines, StartedScript
from agent_tools.wires.open_resources import OpenResource, program


def answers(ids: range, **given: Any) -> list[dict[str, Any]]:
    return [{"call_id": f"call_{each:03}", **given} for each in ids]


def run(code: str, *lines: list[dict[str, Any]]) -> tuple[str, list[int], str]:
    """Return the stdout of a script to whose questions these are the answers, the calls of each, and its stderr."""
    started = program(SOURCE, {"code": code, "tools": {"get_weather": "get-weather"}})
    sent = started["stdin"] + "".join(json.dumps(each) + "\n" for each in lines).encode()
    ran = subprocess.run(started["command"], input=sent, capture_output=True, timeout=60, check=False)
    told, asked = ScriptLines(), list[int]()
    for line in ran.stdout.splitlines(keepends=True):
        told.feed(line)
        asked += [len(told.calls)] if told.calls else []
        told.calls = []
    return told.printed.getvalue(), asked, ran.stderr.decode()


def test_calls_made_at_once_are_started_together_and_the_rest_one_after_the_other() -> None:
    code = "print(sum(await asyncio.gather(*(get_weather(city=str(i)) for i in range(450)))), await get_weather())"
    lines = [answers(range(first, first + MAX_CALLS), result=1) for first in (0, 200, 400)]
    assert run(code, *lines, answers(range(450, 451), result="r")) == ("450 r\n", [200, 200, 50, 1], "")


def test_a_result_that_is_missing_unknown_or_there_twice_ends_no_other_call() -> None:
    code = (
        "for each in await asyncio.gather(*(get_weather(city=i) for i in range(3)), return_exceptions=True):\n"
        "    print(each)\n"
        "left = asyncio.ensure_future(get_weather())\nawait asyncio.sleep(0)\nleft.cancel()\n"
        "print(await get_weather())"
    )
    first = [*answers(range(99, 100)), *answers(range(1), result="old"), *answers(range(1), result="new")]
    failed = answers(range(1, 2), is_error=True, error_message="no city")
    printed, asked, _ = run(code, first + failed, answers(range(3, 5), result=1))
    assert printed == "new\nno city\nThere is no result of this call.\n1\n"
    assert asked == [3, 2]


def test_threads_with_loops_of_their_own_call_tools() -> None:
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as threads:\n"
        "    print(*threads.map(lambda city: asyncio.run(get_weather(city=city)), range(40)))"
    )
    printed, asked, errors = run(code, *[answers(range(40), result=1)] * 40)
    assert (printed.split(), sum(asked), errors) == (["1"] * 40, 40, "")


def test_arguments_that_are_no_json_fail_in_the_code() -> None:
    code = (
        "for bad in ({(1, 2): 3}, float('nan')):\n"
        "    try:\n        await get_weather(city=bad)\n    except (TypeError, ValueError) as exc:\n"
        "        print(type(exc).__name__)\n"
        "print(await get_weather(name='x', city={1}))"
    )
    assert run(code, answers(range(2, 3), result=1)) == ("TypeError\nValueError\n1\n", [1], "")


def test_long_code_and_text_that_is_no_utf_8_are_taken() -> None:
    printed, asked, errors = run(f"#{'x' * 300_000}\nprint('\\ud800a' * 50_000)")
    assert (printed, asked, errors) == ("?a" * 50_000 + "\n", [], "")


def test_a_script_that_ended_while_the_client_ran_its_tools_says_how() -> None:
    async def write_stdin(*_: object) -> None:
        raise BrokenPipeError

    result = CommandResult(137)
    sync = SimpleNamespace(pace=lambda _: None, read=lambda _: CommandOutput(b"", b"", Cursor()), result=lambda: result)
    process: Any = SimpleNamespace(sync=sync, is_over=True, write_stdin=write_stdin, kill=lambda: None)
    script = StartedScript(OpenResource(("o", "c"), "c", process, lambda: None), "s", 60.0, list)
    script.lines.calls = [{"id": "call_000"}]

    async def continued() -> dict[str, Any]:
        await script.send_results([])
        return await script.go_on()

    assert asyncio.run(continued())["error"] == "Sandbox exited with code 137"
    assert script.lines.calls == []


def test_a_figure_that_cannot_be_saved_costs_nothing_else() -> None:
    def write_file(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    sandbox: Any = SimpleNamespace(write_file=write_file)
    done = Execution((Stream("stdout", "a\n"),), saved=(Picture("image/png", b""),))
    assert _printed(sandbox, done, "") == ("a\n", "[a figure could not be saved: No space left on device]\n")


def test_many_files_of_a_session_cost_one_look_at_it() -> None:
    looks: list[str] = []
    session, names = "s" * 21, [f"{number}.txt" for number in range(50)]

    def listed(container: str) -> Any:
        looks.append(container)
        return dict.fromkeys(names), True

    containers = SimpleNamespace(find_named=lambda *_: SimpleNamespace(id="c"))
    wire = SimpleNamespace(containers=containers, contents=SimpleNamespace(listed=listed))
    request: Any = SimpleNamespace(scope={"owner": "me"}, app=SimpleNamespace(state=SimpleNamespace(wire=wire)))
    files = [_File(id=_digest(session, name), session_id=session) for name in names]
    _, missing = _Call(request).bring(cast("Any", None), session, [*files, _File(id="gone", session_id=session)])
    assert (missing.count("is not there"), len(looks)) == (1, 2)
