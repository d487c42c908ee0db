"""Inspect: an evaluation whose model uses tools in our sandbox, and Inspect's own `self_check`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver, use_tools
from inspect_ai.tool import bash, python, skill
from inspect_ai.util import SandboxEnvironmentSpec, sandbox
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from agent_tools import AsyncSandbox
from agent_tools.integrations.inspect import AgentToolsConfig, AgentToolsSandboxEnvironment
from tests.integrations.scenario import Death, run_page
from tests.skills import skill_folder

EXPECTED = {
    "test_exec_as_user": "a sandbox has one user and no root, by design: it adds a user as root",
}


@pytest.fixture(scope="session")
def environment(new_sandbox: Callable[[], AsyncSandbox]) -> AgentToolsSandboxEnvironment:
    return AgentToolsSandboxEnvironment(new_sandbox())


@pytest.fixture
def sandbox_env(environment: AgentToolsSandboxEnvironment) -> AgentToolsSandboxEnvironment:
    return environment


def scripted(*calls: tuple[str, dict[str, Any]]) -> Any:
    outputs = [ModelOutput.for_tool_call("mockllm", name, args) for name, args in calls]
    outputs.append(ModelOutput.from_content("mockllm", "The answer is 42"))
    for output in outputs:
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)  # or the mock asks for a tokeniser
    return get_model("mockllm/model", custom_outputs=outputs)


@solver
def look_and_cancel(found: dict[str, Any]) -> Solver:
    """Read a picture, and cancel a command."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        found["picture"] = await sandbox().read_file("fig.png", text=False)
        async with anyio.create_task_group() as running:
            running.start_soon(sandbox().exec, ["sh", "-c", "touch started; sleep 600"])
            while not (await sandbox().exec(["ls", "started"])).success:
                await anyio.sleep(0.05)
            Death.come()
            running.cancel_scope.cancel()
        found["after"] = (await sandbox().exec(["sh", "-c", "cat kept; pgrep sleep || echo ended"])).stdout
        return state

    return solve


def run(log_dir: Path, found: dict[str, Any], model: Any, spec: Any) -> EvalLog:
    sample = Sample(
        "6 * 7?", target="42", files={"data.txt": "from the sample\n"}, setup="#!/bin/sh\necho made > setup.txt\n"
    )
    steps = [use_tools(python(), bash()), generate(), look_and_cancel(found)]
    (log,) = eval(
        Task(dataset=[sample], solver=steps, scorer=includes(), sandbox=spec),
        model=model,
        display="none",
        log_dir=str(log_dir),
    )
    return log


@pytest.mark.stops
def test_an_evaluation_runs_in_sandboxes_of_its_samples(cfg: dict[str, Any], tmp_path: Path) -> None:
    draw = "import numpy as np, matplotlib.pyplot as plt\nprint(np.arange(7).sum() * 2)\nplt.savefig('fig.png')"
    calls = [("python", {"code": draw}), ("bash", {"command": "cat data.txt setup.txt; ls; echo kept > kept"})]
    found: dict[str, Any] = {}
    log = run(tmp_path, found, scripted(*calls), SandboxEnvironmentSpec("agent-tools", AgentToolsConfig(**cfg)))
    assert log.status == "success", log.error
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 1
    assert log.samples
    answers = [message.text for message in log.samples[0].messages if message.role == "tool"]
    assert answers[0].strip() == "42"
    assert answers[1].split() == ["from", "the", "sample", "made", "data.txt", "fig.png", "setup.txt"]
    assert found["picture"].startswith(b"\x89PNG")
    assert found["after"] == "kept\nended\n"


def test_a_model_uses_a_skill_that_inspect_copies_into_the_sandbox(cfg: dict[str, Any], tmp_path: Path) -> None:
    folder = skill_folder(tmp_path / "m", {"scripts/a.py": "print(6 * 7)"})
    model = scripted(("skill", {"command": "m"}), ("bash", {"command": "python3 skills/m/scripts/a.py"}))
    task = Task(
        dataset=[Sample("6 * 7?", target="42")],
        solver=[use_tools(skill([folder]), bash()), generate()],
        sandbox=SandboxEnvironmentSpec("agent-tools", AgentToolsConfig(**cfg)),
    )
    (log,) = eval(task, model=model, display="none", log_dir=str(tmp_path))
    assert log.status == "success", log.error
    assert log.samples
    said, ran = [message.text for message in log.samples[0].messages if message.role == "tool"]
    assert "Run `python scripts/total.py FILE`" in said
    assert ran.strip() == "42"


def test_a_script_of_tmp_runs_once_with_its_arguments(sandbox_env: AgentToolsSandboxEnvironment) -> None:
    async def told() -> str:
        for name, end in (("say", 0), ("fail", 126)):
            await sandbox_env.write_file(f"/tmp/{name}.sh", f"#!/bin/sh\necho {name} $@ >> /tmp/told\nexit {end}\n")
            await sandbox_env.exec(["chmod", "+x", f"/tmp/{name}.sh"])
        assert (await sandbox_env.exec(["/tmp/say.sh", "a b", "/tmp/fail.sh"])).success
        assert (await sandbox_env.exec(["env", "/tmp/say.sh"])).success
        with pytest.raises(PermissionError):
            await sandbox_env.exec(["sh", "/tmp/fail.sh"])
        return await sandbox_env.read_file("/tmp/told")

    assert anyio.run(told).splitlines() == ["say a b /tmp/fail.sh", "say", "fail"]


def test_options_come_from_a_file_and_an_unknown_one_is_an_error(tmp_path: Path) -> None:
    options = tmp_path / "options.json"
    options.write_text(json.dumps({"memroy": 1}))
    log = run(tmp_path, {}, scripted(), ("agent-tools", str(options)))
    assert log.status == "error"
    assert log.error is not None
    assert "Did you mean 'memory'?" in log.error.message


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (log,) = run_page("inspect")["logs"]
    assert log.status == "success", log.error
