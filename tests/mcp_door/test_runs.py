"""Running code and commands, as an MCP client sees it."""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from collections.abc import Callable

import pytest
from mcp import Client
from mcp_types import CallToolResult, ImageContent, ResourceLink

from agent_tools.mcp.activities import PROGRESS_SECONDS
from agent_tools.mcp.answers import MAX_LINKS
from tests.mcp_door.conftest import FOREVER, Converse, text_of
from tests.written_code import REFUSED, TEXTS, RecordingRuntime

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="  # 1 x 1
DRAW = f"from IPython.display import display\nimport base64\ndisplay({{'image/png': {PNG!r}}}, raw=True)"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_code_has_state_and_the_answer_has_all_of_it_in_text_and_structure(converse: Converse, mode: str) -> None:
    async def talk(client: Client) -> None:
        assert client.protocol_version == {"auto": "2026-07-28", "legacy": "2025-11-25"}[mode]
        first = await client.call_tool("run_python", {"code": "x = 20; print('hello')"})
        ran = first.structured_content
        assert (ran["status"], ran["ok"], ran["stdout"], ran["result"]) == ("done", True, "hello\n", None)
        assert text_of(first).startswith(f"container: {ran['container']}\n")
        assert "hello" in text_of(first)
        again = await client.call_tool("run_python", {"code": "x + 1", "container": ran["container"]})
        assert again.structured_content["result"] == "21"
        usual = await client.call_tool("run_python", {"code": "x + 2"})
        assert (usual.structured_content["result"], usual.structured_content["container"]) == ("22", ran["container"])

    converse(talk, mode)


def test_without_a_handle_each_call_has_a_container_of_its_own_where_several_clients_are(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        made = [(await run(client, "x = globals().get('x', 0) + 1; x")).structured_content for _ in range(2)]
        assert [each["result"] for each in made] == ["1", "1"]
        assert made[0]["container"] != made[1]["container"]
        refused = await client.call_tool("list_files", {})
        assert refused.is_error
        assert "Give the container" in text_of(refused)

    converse(talk, is_alone=False)


STOPPED_OR_FAILED = {
    "%%capture\n1 / 0": "ZeroDivisionError",
    "%%capture x\nx = = 3": "SyntaxError",
    "%%capture\nimport time; time.sleep(60)": "Time",
    "!sleep 60\nprint('went on')": "Time",
    "x = !sleep 60\nprint('went on')": "Time",
    "open('bad.py', 'w').write('raise ValueError(1)')\n%run bad.py\nprint('went on')": "ValueError",
}


def test_captured_code_and_commands_that_fail_or_take_too_long_are_told_as_such(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        for code, name in STOPPED_OR_FAILED.items():
            answer = await client.call_tool("run_python", {"code": code, "timeout": 1})
            ran = answer.structured_content
            assert (answer.is_error, ran["ok"], "went on" in ran["stdout"]) == (True, False, False), code
            assert name in ran["error"], code
            assert name in text_of(answer), code

    converse(talk)


def test_code_that_fails_is_an_answer_with_all_its_output(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        answer = await run(client, "print('before'); 1/0")
        ran = answer.structured_content
        assert answer.is_error
        assert (ran["ok"], ran["stdout"], ran["state_lost"]) == (False, "before\n", False)
        assert "ZeroDivisionError" in ran["error"]
        assert "ZeroDivisionError" in text_of(answer)
        died = (await run(client, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")).structured_content
        assert not died["ok"]
        assert "KernelDied" in died["error"]

    converse(talk)


def test_figures_are_images_and_new_files_are_links(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        answer = await run(client, f"{DRAW}\nopen('out 1.csv', 'w').write('a,b')")
        (image,) = [block for block in answer.content if isinstance(block, ImageContent)]
        assert (image.mime_type, base64.b64decode(image.data)) == ("image/png", base64.b64decode(PNG))
        (link,) = [block for block in answer.content if isinstance(block, ResourceLink)]
        container = answer.structured_content["container"]
        assert (link.name, link.uri, link.size) == ("out 1.csv", f"sandbox://{container}/out%201.csv", 3)
        assert link.mime_type == "text/csv"
        assert answer.structured_content["files"] == [{"path": "out 1.csv", "uri": link.uri, "size": 3}]
        assert answer.structured_content["figures"] == 1
        assert "out 1.csv" in text_of(answer)

    converse(talk)


def test_figures_and_links_beyond_their_limits_are_named(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        draw = DRAW.replace("display(", "for n in range(9):\n    display(").replace(PNG, PNG[:80] + "'+'" + PNG[80:])
        answer = await run(client, f"{draw}\nfor n in range(52): open(f'{{n}}.txt', 'w').close()")
        assert sum(isinstance(block, ResourceLink) for block in answer.content) == MAX_LINKS
        assert "and 2 more" in text_of(answer)

    converse(talk)


def test_a_call_is_answered_while_its_code_goes_on_and_wait_has_the_rest(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        answer = await run(
            client, "import os, time\nprint('one', flush=True)\nwhile not os.path.exists('go'): time.sleep(.01)"
        )
        first = answer.structured_content
        assert (first["status"], first["ok"]) == ("running", None)
        assert not answer.is_error
        assert "call `wait`" in text_of(answer)
        while "one" not in first["stdout"]:
            first = (await client.call_tool("wait", {})).structured_content
        still = (await client.call_tool("wait", {"seconds": 0.05})).structured_content
        assert (still["status"], still["stdout"]) == ("running", "")
        busy = await run(client, "2")
        assert "An earlier call still runs" in text_of(busy)
        await client.call_tool("put_file", {"path": "go", "content": ""})
        await client.call_tool("run_command", {"command": "true"})  # beside the code
        rest = await until_done(client)
        assert (rest["ok"], rest["stdout"]) == (True, "")
        while "Nothing is running" not in text_of(await client.call_tool("wait", {"container": rest["container"]})):
            pass

    converse(talk, answer_within=0.3)


def test_what_nobody_waited_for_is_told_with_the_next_answer(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        first = (
            await run(client, "import time\nfor n in range(4): print(n, flush=True); time.sleep(.2)")
        ).structured_content
        answer = await run(client, "'next'")
        while "An earlier call still runs" in text_of(answer):
            answer = await run(client, "'next'")
        assert "3\n" in text_of(answer)
        assert (answer.structured_content["result"] or (await until_done(client))["result"]) == "'next'"
        assert first["status"] == "running"

    converse(talk, answer_within=0.3)


def test_calls_at_once_in_one_container_are_served_in_turn(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        answers = await asyncio.gather(*(run(client, f"print({n}); {n}") for n in range(4)))
        assert [each.structured_content["result"] for each in answers] == ["0", "1", "2", "3"]
        assert [each.structured_content["stdout"] for each in answers] == [f"{n}\n" for n in range(4)]
        assert len({each.structured_content["container"] for each in answers}) == 1

    converse(talk)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_cancelled_call_ends_its_code_and_keeps_variables(converse: Converse, mode: str) -> None:
    async def talk(client: Client) -> None:
        began = asyncio.Event()

        async def hear(_: float, __: float | None, message: str | None) -> None:
            if message == "7\n":
                began.set()

        call = asyncio.create_task(
            client.call_tool(
                "run_python", {"code": f"kept = 7; print(kept, flush=True)\n{FOREVER}"}, progress_callback=hear
            )
        )
        await began.wait()
        call.cancel()
        await asyncio.wait([call])
        assert (await run(client, "kept")).structured_content["result"] == "7"

    converse(talk, mode)


def test_progress_tells_what_was_printed_and_beats_while_nothing_is(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        told: list[tuple[float, str | None]] = []

        async def hear(seconds: float, _: float | None, message: str | None) -> None:
            told.append((seconds, message))

        code = "import time\nprint('a' * 600 + 'tail', flush=True); time.sleep(1)"
        await client.call_tool("run_python", {"code": code}, progress_callback=hear)
        ends = [message for _, message in told if message and message.endswith("tail\n")]
        assert len(ends) >= 3
        assert all(len(message) <= 500 for message in ends)
        assert [seconds for seconds, _ in told] == sorted(seconds for seconds, _ in told)

    converse(talk, beat=0.2)


def test_the_image_is_built_by_the_first_call_which_tells_of_it_and_is_answered_in_time(converse: Converse) -> None:
    may_go_on, asked = threading.Event(), []

    def prepare(told: Callable[[str], None]) -> None:
        asked.append(1)
        told("Building the image: step 1 of 2")
        assert may_go_on.wait(60)

    async def talk(client: Client) -> None:
        assert (await client.list_tools()).tools
        assert not asked
        said: list[str | None] = []

        async def hear(_: float, __: float | None, message: str | None) -> None:
            said.append(message)

        answer = await client.call_tool("run_python", {"code": "40 + 2"}, progress_callback=hear)
        assert answer.structured_content["status"] == "running"
        while "Building the image: step 1 of 2" not in text_of(answer):
            answer = await client.call_tool("wait", {}, progress_callback=hear)
        assert said[:1] in (["Building the image: step 1 of 2"], [])  # nothing where the answer has come before
        may_go_on.set()
        assert (await until_done(client))["result"] == "42"

    converse(talk, prepare=prepare, answer_within=0.3)


def test_a_command_has_its_exit_code_and_both_streams(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        answer = await client.call_tool("run_command", {"command": "echo out; echo err >&2; exit 3"})
        ran = answer.structured_content
        assert (ran["stdout"], ran["stderr"], ran["exit_code"], ran["ok"]) == ("out\n", "err\n", 3, False)
        assert answer.is_error
        assert "exit code 3" in text_of(answer)
        late = (await client.call_tool("run_command", {"command": "sleep 60", "timeout": 0.2})).structured_content
        assert late["exit_code"] == 124

    converse(talk)


def test_a_restart_ends_what_runs_and_keeps_files(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        await run(client, "x = 1; open('kept', 'w').close()")
        await until_done(client)
        assert (await run(client, FOREVER)).structured_content["status"] == "running"
        await client.call_tool("restart", {})
        assert not (await until_done(client))["ok"]
        assert await result_of(client, "import os; 'x' in globals(), os.path.exists('kept')") == "(False, True)"

    converse(talk, answer_within=0.5)


def test_a_closed_container_is_gone_and_the_next_call_has_a_new_one(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        old = (await run(client, "x = 1")).structured_content["container"]
        await client.call_tool("close", {})
        gone = await client.call_tool("run_python", {"code": "x", "container": old})
        assert gone.is_error
        assert "No container found" in text_of(gone)
        new = (await run(client, "'x' in globals()")).structured_content
        assert (new["result"], new["container"] != old) == ("False", True)

    converse(talk)


@pytest.mark.parametrize(
    ("tool", "arguments", "reason"),
    [
        ("run_python", {}, "code: Field required"),
        ("run_python", {"code": 1}, "code: Input should be a valid string"),
        ("run_python", {"code": "1", "kernel": "x"}, "kernel: Extra inputs are not permitted"),
        ("run_python", {"code": "1", "container": "../../etc"}, "is not a handle"),
        ("run_python", {"code": "1", "container": "cntr_" + "0" * 48}, "Leave `container` out"),
        ("run_python", {"code": "1", "timeout": 1e9}, "more than 3,600 seconds"),
        ("run_python", {"code": "1", "timeout": -1}, "greater than or equal to 0"),
        ("run_python", {"code": "a\0b"}, "NUL"),
        ("run_command", {"command": "x" * 2**20 + "x"}, "max_code_bytes"),
        ("wait", {"container": "cntr_" + "0" * 48}, "No container found"),
        ("put_file", {"path": "../x", "content": ""}, "not in the working directory"),
        ("put_file", {"path": "x", "content": "!", "encoding": "base64"}, "no base64"),
        ("get_file", {"path": "x"}, "There is no file 'x' in this container"),
    ],
)
def test_bad_arguments_are_answers_that_say_what_to_do(
    converse: Converse, tool: str, arguments: dict[str, object], reason: str
) -> None:
    async def talk(client: Client) -> None:
        await client.call_tool("put_file", {"path": "a", "content": "a"})
        answer = await client.call_tool(tool, arguments)
        assert answer.is_error
        assert reason in text_of(answer)

    converse(talk)


async def run(client: Client, code: str) -> CallToolResult:
    return await client.call_tool("run_python", {"code": code})


async def until_done(client: Client) -> dict[str, object]:
    """Wait for the end of what goes on; an answer without an end is passed over, as is one that all was told."""
    while (answer := (await client.call_tool("wait", {})).structured_content)["status"] == "running":
        pass
    return answer


async def result_of(client: Client, code: str) -> object:
    answer = (await run(client, code)).structured_content
    return answer["result"] if answer["status"] == "done" else (await until_done(client))["result"]


def test_more_runs_at_once_than_may_be_are_refused(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        first = (await run(client, FOREVER)).structured_content["container"]
        assert "try again later" in text_of(await run(client, "2"))
        await client.call_tool("close", {"container": first})
        while (answer := await run(client, "2")).is_error:
            assert "try again later" in text_of(answer)
        assert answer.structured_content is not None

    converse(talk, is_alone=False, max_runs=1, answer_within=0.5)


def test_what_nobody_waited_for_is_told_also_where_no_more_can_run(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        here = (
            "import os, time\nprint('here', flush=True)\nwhile not os.path.exists('go'): time.sleep(.01)\nprint('end')"
        )
        container = (await run(client, here)).structured_content["container"]
        await client.call_tool("put_file", {"path": "go", "content": "", "container": container})
        while (await run(client, FOREVER)).is_error:  # elsewhere, once the code here has ended
            pass
        answer = await client.call_tool("run_python", {"code": "1", "container": container})
        assert answer.is_error
        assert "end\n" in text_of(answer)
        assert "try again later" in text_of(answer)

    converse(talk, is_alone=False, max_runs=1, answer_within=0.5)


def test_progress_comes_no_more_often_than_it_may(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        told: list[str | None] = []

        async def hear(_: float, __: float | None, message: str | None) -> None:
            told.append(message)

        code = "import time\nfor n in range(100): print(n, flush=True); time.sleep(.01)"
        began = time.monotonic()
        await client.call_tool("run_python", {"code": code}, progress_callback=hear)
        most = (time.monotonic() - began) / PROGRESS_SECONDS + 1
        assert 1 <= len([message for message in told if message and message[0].isdigit()]) <= most

    converse(talk)


def test_code_is_read_as_everywhere_and_the_answer_has_the_notes(converse: Converse) -> None:
    runtime = RecordingRuntime()

    async def talk(client: Client) -> None:
        for written in TEXTS:
            runtime.ran.clear()
            answer = await client.call_tool("run_python", {"code": written.text})
            ran = answer.structured_content
            assert runtime.ran == ([] if written.code is REFUSED else [written.code]), written.text
            assert ran["ok"] == (written.code is not REFUSED)
            assert bool(ran["notes"]) == bool(written.note)
            assert written.note in " ".join(ran["notes"])
            assert written.note in text_of(answer)

    converse(talk, runtime=runtime)
    runtime.close_all()
