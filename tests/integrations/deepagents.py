"""deepagents: an agent on our backend, and `SandboxIntegrationTests` of langchain_tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_tests.integration_tests import SandboxIntegrationTests

from agent_tools import AsyncSandbox
from agent_tools.integrations.deepagents import AgentToolsBackend
from tests.integrations.scenario import cancelled, run_page
from tests.skills import skill_folder

GLOBS = (
    "from deepagents 0.7 on, their BaseSandbox answers globs by absolute paths; the suite of 1.1.9 wants relative ones"
)
EXPECTED = (
    {}
    if version("deepagents").startswith("0.6.")
    else {
        "test_glob": GLOBS,
        "test_glob_basic_pattern": GLOBS,
        "test_glob_with_directories": "from deepagents 0.7 on, their BaseSandbox globs files alone",
        "test_glob_hidden_files_explicitly": GLOBS,
        "test_glob_with_character_class": GLOBS,
        "test_glob_with_question_mark": GLOBS,
        "test_write_existing_file_fails": "from deepagents 0.7 on, their BaseSandbox overwrites",
    }
)


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self


def scripted(*calls: tuple[str, dict[str, Any]]) -> Scripted:
    made = [{"name": name, "args": args, "id": str(at)} for at, (name, args) in enumerate(calls)]
    return Scripted(messages=iter([*(AIMessage("", tool_calls=[call]) for call in made), AIMessage("done")]))


def run(backend: AgentToolsBackend, *calls: tuple[str, dict[str, Any]]) -> Any:
    return create_deep_agent(model=scripted(*calls), backend=backend).ainvoke({"messages": "go"})


def answers(state: dict[str, Any]) -> list[str]:
    return [str(message.content) for message in state["messages"] if isinstance(message, ToolMessage)]


@pytest.mark.stops
def test_an_agent_writes_runs_searches_and_is_cancelled(new_sandbox: Callable[[], AsyncSandbox]) -> None:
    backend = AgentToolsBackend(new_sandbox())
    draw = "import matplotlib.pyplot as plt\nplt.plot([1, 42]); plt.savefig('fig.png'); print(6 * 7)\n"

    async def turns() -> tuple[list[str], list[str]]:
        first = await run(
            backend,
            ("write_file", {"file_path": "/workspace/a.py", "content": draw}),
            ("execute", {"command": "python3 a.py"}),
            ("grep", {"pattern": "savefig", "path": "/workspace"}),
            ("read_file", {"file_path": "/workspace/fig.png"}),
        )
        endless = "touch started kept; sleep 600"
        await cancelled(run(backend, ("execute", {"command": endless})), backend.sandbox)
        return answers(first), answers(await run(backend, ("execute", {"command": "ls; pgrep sleep"})))

    (_, executed, found, picture), (after,) = asyncio.run(turns())
    assert executed.startswith("42")
    assert "/workspace/a.py" in found
    assert "image" in picture
    assert "kept" in after
    assert "exit code 1" in after  # pgrep found nothing: the command ended with the call
    assert backend.download_files(["/workspace/fig.png"])[0].content.startswith(b"\x89PNG")  # type: ignore[union-attr]


def test_an_agent_reads_a_mounted_skill_and_runs_its_script(cfg: dict[str, Any], tmp_path: Path) -> None:
    folder = skill_folder(tmp_path / "m", {"scripts/a.py": "print(6 * 7)"})
    calls = [
        ("read_file", {"file_path": "/skills/m/SKILL.md"}),
        ("execute", {"command": "python3 /skills/m/scripts/a.py"}),
    ]

    asked: list[str] = []

    class Listening(Scripted):
        def _generate(self, messages: Any, *given: Any, **more: Any) -> Any:
            asked.append(str(messages[0].content))
            return super()._generate(messages, *given, **more)

    async def answered() -> list[str]:
        async with AsyncSandbox(cfg, skills=[folder]) as sandbox:
            model = Listening(messages=scripted(*calls).messages)
            agent = create_deep_agent(model=model, backend=AgentToolsBackend(sandbox), skills=["/skills/"])
            return answers(await agent.ainvoke({"messages": "go"}))

    read, ran = asyncio.run(answered())
    assert "Run `python scripts/total.py FILE`" in read
    assert ran.startswith("42")
    assert "/skills/m/SKILL.md" in asked[0]
    assert "Does things." in asked[0]


def test_a_command_beyond_its_time_says_so(new_sandbox: Callable[[], AsyncSandbox]) -> None:
    response = AgentToolsBackend(new_sandbox()).execute("echo hello; sleep 60", timeout=1)
    assert response.exit_code == 124
    assert response.output == "hello\n\n[ended after 1 s, its time limit]"


def test_the_page_runs() -> None:
    names = run_page("deepagents")
    assert answers(names["answer"])[0].startswith("42")


class TestBackend(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self, new_sandbox: Callable[[], AsyncSandbox]) -> AgentToolsBackend:
        return AgentToolsBackend(new_sandbox())
