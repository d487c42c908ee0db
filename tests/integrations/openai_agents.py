"""OpenAI's Agents SDK: agents of its own on our tool, executor and client. It publishes no suite for clients."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import openai
import pytest
from agents import Agent, CodeInterpreterTool, OpenAIProvider, RunConfig, Runner, ShellTool, function_tool
from agents.items import ToolCallOutputItem
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Capabilities, Skill, Skills
from agents.sandbox.entries import File, LocalDir
from agents.sandbox.errors import ConfigurationError, ExecTimeoutError, WorkspaceReadNotFoundError
from agents.sandbox.snapshot import LocalSnapshotSpec
from agents.testing import ScriptedModel, assistant_message, function_call
from openai.types.responses.response_function_shell_tool_call import ResponseFunctionShellToolCall

from agent_tools import AsyncSandbox
from agent_tools.integrations.openai_agents import code_interpreter_tool, shell_executor
from agent_tools.integrations.openai_sandbox_agents import AgentToolsSandboxClient, AgentToolsSandboxClientOptions
from tests.integrations.scenario import (
    AFTER,
    AGAIN,
    ENDLESS,
    FIRST,
    KEPT,
    OPENAI_TOOL,
    STATE,
    STEPS,
    cancelled,
    run_page,
    weather,
)
from tests.skills import skill_folder

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def scripted(*codes: str) -> ScriptedModel:
    steps = [[function_call("code_interpreter", {"code": code}, call_id=str(at))] for at, code in enumerate(codes)]
    return ScriptedModel([*steps, [assistant_message("done")]])


def outputs(result: Any) -> list[Any]:
    return [item.output for item in result.new_items if isinstance(item, ToolCallOutputItem)]


def asked(sandbox: AsyncSandbox, *codes: str) -> Coroutine[Any, Any, Any]:
    return Runner.run(Agent(name="a", model=scripted(*codes), tools=[code_interpreter_tool(sandbox)]), "go")


def test_an_agent_runs_code_keeps_state_and_gets_pictures_and_files(new_sandbox: Callable[[], AsyncSandbox]) -> None:
    sandbox = new_sandbox()
    state, picture, file = outputs(run(asked(sandbox, *STEPS)))
    assert "42" in state[0].text
    (url,) = [each.image_url for each in picture if each.type == "image"]
    assert base64.b64decode(url.partition("base64,")[2]).startswith(b"\x89PNG")
    assert file[-1].text.endswith("files written: /workspace/out.txt (2 bytes)")
    assert sandbox.sync.read_file("out.txt") == b"42"


@pytest.mark.stops
def test_a_cancelled_run_keeps_the_variables(new_sandbox: Callable[[], AsyncSandbox]) -> None:
    sandbox = new_sandbox()

    async def turns() -> Any:
        await asked(sandbox, STATE)
        await cancelled(asked(sandbox, ENDLESS), sandbox)
        return await asked(sandbox, AFTER)

    assert "43" in outputs(run(turns()))[0][0].text


def test_the_shell_tool_runs_its_commands(new_sandbox: Callable[[], AsyncSandbox]) -> None:
    action = {"commands": ["echo $((6 * 7)); echo no >&2; exit 3", "sleep 60"], "timeout_ms": 1000}
    call = ResponseFunctionShellToolCall.model_validate(
        {"id": "s", "call_id": "s", "type": "shell_call", "status": "completed", "action": action, "environment": None}
    )
    tool = ShellTool(executor=shell_executor(new_sandbox()))
    result = run(
        Runner.run(Agent(name="a", model=ScriptedModel([[call], [assistant_message("done")]]), tools=[tool]), "go")
    )
    (item,) = [each.raw_item for each in result.new_items if isinstance(each, ToolCallOutputItem)]
    first, second = item["output"]
    assert (first["stdout"], first["stderr"], first["outcome"]) == ("42\n", "no\n", {"type": "exit", "exit_code": 3})
    assert second["outcome"]["type"] == "timeout"


def test_a_sandbox_agent_works_in_a_sandbox_of_its_own(cfg: dict[str, Any]) -> None:
    command = "cat data.csv; python3 -c 'import numpy; print(6 * 7)'; id -u"
    calls = [function_call("exec_command", {"cmd": command}, call_id="1")]
    agent = SandboxAgent(
        name="a",
        model=ScriptedModel([calls, [assistant_message("done")]]),
        default_manifest=Manifest(entries={"data.csv": File(content=b"a,b\n1,2\n")}),
    )
    client = AgentToolsSandboxClient()
    config = SandboxRunConfig(client=client, options=AgentToolsSandboxClientOptions(cfg=cfg))
    (output,) = outputs(run(Runner.run(agent, "go", run_config=RunConfig(sandbox=config))))
    assert "a,b\n1,2\n42\n" in output
    assert "\n0\n" not in output


@pytest.mark.parametrize("kind", ["inline", "from a folder"])
def test_a_sandbox_agent_runs_a_script_of_its_skills(
    cfg: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)  # it reads skills from below the working directory alone
    skill_folder(tmp_path / "skills" / "m", {"scripts/a.py": "print(6 * 7)"})
    content = "---\nname: m\ndescription: Does things.\n---\n"
    given = Skill(
        name="m", description="Does things.", content=content, scripts={"a.py": File(content=b"print(6 * 7)")}
    )
    skills = Skills(skills=[given]) if kind == "inline" else Skills(from_=LocalDir(src=Path("skills")))
    command = "pwd; find . -name '*.md' -o -name a.py; cat .agents/m/SKILL.md && python3 .agents/m/scripts/a.py"
    calls = [function_call("exec_command", {"cmd": command}, call_id="1")]
    model = ScriptedModel([calls, [assistant_message("done")]])
    capabilities = [*Capabilities.default(), skills]
    agent = SandboxAgent(name="a", model=model, capabilities=capabilities, default_manifest=Manifest())
    config = SandboxRunConfig(client=AgentToolsSandboxClient(), options=AgentToolsSandboxClientOptions(cfg=cfg))
    (output,) = outputs(run(Runner.run(agent, "go", run_config=RunConfig(sandbox=config))))
    assert "description: Does things." in output
    assert "42" in output


def test_a_session_goes_on_elsewhere_from_its_snapshot(cfg: dict[str, Any], tmp_path: Path) -> None:
    client = AgentToolsSandboxClient()
    manifest = Manifest(entries={"kept.txt": File(content=b"given"), "left.txt": File(content=b"x", ephemeral=True)})

    async def turns() -> tuple[str, str, str]:
        options = AgentToolsSandboxClientOptions(cfg=cfg)
        session = await client.create(
            manifest=manifest, snapshot=LocalSnapshotSpec(base_path=tmp_path), options=options
        )
        async with session:
            done = await session.exec("echo made > made.txt; ls")
            payload = client.serialize_session_state(session.state)
        await client.delete(session)
        assert not await session.running()
        async with await client.resume(client.deserialize_session_state(payload)) as resumed:
            again = await resumed.exec("cat made.txt kept.txt; ls")
            picture = (await resumed.read(Path("made.txt"))).read()
        return done.stdout.decode(), again.stdout.decode(), picture.decode()

    listed, again, made = run(turns())
    assert listed.split() == ["kept.txt", "left.txt", "made.txt"]
    assert again.startswith("made\ngiven")
    assert made == "made\n"


def test_what_a_session_cannot_do_is_told(cfg: dict[str, Any]) -> None:
    client = AgentToolsSandboxClient()

    async def turns() -> None:
        with pytest.raises(ConfigurationError, match="root '/elsewhere'"):
            await client.create(manifest=Manifest(root="/elsewhere"))
        async with await client.create(options=AgentToolsSandboxClientOptions(cfg=cfg)) as session:
            with pytest.raises(ConfigurationError, match="one user"):
                await session.exec("id", user="root")
            with pytest.raises(ExecTimeoutError):
                await session.exec("sleep 60", timeout=0.5)
            with pytest.raises(WorkspaceReadNotFoundError):
                await session.read(Path("nothing"))
            assert (await session.exec("exit 3")).exit_code == 3

    run(turns())


def test_the_page_runs() -> None:
    names = run_page("openai-agents")
    assert "42" in outputs(names["result"])[0][0].text
    assert "a,b" in outputs(names["sandbox_result"])[0]


def test_openais_code_interpreter_keeps_its_variables_over_a_function_and_a_turn(gateway_url: str) -> None:
    async def turns() -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=gateway_url, api_key="any") as client:
            config = RunConfig(model_provider=OpenAIProvider(openai_client=client), tracing_disabled=True)
            tools = [CodeInterpreterTool(tool_config=OPENAI_TOOL), function_tool(weather)]
            agent = Agent(name="A", model="m", tools=tools)
            first = await Runner.run(agent, FIRST, run_config=config)
            again = [*first.to_input_list(), {"role": "user", "content": AGAIN}]
            return first.final_output, (await Runner.run(agent, again, run_config=config)).final_output

    assert asyncio.run(turns()) == KEPT
