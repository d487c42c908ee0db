"""The probe against real containers: our sandbox holds all it promises, and a weak container is seen to be one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import docker
from agent_tools.cli.probe_table import summary
from agent_tools.conformance.findings import UNPROMISED, Finding
from agent_tools.conformance.host import RULES
from agent_tools.conformance.survey import Survey, survey_container, survey_sandbox
from agent_tools.engines import context
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.errors import EngineError
from agent_tools.tools import CodeInterpreter

pytestmark = pytest.mark.docker
COMMAND = [sys.executable, "-m", "agent_tools", "doctor", "--probe"]
NEEDS_ROOT = {rule.name for rule in RULES if rule.needs_root and os.getuid() != 0}
"""What an ordinary user cannot set on every host: there it may be open."""
Starts = Callable[..., str]


@pytest.fixture
def start(docker_engine: DockerEngine) -> Iterator[Starts]:
    """Starts containers of an ordinary kind: root, the engine's own capabilities and network, no limits."""
    client = docker.from_env()
    started = []

    def run(**options: Any) -> str:
        options = {"user": "0:0", "entrypoint": ["/bin/sleep", "120"], **options}
        started.append(client.containers.create(context.tag_for(), detach=True, **options))
        started[-1].start()
        return str(started[-1].id)

    yield run
    for container in started:
        container.remove(force=True)
    client.close()


def by_name(survey: Survey) -> dict[str, Finding]:
    return {finding.name: finding for finding in survey.findings}


def of(survey: Survey, verdict: str) -> set[str]:
    return {finding.name for finding in survey.findings if finding.verdict == verdict}


def test_our_sandbox_holds_all_it_promises(docker_engine: DockerEngine) -> None:
    survey = survey_sandbox(docker_engine, context.tag_for())
    assert [finding for finding in survey.findings if finding.is_promised and finding.verdict != "held"] == []
    assert (len(survey.findings), len(of(survey, "info"))) == (96, len(UNPROMISED))
    assert not survey.is_open
    assert by_name(survey)["PID 1"].found == "outlived SIGKILL from inside"
    assert by_name(survey)["user of every process"].found.endswith("processes: 4")  # the probe asks for names
    open_here = of(survey, "open")
    assert open_here <= NEEDS_ROOT
    totals = f"{93 - len(open_here)} held, {len(open_here)} open, 0 unknown, 3 info"
    assert summary(survey) == f"96 checks: {totals}; nothing promised is open."


def test_an_ordinary_container_is_open_where_one_would_expect(docker_engine: DockerEngine, start: Starts) -> None:
    survey = survey_container(docker_engine, start())
    assert survey.is_open
    assert survey.note == ""
    assert of(survey, "open") >= {
        *("root file system", "network mode", "interfaces", "user of every process", "supplementary groups"),
        *(
            "capabilities",
            "NoNewPrivs",
            "memory",
            "swap beyond it",
            "TCP buffers",
            "CPU",
            "processes",
            "log",
            "file size",
        ),
        *("write to /", "write to /etc", "write to the interpreter", "write to site-packages", "write to /run"),
        *("set a set-user-id bit", "make a FIFO", "make a device node", "execute from /tmp", "chroot"),
        *("become root", "priority, limits of PID 1", "memory, environment of PID 1", "raw sockets", "route out"),
        *("host name servers", "system calls of other ABIs"),
    }
    assert of(survey, "held") >= {"engine socket mounted", "namespaces", "kernel's files in /proc", "published ports"}


def test_what_a_weak_container_shares_with_the_host_is_seen(docker_engine: DockerEngine, start: Starts) -> None:
    survey = survey_container(
        docker_engine,
        start(
            network_mode="host",
            pid_mode="host",
            security_opt=["seccomp=unconfined"],
            environment={"API_TOKEN": "x", "http_proxy": "http://proxy"},
            volumes={"/etc": {"bind": "/host", "mode": "ro"}},
        ),
    )
    assert of(survey, "open") >= {
        *("host folders", "namespaces", "Seccomp filter", "interfaces", "host processes"),
        *("environment variables", "no proxy settings", "no secrets in its settings"),
        *("io_uring_setup", "ptrace", "process_vm_readv", "keyctl", "setns", "unshare (user namespace)"),
    }


def test_a_probed_container_is_left_as_it_was(docker_engine: DockerEngine, start: Starts) -> None:
    name = start()
    survey_container(docker_engine, name)
    client = docker.from_env()
    try:
        container = client.containers.get(name)
        assert [change["Path"] for change in container.diff() or () if "conformance" in change["Path"]] == []
        assert len(container.top()["Processes"]) == 1
    finally:
        client.close()


def test_a_container_with_little_room_is_probed_within_it(docker_engine: DockerEngine, start: Starts) -> None:
    survey = survey_container(docker_engine, start(pids_limit=3, mem_limit="64m", read_only=True, user="1000:1000"))
    assert by_name(survey)["processes"].found == "3 in force"
    assert by_name(survey)["mount"].verdict == "held"
    assert by_name(survey)["make a FIFO"].verdict == "unknown"  # there is no folder to try it in


def test_a_container_without_python_is_judged_from_outside(docker_engine: DockerEngine, start: Starts) -> None:
    survey = survey_container(docker_engine, start(environment={"PATH": "/nowhere"}))
    assert survey.note == "not asked: the container has no Python on its PATH"
    assert {finding.verdict for finding in survey.findings if finding.seen_by == "code"} == {"unknown"}
    assert by_name(survey)["capabilities"].verdict == "open"


def test_a_python_that_lies_in_nonsense_is_not_believed(
    docker_engine: DockerEngine, start: Starts, tmp_path: Path
) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\nexec head -c 300000 /dev/zero\n")
    (tmp_path / "python3").chmod(0o755)
    tmp_path.chmod(0o755)
    bind = {str(tmp_path): {"bind": "/lies", "mode": "ro"}}
    survey = survey_container(docker_engine, start(environment={"PATH": "/lies:/usr/bin:/bin"}, volumes=bind))
    assert {finding.verdict for finding in survey.findings if finding.seen_by == "code"} == {"unknown"}


def test_nothing_is_executed_in_a_sandbox_in_use(tool: CodeInterpreter, docker_engine: DockerEngine) -> None:
    tool.call("1")
    assert tool.sandbox
    survey = survey_container(docker_engine, tool.sandbox.id)
    assert "nothing else is executed" in survey.note
    assert of(survey, "held") | (of(survey, "open") & NEEDS_ROOT) == {rule.name for rule in RULES}


def test_a_container_that_is_not_there_or_does_not_run_is_an_error(docker_engine: DockerEngine, start: Starts) -> None:
    with pytest.raises(EngineError, match=r"(?i)no such container"):
        survey_container(docker_engine, "no-such-container")
    name = start(entrypoint=["/bin/true"])
    client = docker.from_env()
    client.containers.get(name).wait()
    client.close()
    with pytest.raises(EngineError, match="does not run"):
        survey_container(docker_engine, name)


def test_the_command_prints_json_and_succeeds_for_our_sandbox(docker_engine: DockerEngine) -> None:
    done = subprocess.run([*COMMAND, "--json"], capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    spoken = json.loads(done.stdout)
    open_here = {each["name"]: each["advice"] for each in spoken["findings"] if each["verdict"] == "open"}
    assert set(open_here) <= NEEDS_ROOT
    assert all(open_here.values())
    held = 93 - len(open_here)
    assert spoken["summary"] == {"held": held, "open": len(open_here), "unknown": 0, "info": 3, "is_open": False}
    assert len(spoken["findings"]) == 96
    assert set(spoken["findings"][0]) == {"category", "name", "verdict", "found", "seen_by", "is_promised", "advice"}


def test_the_command_shows_a_table_and_fails_for_an_open_container(start: Starts) -> None:
    done = subprocess.run([*COMMAND, "--container", start()], capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 1
    for words in ("INFORMATION EXPOSURE", "RESOURCE LIMITS", "capabilities", "seen by", "are broken"):
        assert words in done.stdout
