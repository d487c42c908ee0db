"""`agent-tools codex` as a process of its own: the project's folder, its copy, and what is left when it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agent_tools.machine.machine import start_time
from agent_tools.machine.owner import Owner
from agent_tools.runtime.runtime import docker_runtime as runtime_of_docker
from tests.gateway.asking import until
from tests.unit.runtime.egress.network import Hop, Server
from tests.wires.exec_client import ExecClient, encoded

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]
SECRET = "sk-secret-of-the-host"
LOOK = """
import glob, json, os, socket
places = ["/proc/self/environ", "/proc/1/environ", "/proc/1/cmdline", *glob.glob("/proc/[0-9]*/cmdline")]
places += [os.path.join(top, name) for root in ("/workspace", "/tmp", "/home", "/etc", "/run", "/opt/kernel/etc")
           for top, _, names in os.walk(root) for name in names]
found = []
for place in places:
    try:
        with open(place, "rb") as file:
            if b"sk-" + b"secret" in file.read(1 << 20):
                found.append(place)
    except OSError:
        pass
print(json.dumps([found, socket.if_nameindex(), os.path.exists("/var/run/docker.sock")]))
"""


class Served(ExecClient):
    """A client and its server."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin
        assert process.stdout
        self.process, self._in, self._out = process, process.stdin, process.stdout
        super().__init__(self._write, self._out.readline)
        self.initialize()

    def _write(self, text: str) -> None:
        self._in.write(f"{text}\n")
        self._in.flush()

    @property
    def containers(self) -> int:
        owner = Owner(Owner.current().host, self.process.pid, start_time(self.process.pid) or 0)
        return len(runtime_of_docker().engine.strays(owner.labels))


@contextmanager
def served(folder: Path, *options: str, expected: int = 0) -> Iterator[Served]:
    command = [sys.executable, "-m", "agent_tools", "codex", "--folder", str(folder), *options]
    environment = {**os.environ, "OPENAI_API_KEY": SECRET, "CODEX_API_KEY": SECRET}
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin
    assert process.stdout
    try:
        yield Served(process)
        process.stdin.close()
        assert process.wait(60) == expected
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                pipe.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    (folder / "a.txt").write_text("one\n")
    (folder / "b.txt").write_text("two\n")
    return folder


def test_the_project_has_its_name_of_the_host_and_no_secret_goes_in(project: Path) -> None:
    with served(project) as client:
        assert client.call("environment/info")["cwd"] == project.as_uri()
        assert client.call("fs/readFile", path=f"{project.as_uri()}/a.txt") == {"dataBase64": encoded(b"one\n")}
        assert client.ran("1", "cat", "a.txt", cwd=str(project)) == (b"one\n", 0)
        assert client.ran("2", "sh", "-c", "pwd; echo new > c.txt", cwd=str(project)) == (b"/workspace\n", 0)
        assert (project / "c.txt").read_text() == "new\n"
        assert client.call("fs/canonicalize", path="file:///workspace/c.txt") == {"path": f"{project.as_uri()}/c.txt"}
        assert client.call("fs/readFile", path="file:///etc/hostname") == {"dataBase64": encoded(b"sandbox\n")}
        assert client.call("fs/getMetadata", path=f"{project.parent.as_uri()}/other")[0] == -32004
        printed, code = client.ran("3", "python3", "-c", LOOK)
        assert (json.loads(printed), code) == ([[], [[1, "lo"]], False], 0)


def test_changes_of_a_copy_come_back_as_a_patch(project: Path, tmp_path: Path) -> None:
    patch = tmp_path / "changes.patch"
    change = "echo more >> a.txt; rm b.txt; printf '\\0\\1' > bin; ln -s /etc/passwd link; ls -A"
    with served(project, "--read-only", "--diff", str(patch)) as client:
        printed, code = client.ran("1", "bash", "-c", change, cwd=str(project))
        assert (printed.split(), code) == ([b"a.txt", b"bin", b"link"], 0)
    assert sorted(path.name for path in project.iterdir()) == [".git", "a.txt", "b.txt"]
    assert b"root:" not in patch.read_bytes()
    subprocess.run(["git", "apply", str(patch)], cwd=project, check=True)
    assert (project / "a.txt").read_text() == "one\nmore\n"
    assert not (project / "b.txt").exists()
    assert (project / "bin").read_bytes() == b"\0\1"
    assert os.readlink(project / "link") == "/etc/passwd"


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_process_that_is_ended_leaves_nothing(project: Path, number: signal.Signals, expected: int) -> None:
    with served(project, expected=expected) as client:
        client.start("1", "sleep", "1000")
        assert client.containers == 1
        client.process.send_signal(number)
        client.process.wait(60)
        until(lambda: client.containers == 0)


def test_a_client_that_is_gone_ends_all(project: Path) -> None:
    with served(project) as client:
        client.start("1", "bash", "-c", "yes")
        client._in.close()
        client._out.close()
        assert client.process.wait(60) == 0
        assert client.containers == 0


def test_a_read_that_waits_is_answered_after_the_end_of_stdin_unless_the_client_has_left(project: Path) -> None:
    read = {"processId": "1", "afterSeq": 0, "waitMs": 600_000}
    with served(project) as client:
        client.start("1", "bash", "-c", "sleep 1; echo late; sleep 1000")
        client._write(json.dumps({"id": 77, "method": "process/read", "params": read}))
        client._in.close()
        answers = (json.loads(line) for line in iter(client._out.readline, ""))
        answer = next(each for each in answers if each.get("id") == 77)
        assert answer["result"]["chunks"][0]["chunk"] == encoded(b"late\n")
    with served(project) as client:
        client.start("1", "sleep", "1000")
        client._write(json.dumps({"id": 77, "method": "process/read", "params": read}))
        client._in.close()
        client._out.close()
        assert client.process.wait(60) == 0


def test_a_client_that_reads_late_gets_the_whole_last_answer(project: Path) -> None:
    data = os.urandom(75_000)  # more than a pipe holds, and less than it and a buffer of asyncio
    (project / "large").write_bytes(data)
    with served(project) as client:
        number = client.begin("fs/readFile", path=f"{project.as_uri()}/large")
        client._in.close()
        with suppress(subprocess.TimeoutExpired):
            client.process.wait(3)
        assert client.answer(number)["result"] == {"dataBase64": encoded(data)}


def test_the_audit_log_has_the_commands(project: Path, tmp_path: Path) -> None:
    log = tmp_path / "audit"
    with served(project, "--audit", str(log), "--set", "audit_code=true") as client:
        client.ran("1", "false")
    lines: list[Any] = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(each["event"], each.get("exit_code")) for each in lines] == [("command_begun", None), ("command_ended", 1)]
    assert lines[0]["code"] == '["false"]'


def test_http_requests_go_through_the_allowlist(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://api.example:80/a?b=c"
    answer = b"HTTP/1.1 201 Created\r\nX-A: \xe9\r\nContent-Length: 3\r\n\r\n\0\xffz"
    with closing(Server(answer, takes=lambda got: got.endswith(b"body"))) as server, closing(Hop(server)) as hop:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{hop.port}")  # the host's own way out leads to the server
        with served(project, "--allow", "api.example:80") as client:
            given = {
                "method": "PUT",
                "url": url,
                "headers": [{"name": "X-B", "value": "1"}],
                "bodyBase64": encoded(b"body"),
            }
            found = client.call("http/request", requestId="1", **given)
            assert (found["status"], found["bodyBase64"]) == (201, encoded(b"\0\xffz"))
            assert {"name": "X-A", "value": "\xe9"} in found["headers"]
            streamed = client.call("http/request", requestId="2", streamResponse=True, **given)
            assert (streamed["status"], streamed["bodyBase64"]) == (201, "")
            for refused in ("http://127.0.0.1:1/", "file:///etc/passwd"):
                code, message = client.call("http/request", method="GET", url=refused, requestId="3")
                assert code < 0, message
    assert [each["params"] for each in client.events] == [
        {"requestId": "2", "seq": 1, "deltaBase64": encoded(b"\0\xffz"), "done": True}
    ]
    head, _, body = server.got[0].partition(b"\r\n\r\n")
    assert (head.split(b"\r\n")[0], body) == (b"PUT /a?b=c HTTP/1.1", b"body")
    assert b"x-b: 1" in head.lower()
    assert hop.got[0].startswith(b"CONNECT api.example:80 ")
