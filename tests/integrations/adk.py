"""Google's ADK: an agent that writes code blocks, on our executor. ADK publishes no suite for executors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, CodeExecutionResult, File
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from agent_tools import Sandbox
from agent_tools.integrations.adk import AgentToolsCodeExecutor
from agent_tools.results.execution import Execution, Omitted, Restarted, Stream
from tests.integrations.scenario import AFTER, ENDLESS, FILE, PICTURE, PNG, interrupting, run_page


class Scripted(BaseLlm):
    steps: list[str]

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=self.steps.pop(0))]))


def scripted(*codes: str) -> Scripted:
    return Scripted(model="scripted", steps=[*(f"```python\n{code}\n```" for code in codes), "done"])


@pytest.fixture
def executor(cfg: dict[str, Any]) -> Iterator[AgentToolsCodeExecutor]:
    made = AgentToolsCodeExecutor(cfg=cfg, max_file_bytes=1000)
    yield made
    made.close()


async def asked(executor: AgentToolsCodeExecutor, *codes: str) -> tuple[list[Any], list[str], Any]:
    """The results of the blocks, the names of the artifacts, and the picture among them."""
    runner = InMemoryRunner(LlmAgent(name="a", model=scripted(*codes), code_executor=executor), app_name="t")
    session = await runner.session_service.create_session(app_name="t", user_id="u", session_id="s")
    message = types.Content(role="user", parts=[types.Part(text="go")])
    events = [event async for event in runner.run_async(user_id="u", session_id="s", new_message=message)]
    parts = [part for event in events if event.content for part in event.content.parts or []]
    where = {"app_name": "t", "user_id": "u", "session_id": session.id}
    artifacts = runner.artifact_service
    assert artifacts
    picture = await artifacts.load_artifact(filename="figure_1.png", **where)
    results = [part.code_execution_result for part in parts if part.code_execution_result]
    return results, await artifacts.list_artifact_keys(**where), picture


def test_an_agent_keeps_state_and_gets_pictures_and_files(executor: AgentToolsCodeExecutor) -> None:
    results, names, picture = asyncio.run(asked(executor, "x = 6 * 7\nprint(x)", f"{PICTURE}\n{FILE}", "1 / 0"))
    assert "42" in results[0].output
    assert set(names) == {"figure_1.png", "out.txt"}
    assert picture.inline_data.data.startswith(PNG)
    assert results[2].outcome == types.Outcome.OUTCOME_FAILED
    assert "ZeroDivisionError" in results[2].output


@pytest.mark.stops
def test_an_interrupted_block_keeps_the_variables(executor: AgentToolsCodeExecutor) -> None:
    with interrupting(executor.sandbox("s")):
        results, _, _ = asyncio.run(asked(executor, f"x = 42\n{ENDLESS}", f"print({AFTER})"))
    assert "KeyboardInterrupt" in results[0].output
    assert "43" in results[1].output


def run(executor: AgentToolsCodeExecutor, code: str, *files: File, session: str = "s") -> CodeExecutionResult:
    context: Any = SimpleNamespace(session=SimpleNamespace(id=session))
    return executor.execute_code(context, CodeExecutionInput(code, list(files)))


def test_files_go_in_as_bytes_and_as_base64(executor: AgentToolsCodeExecutor) -> None:
    done = run(executor, "print(open('a').read(), open('b').read())", File("a", b"plain!"), File("b", "Y29kZWQ="))
    assert done.stdout == "plain! coded\n"


def test_a_file_that_is_too_large_stays_and_is_told(executor: AgentToolsCodeExecutor) -> None:
    done = run(executor, "open('big', 'w').write('x' * 1001)\nopen('small', 'w').write('x');")
    assert [file.name for file in done.output_files] == ["small"]
    assert "[1 files stay in the sandbox, too large or too many: big]" in done.stdout


def test_a_file_cannot_become_an_artifact_of_other_sessions(executor: AgentToolsCodeExecutor) -> None:
    assert [file.name for file in run(executor, "open('user:a', 'w').close()").output_files] == ["user_a"]


def test_sessions_share_nothing_and_the_oldest_makes_way(cfg: dict[str, Any]) -> None:
    executor = AgentToolsCodeExecutor(cfg=cfg, max_sandboxes=2)
    threads = [threading.Thread(target=run, args=(executor, f"x = {at}"), kwargs={"session": str(at)}) for at in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    oldest = executor.sandbox("1")
    executor.sandbox("2")
    assert run(executor, "print(x)", session="2").stdout == "2\n"
    assert "NameError" in run(executor, "print(x)", session="3").stderr
    assert not oldest.is_alive
    executor.close()


def test_what_was_left_out_and_a_kernel_that_had_ended_are_told(executor: AgentToolsCodeExecutor) -> None:
    execution = Execution((Restarted("it died"), Stream("stdout", "a"), Omitted("5 characters", is_text=True)))
    told = executor._result(Sandbox(), execution).stdout
    assert all(text in told for text in ("it died", "a\n", "5 characters left out"))


def test_the_page_runs() -> None:
    results = run_page("adk")["results"]
    assert ["42" in each.output for each in results] == [True]
