"""Calls that go on, as tasks of clients that declare them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal
from unittest.mock import Mock

import anyio.lowlevel
import mcp_types
import pytest
from mcp import Client, MCPError
from mcp.client.extension import ClientExtension, ResultClaim, advertise
from pydantic import ConfigDict

from agent_tools.mcp.apps import EXTENSION as PAGES
from agent_tools.mcp.apps import MIME
from agent_tools.mcp.tasks import EXTENSION, MAX_ENDED, RunTasks, TaskParams
from tests.gateway.in_loop import LargeJsonHere
from tests.mcp_door.conftest import FOREVER, Converse, text_of
from tests.unit.mcp.test_apps import ran

GO = "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'): time.sleep(.01)\n"


class TaskAnswer(mcp_types.Result):
    """The answer with a task; all of it is wanted."""

    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = "task"


class AnyResult(mcp_types.Result):
    """Whatever comes."""

    model_config = ConfigDict(extra="allow")


class TaskRequest(mcp_types.Request[TaskParams, str]):
    """A request for a task; over HTTP its id is in a header, too."""

    name_param = "taskId"


async def ask(client: Client, method: str, task: str) -> dict[str, Any]:
    request = TaskRequest(method=f"tasks/{method}", params=TaskParams(task_id=task))
    return (await client.session.send_request(request, AnyResult)).model_dump(by_alias=True)


class Tasks(ClientExtension):
    """A client that notes the tasks it is given, and does not wait for them."""

    identifier = EXTENSION

    def __init__(self) -> None:
        self.given: list[dict[str, Any]] = []

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=TaskAnswer, resolve=self._note)]

    async def _note(self, answer: TaskAnswer, _: object) -> mcp_types.CallToolResult:
        self.given.append(answer.model_dump(by_alias=True))
        noted = {"container": "", "status": "running", "duration": 0}
        return mcp_types.CallToolResult(content=[], structured_content=noted)


async def begun(client: Client, tasks: Tasks, code: str) -> str:
    """Return the id of a task whose code has printed `begun`."""
    await client.call_tool("run_python", {"code": code})
    (task,) = tasks.given
    while (state := await ask(client, "get", task["taskId"]))["statusMessage"] != "begun":
        assert (state["status"], state["resultType"]) == ("working", "complete")
    return str(task["taskId"])


async def ended(client: Client, task: str) -> dict[str, Any]:
    while (state := await ask(client, "get", task))["status"] == "working":
        await anyio.lowlevel.checkpoint()
    return state


Talk = Callable[[Client, Tasks], Awaitable[None]]


def with_tasks(converse: Converse, talk: Talk, **settings: Any) -> None:
    tasks = Tasks()
    converse(lambda client: talk(client, tasks), extensions=(tasks,), **{"answer_within": 0.3, **settings})


def test_a_call_that_goes_on_is_a_task_whose_result_is_the_whole_answer(converse: Converse) -> None:
    async def talk(client: Client, tasks: Tasks) -> None:
        id_ = await begun(client, tasks, f"{GO}print('late'); 1/0")
        (task,) = tasks.given
        assert (task["status"], task["resultType"], task["pollIntervalMs"]) == ("working", "task", 1_000)
        assert task["ttlMs"] == 2 * 3_600_000
        waited = await client.call_tool("wait", {})
        assert (waited.structured_content["status"], waited.structured_content["stdout"]) == ("running", "begun\n")
        await client.call_tool("put_file", {"path": "go", "content": ""})
        state = await ended(client, id_)
        assert (state["status"], state["createdAt"]) == ("completed", task["createdAt"])
        result = mcp_types.CallToolResult.model_validate(state["result"])
        assert result.is_error
        assert result.structured_content["stdout"] == "begun\nlate\n"
        assert "ZeroDivisionError" in text_of(result)
        assert await ask(client, "get", id_) == state
        after = await client.call_tool("run_python", {"code": "'next'"})
        assert "late" not in text_of(after)

    with_tasks(converse, talk)


def test_a_call_that_ends_in_time_is_none(converse: Converse) -> None:
    async def talk(client: Client, tasks: Tasks) -> None:
        answer = await client.call_tool("run_python", {"code": "2 + 2"})
        assert (answer.structured_content["result"], tasks.given) == ("4", [])

    with_tasks(converse, talk, answer_within=45)


def test_a_command_is_a_task_with_all_it_printed(converse: Converse) -> None:
    async def talk(client: Client, tasks: Tasks) -> None:
        await client.call_tool(
            "run_command", {"command": "echo one; while [ ! -e go ]; do sleep .02; done; echo two; exit 3"}
        )
        await client.call_tool("wait", {})
        await client.call_tool("put_file", {"path": "go", "content": ""})
        result = (await ended(client, tasks.given[0]["taskId"]))["result"]
        assert (result["structuredContent"]["stdout"], result["structuredContent"]["exit_code"]) == ("one\ntwo\n", 3)

    with_tasks(converse, talk)


def test_a_cancelled_task_ends_its_code_and_keeps_variables(converse: Converse) -> None:
    async def talk(client: Client, tasks: Tasks) -> None:
        task = await begun(client, tasks, f"kept = 7; print('begun', flush=True)\n{FOREVER}")
        assert (await ask(client, "cancel", task))["resultType"] == "complete"
        state = await ended(client, task)
        assert state["status"] == "cancelled"
        assert "result" not in state
        assert (await ask(client, "cancel", task))["resultType"] == "complete"
        assert await ask(client, "get", task) == state
        while (answer := await client.call_tool("run_python", {"code": "kept"})).structured_content is None:
            pass
        assert answer.structured_content["result"] == "7"

    with_tasks(converse, talk)


@pytest.mark.parametrize("tool", ["restart", "close"])
def test_a_task_whose_container_is_ended_says_so(converse: Converse, tool: str) -> None:
    async def talk(client: Client, tasks: Tasks) -> None:
        task = await begun(client, tasks, f"print('begun', flush=True)\n{FOREVER}")
        await client.call_tool(tool, {})
        state = await ended(client, task)
        assert (state["status"], state["result"]["isError"]) == ("completed", True)
        assert "KernelDied" in str(state["result"]["content"])

    with_tasks(converse, talk)


def test_who_does_not_declare_tasks_gets_none_and_is_told_what_to_declare(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        answer = await client.call_tool("run_python", {"code": FOREVER})
        assert "call `wait`" in text_of(answer)
        for method in ("get", "update", "cancel"):
            with pytest.raises(MCPError) as failure:
                await ask(client, method, "x")
            assert failure.value.error.code == -32021
            assert failure.value.error.data == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}

    converse(talk, answer_within=0.2)


@pytest.mark.parametrize("options", [{"mode": "legacy"}, {"tasks": False}])
def test_clients_of_older_protocols_get_none_and_nobody_where_they_are_off(
    converse: Converse, options: dict[str, Any]
) -> None:
    async def talk(client: Client) -> None:
        assert "call `wait`" in text_of(await client.call_tool("run_python", {"code": FOREVER}))
        with pytest.raises(MCPError):
            await ask(client, "get", "x")

    converse(talk, answer_within=0.2, extensions=(advertise(EXTENSION),), **options)


def test_a_task_that_is_unknown_or_of_another_key_is_an_error(converse: Converse) -> None:
    tasks = RunTasks(60)
    mine = tasks.add(ran("a", owner="me"), lambda _: mcp_types.CallToolResult(content=[]))
    assert tasks.find("me", mine.id) is mine
    for owner, id_ in (("another", mine.id), ("me", "x"), ("me", "")):
        with pytest.raises(MCPError, match="There is no such task") as failure:
            tasks.find(owner, id_)
        assert failure.value.error.code == mcp_types.INVALID_PARAMS

    async def talk(client: Client, _: Tasks) -> None:
        for method in ("get", "update", "cancel"):
            with pytest.raises(MCPError, match="There is no such task"):
                await ask(client, method, mine.id)

    with_tasks(converse, talk)


def test_tasks_that_are_over_are_forgotten_by_number_and_by_age() -> None:
    def told(_: object) -> mcp_types.CallToolResult:
        return mcp_types.CallToolResult(content=[])

    tasks = RunTasks(60)
    running, other = tasks.add(ran("a"), told), tasks.add(ran("a", owner="other"), told)
    old = [tasks.add(ran("a"), told) for _ in range(MAX_ENDED + 2)]
    for task in old:
        task.settle()
    known = [task for task in (running, *old) if _is_known(tasks, "me", task.id)]
    assert known == [running, *old[2:]]
    assert tasks.find("other", other.id) is other
    running.expires = 0
    assert not _is_known(tasks, "me", running.id)


def test_a_task_whose_result_cannot_be_made_has_failed() -> None:
    task = RunTasks(60).add(ran("a"), Mock(side_effect=MemoryError))
    task.settle()
    assert task.state()["status"] == "failed"


def test_the_results_of_all_keys_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_tools.mcp.tasks.MAX_ENDED_BYTES", 2_500)

    def told(_: object) -> mcp_types.CallToolResult:
        return mcp_types.CallToolResult(content=[mcp_types.TextContent(type="text", text="x" * 900)])

    tasks, made = RunTasks(60), []
    for owner in ("one", "one", "two", "one"):
        made.append(tasks.add(ran("a", owner=owner), told))
        made[-1].settle()
    assert [_is_known(tasks, task.owner, task.id) for task in made] == [False, False, True, True]


def _is_known(tasks: RunTasks, owner: str, id_: str) -> bool:
    try:
        return tasks.find(owner, id_) is not None
    except MCPError:
        return False


LARGE_PICTURE = """
import io
from PIL import Image
from IPython.display import display, Image as Picture
Image.frombytes("RGB", (400, 400), os.urandom(480_000)).save(made := io.BytesIO(), "PNG")
display(Picture(made.getvalue()))
"""


@pytest.mark.parametrize("within", [0.3, 45.0])
def test_no_picture_is_encoded_in_the_event_loop(converse: Converse, within: float) -> None:
    async def talk(client: Client) -> None:
        with LargeJsonHere() as found:
            answer = await client.call_tool(
                "run_python", {"code": f"{GO if within < 1 else 'import os'}{LARGE_PICTURE}"}
            )
            content = answer.model_dump()["content"]
            if tasks.given:
                await client.call_tool("put_file", {"path": "go", "content": ""})
                content = (await ended(client, tasks.given[0]["taskId"]))["result"]["content"]
            shown = await client.call_tool("get_outputs", {"container": "", "code": ""})
        assert "image" in [each["type"] for each in content]
        assert "image" in [each["kind"] for each in shown.structured_content["outputs"]]
        assert [each for each in found.sizes if each[0] == "base64"] == []

    tasks = Tasks()
    converse(talk, answer_within=within, extensions=(tasks, advertise(PAGES, {"mimeTypes": [MIME]})))
