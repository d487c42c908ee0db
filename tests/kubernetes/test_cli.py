"""The command line on an engine of pods: doctor, clean, a pool, and the engine by its word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent_tools import Sandbox
from agent_tools.cli import cli
from agent_tools.engines.context import tag_for

pytestmark = pytest.mark.docker


def test_the_word_is_all_it_takes(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_TOOLS_ENGINE", "docker")
    with Sandbox({"engine": "kubernetes://fake/sandboxes"}) as sandbox:
        assert sandbox.run_code("6 * 7").value == 42
        assert sandbox.run_command("id -u").stdout == b"10001\n"


def test_doctor_checks_the_cluster_and_one_sandbox(kubeconfig: Path) -> None:
    done = CliRunner().invoke(cli, ["doctor"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    for told in ("Kubernetes v1.31.0-fake", "all that is needed in sandboxes", "denies everything", "podPidsLimit"):
        assert told in done.output
    assert "first result" in done.output


def test_doctor_says_what_is_not_allowed(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_tools.cli.pod_checks.RIGHTS", (("", "secrets", "list"),))
    done = CliRunner().invoke(cli, ["doctor"], env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert "not allowed in sandboxes: list secrets" in done.output


def test_doctor_says_that_there_is_no_cluster(kubeconfig: Path) -> None:
    kubeconfig.write_text(kubeconfig.read_text().replace("http://127.0.0.1:", "http://127.0.0.1:1"))
    done = CliRunner().invoke(cli, ["doctor"], env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert "a request to the cluster failed" in done.output


def test_clean_asks_the_cluster(kubeconfig: Path) -> None:
    done = CliRunner().invoke(cli, ["clean"])
    assert (done.exit_code, done.output) == (0, "0 stray sandboxes removed\n")


def test_a_pool_is_printed_for_the_image_of_this_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_TOOLS_KUBERNETES_IMAGE", "registry.example.com/sandbox")
    command = ["kubernetes", "pool", "--size", "3", "--engine", "kubernetes:///boxes", "--set", "memory=1073741824"]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    template, pool = json.loads(done.output)["items"]
    (box,) = template["spec"]["podTemplate"]["spec"]["containers"]
    assert box["image"] == f"registry.example.com/sandbox:{tag_for().partition(':')[2]}"
    assert box["resources"]["limits"]["memory"] == "1073741824"
    assert (pool["metadata"]["namespace"], pool["spec"]["replicas"]) == ("boxes", 3)


def test_an_option_that_is_none_is_refused() -> None:
    done = CliRunner().invoke(cli, ["kubernetes", "pool", "--set", "memory"])
    assert "NAME=VALUE" in str(done.exception)


def test_no_image_is_built_for_an_engine_that_pulls_its_own(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(kubeconfig.parent)
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")  # there is none in the gateway's pod
    done = CliRunner().invoke(cli, ["run", "-c", "print(6 * 7)"])
    assert (done.exit_code, done.output) == (0, "42\n")
