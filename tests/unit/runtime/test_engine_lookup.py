"""The word for the engine: what it may be, and what happens where the engine is not installed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent_tools import CodeInterpreter, Sandbox
from agent_tools.cli import cli
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.errors import AgentToolsError, EngineUnavailable, InvalidParams
from agent_tools.extras import pip_install
from agent_tools.runtime import engine_lookup
from agent_tools.runtime.engine_lookup import checked_engine, shared_runtime
from agent_tools.runtime.runtime import Runtime

PLUGIN = """
from agent_tools.runtime.engine_lookup import shared_runtime
from agent_tools.runtime.runtime import Runtime
from tests.doubles import ProcessEngine

def outer(word):
    return shared_runtime("process")

def process(word):
    runtime = Runtime(ProcessEngine(), lambda packages: "none")
    runtime.word = word
    return runtime
"""
POINTS = "[agent_tools.engines]\nprocess = plugin_engine:process\nouter = plugin_engine:outer\n"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with an engine `process`, and with one `ray` that cannot be loaded."""
    facts = tmp_path / "plugin_engine-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-engine\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(POINTS)
    (tmp_path / "plugin_engine.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(engine_lookup, "_runtimes", {})
    yield
    for runtime in engine_lookup._runtimes.values():
        runtime.close_all()
    sys.modules.pop("plugin_engine", None)


@pytest.mark.parametrize("word", ["docker", "ray", "ray://head:10001", "kubernetes", "kubernetes://context/namespace"])
def test_a_known_engine_is_a_word(word: str) -> None:
    assert checked_engine(word) == word


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("dokcer", "is unknown: use 'docker', 'kubernetes', 'ray'."),
        ("podman://socket", "Podman speaks Docker's API.* set DOCKER_HOST"),
        ("podman", "Podman speaks Docker's API.* set DOCKER_HOST"),
        ("docker://here", "set DOCKER_HOST"),
        ("Docker", "is not usable: give 'docker', 'kubernetes', 'ray'"),
        ("", "is not usable"),
        ("ray://", "is not usable"),
        ("ray://" + "x" * 201, "is not usable"),
        ("ray://head\n", "is not usable"),
        (7, "is not usable"),
        (["ray"], "is not usable"),
    ],
)
def test_anything_else_is_refused_when_the_options_are_read(word: object, told: str) -> None:
    with pytest.raises(InvalidParams, match=told):
        CodeInterpreter({"engine": word})
    with pytest.raises(InvalidParams, match=told):
        checked_engine(word)


@pytest.mark.parametrize(
    ("word", "told"),
    [("ray://head:10001", r"The engine 'ray' cannot be loaded \(No module.*" + re.escape(pip_install("ray")))],
)
def test_an_engine_that_is_not_installed_is_an_error_that_names_its_extra(word: str, told: str) -> None:
    with Sandbox({"engine": word}) as sandbox, pytest.raises(EngineUnavailable, match=told):
        sandbox.run_code("1")


def test_the_variable_counts_where_no_option_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_TOOLS_ENGINE", "ray")
    with Sandbox() as sandbox, pytest.raises(EngineUnavailable, match="'ray' cannot be loaded"):
        sandbox.run_code("1")
    monkeypatch.setenv("AGENT_TOOLS_ENGINE", "toaster")
    with pytest.raises(InvalidParams, match="'toaster' is unknown"):
        shared_runtime()
    docker = shared_runtime("docker")
    assert isinstance(docker.engine, DockerEngine)
    assert shared_runtime("docker") is docker


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is Kubernetes, of which there is none."""
    monkeypatch.setenv("AGENT_TOOLS_ENGINE", "kubernetes")
    monkeypatch.setenv("KUBECONFIG", "/nowhere")


@pytest.mark.parametrize("command", [["clean"], ["run", "-c", "1"], ["mcp"]])
def test_a_command_falls_back_to_no_other_engine(command: list[str], no_cluster: None) -> None:
    with pytest.raises(AgentToolsError, match="No Kubernetes cluster is known"):
        CliRunner().invoke(cli, command, catch_exceptions=False)


def test_an_engine_of_another_package_serves_its_word(installed: None, work_dir: Path) -> None:
    with Sandbox({"engine": "process://there", "work_dir": str(work_dir)}) as sandbox:
        assert sandbox.run_code("1 + 1").value == 2
        runtime = shared_runtime("process://there")
        assert runtime.word == "process://there"  # type: ignore[attr-defined]
        assert shared_runtime("process") is not runtime


def test_an_engine_may_be_made_of_another_one(installed: None) -> None:
    assert shared_runtime("outer") is shared_runtime("process")


def test_engine_and_runtime_do_not_go_together(process_runtime: Runtime) -> None:
    with pytest.raises(InvalidParams, match="engine or runtime, not both"):
        Sandbox({"engine": "docker"}, runtime=process_runtime)
