"""The gateway on real sandboxes: what only a container can show."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedReply, ScriptedServer
from tests.gateway.asking import CODE_TOOL, INCLUDE, SQUARES, ask, code, commands, outputs, post, run, shell, stream
from tests.gateway.conftest import NewGateway, new_gateway, process_runtime
from tests.gateway.strict import check_response

__all__ = ["new_gateway", "process_runtime"]
pytestmark = pytest.mark.docker

FIGURE = (
    "import os\nfig, ax = plt.subplots(figsize=(1, 1)); ax.plot([1, 2]); plt.show()\n"
    "pd.DataFrame({'a': [1]}).to_csv('/mnt/data/table.csv', index=False)\n"
    "sorted(os.listdir('/mnt/data'))"
)


def test_figures_and_files_below_mnt_data(new_gateway: NewGateway, docker_runtime: Runtime) -> None:
    answer = ScriptedReply(text="See [the table](sandbox:/mnt/data/table.csv).")
    gateway = new_gateway({"m": [code(FIGURE), answer]}, docker_runtime)
    body = stream(gateway, include=INCLUDE)[-1]["response"]
    image, listing = outputs(body)[0]["outputs"]
    assert image["url"].startswith("data:image/png;base64,")
    assert listing["logs"] == "['table.csv']"
    (citation,) = body["output"][-1]["content"][0]["annotations"]
    client = gateway.client()
    content = client.containers.files.content.retrieve(citation["file_id"], container_id=citation["container_id"])
    assert content.read() == b"a\n1\n"
    (name,) = [each.path for each in client.containers.files.list(citation["container_id"]) if "table" in each.path]
    assert name == "/mnt/data/table.csv"


def test_a_container_with_a_file_is_served_by_a_sandbox_made_ahead(
    new_gateway: NewGateway, docker_runtime: Runtime, work_dir: Path
) -> None:
    before = docker_runtime.pools.takes.get("hit", 0)
    gateway = new_gateway({"m": [code("open('a.csv').read() + plt.__name__"), "Ok."]}, docker_runtime, pool=1)
    client = gateway.client()
    container = client.containers.create(name="c")
    client.containers.files.create(container.id, file=("a.csv", b"1,2"))
    deadline = time.monotonic() + 60
    while not docker_runtime.pools.ready and time.monotonic() < deadline:
        time.sleep(0.05)
    tool = {"type": "code_interpreter", "container": container.id}
    (call,) = outputs(post(gateway, tools=[tool], include=INCLUDE).json())
    assert call["outputs"][-1]["logs"] == "'1,2matplotlib.pyplot'"
    assert docker_runtime.pools.takes["hit"] == before + 1
    client.containers.files.create(container.id, file=("b.csv", b"3"))
    found = {each.path for each in client.containers.files.list(container.id)}
    assert found == {"/mnt/data/a.csv", "/mnt/data/b.csv"}


def test_code_that_takes_too_much_memory_fails_its_call_only(new_gateway: NewGateway, docker_runtime: Runtime) -> None:
    hog = "x = bytearray(1500 * 2**20)\nfor n in range(0, len(x), 4096): x[n] = 1"
    gateway = new_gateway({"m": [code(hog), code("1 + 1"), "Ok."]}, docker_runtime)
    died, after = outputs(post(gateway, include=INCLUDE).json())
    assert died["status"] == "failed" or "MemoryError" in died["outputs"][-1]["logs"]
    assert after["outputs"][-1] == {"type": "logs", "logs": "2"}


def test_the_chat_router_runs_in_a_sandbox_that_is_let_go_afterwards(
    new_gateway: NewGateway, docker_runtime: Runtime, docker_engine: DockerEngine
) -> None:
    gateway = new_gateway({"m": [run(SQUARES), "It is 385."]}, docker_runtime)
    assert ask(gateway).json()["choices"][0]["message"]["content"] == "It is 385."
    assert "385" in gateway.upstream.requests[1]["messages"][-1]["content"]
    assert list(gateway.services.containers.running().values()) == [False], "the conversation may go on"


def test_the_command_serves_and_leaves_nothing_behind(work_dir: Path, docker_engine: DockerEngine) -> None:
    with ScriptedServer({"m": [code("6 * 7"), "It is 42."]}) as upstream:
        command = [sys.executable, "-m", "agent_tools", "serve", "--upstream", upstream.base_url, "--port", "0"]
        environment = {**os.environ, "AGENT_TOOLS_GATEWAY_API_KEYS": "key-of-the-test"}
        log = work_dir / "log"
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [*command, "--data-dir", str(work_dir / "data")], env=environment, stdout=output, stderr=output
            )
        try:
            url = _url(log, process)
            body: dict[str, Any] = {"model": "m", "input": "Go.", "include": INCLUDE}
            body["tools"] = [{"type": "code_interpreter", "container": {"type": "auto"}}]
            headers = {"Authorization": "Bearer key-of-the-test"}
            answer = httpx.post(f"{url}/v1/responses", json=body, headers=headers, timeout=60).json()
            assert outputs(answer)[0]["outputs"] == [{"type": "logs", "logs": "42"}]
        finally:
            assert end(process) in (0, -signal.SIGTERM), log.read_text()
    words = log.read_text()
    assert "key-of-the-test" not in words
    assert f"ready: {url}/ is a page to try it on; clients use {url}/v1" in words
    assert json.dumps(answer["output"][-1]["content"][0]["text"]) == '"It is 42."'
    pid = str(process.pid)
    assert [s.id for s, labels in docker_engine.strays({}) if pid in labels.values()] == []


def end(process: subprocess.Popen[bytes]) -> int:
    """End a gateway as its operator does, or else kill it; return its exit code."""
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(120)  # seconds: the engine of a busy machine takes many to remove a sandbox
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _url(log: Path, process: subprocess.Popen[bytes]) -> str:
    pause = threading.Event()
    while "running on " not in log.read_text():
        assert process.poll() is None, log.read_text()
        pause.wait(0.05)
    return log.read_text().partition("running on ")[2].split()[0]


@pytest.mark.parametrize("is_streamed", [True, False])
def test_the_shell_beside_the_code(new_gateway: NewGateway, docker_runtime: Runtime, is_streamed: bool) -> None:
    sealed = "touch /etc/a 2>&1; wc -l < /proc/net/dev; cat /sys/class/net/*/address"
    script = [
        code("open('a.txt', 'w').write('from the code')"),
        commands("cat a.txt; cp a.txt /mnt/data/b.txt; kill -9 $$", sealed, "sleep 60 & echo $! > pid"),
        commands("kill -0 $(cat pid) && echo alive; python3 -c 'print(6 * 7)'"),
        ScriptedReply(text="See [it](sandbox:/mnt/data/b.txt)."),
    ]
    gateway = new_gateway({"m": script}, docker_runtime)
    tools = [CODE_TOOL, shell()]
    body = stream(gateway, tools=tools)[-1]["response"] if is_streamed else post(gateway, tools=tools).json()
    check_response(body)
    first, second = (item["output"] for item in body["output"] if item["type"] == "shell_call_output")
    killed, walled, begun = first
    assert (killed["stdout"], killed["outcome"]["exit_code"]) == ("from the code", 137)
    assert "Read-only file system" in walled["stdout"]
    assert walled["stdout"].splitlines()[1:] == ["3", "00:00:00:00:00:00"]  # two lines of heading, and the loopback
    assert begun["outcome"] == {"type": "exit", "exit_code": 0}
    assert second[0]["stdout"] == "alive\n42\n"
    (citation,) = body["output"][-1]["content"][0]["annotations"]
    assert citation["filename"] == "b.txt"


def test_a_command_that_fills_the_disk_is_ended_and_says_why(new_gateway: NewGateway, docker_runtime: Runtime) -> None:
    script = [commands("for n in $(seq 64); do head -c 1M /dev/zero > f$n; sleep 0.1; done; sleep 30"), "Ok."]
    gateway = new_gateway({"m": script}, docker_runtime, max_container_bytes=8 << 20)
    body = post(gateway, tools=[shell()]).json()
    ((printed,),) = (item["output"] for item in body["output"] if item["type"] == "shell_call_output")
    assert "max_work_dir_bytes" in printed["stderr"]
    assert printed["outcome"]["exit_code"] == 137
