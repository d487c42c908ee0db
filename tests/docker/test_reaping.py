"""However the host process ends, nothing of ours stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.engine import EngineContainer
from agent_tools.machine.owner import Owner, same_host
from agent_tools.runtime.runtime import Runtime
from agent_tools.settings import runtime_dir
from tests.waiting import processes_with, until

pytestmark = pytest.mark.docker
PATIENCE = 5.0  # seconds after the process's end

HOST = """
import os, sys, threading, time
from agent_tools.tools import CodeInterpreter
LONG = "import time; time.sleep(60)"
tool = CodeInterpreter({{"work_dir": {work_dir!r}}})
tool.call("open('by_code.txt', 'w').write('x')")
print(tool.sandbox.id, flush=True)
{ending}
"""
ENDINGS = {
    "return": "",
    "exception": "raise RuntimeError('on purpose')",
    "sys.exit": "sys.exit(3)",
    "os._exit": "os._exit(3)",
    "killed while idle": "time.sleep(60)",
    "killed in mid-call": "tool.call('import time; time.sleep(60)', timeout=90)",
    "terminated": "time.sleep(60)",
    "called from a thread": "t = threading.Thread(target=tool.call, args=('1',)); t.start(); t.join()",
    "sys.exit in a thread": "t = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join()",
    "daemon thread in mid-call": "threading.Thread(target=tool.call, args=[LONG], daemon=True).start()\ntime.sleep(1)",
    "closed": "tool.close()",
    "closed, then os._exit": "tool.close(); os._exit(3)",
    "closed, then killed": "tool.close(); os.kill(os.getpid(), 9)",
    "closed in a finalizer at the end": "import atexit; atexit.register(tool.close)",
    "closed in a thread": "t = threading.Thread(target=tool.close); t.start(); t.join()",
    "dropped": "del tool; import gc; gc.collect()",
    "dropped in a cycle": "tool.me = tool; del tool",
    "with its stream half read": "s = tool.stream('print(1, flush=True)\\n' + LONG); next(s)",
    "killed with forks of its kernel in mid-call": "branch = tool.as_sandbox.fork(); other = branch.fork()\n"
    "threading.Thread(target=other.run_code, args=[LONG], daemon=True).start(); branch.run_code(LONG)",
    "with a forked child that ends normally": "os.fork() or sys.exit(0); os.wait()",
    "with a forked child that calls": "os.fork() or (tool.call('1'), sys.exit(0)); os.wait(); tool.call('1')",
    "with a forked child that outlives it": "os.fork() or time.sleep(20)",
}
SPEAKS = {"exception", "daemon thread in mid-call"}  # the others end without a word
SIGNALS = {
    "killed while idle": signal.SIGKILL,
    "killed in mid-call": signal.SIGKILL,
    "killed with forks of its kernel in mid-call": signal.SIGKILL,
    "terminated": signal.SIGTERM,
}


def _exists(engine: DockerEngine, id_: str) -> bool:
    return id_ in {sandbox.id for sandbox, _ in engine.strays(same_host())}


def _gone_in_time(engine: DockerEngine, id_: str) -> bool:
    deadline = time.monotonic() + PATIENCE
    while _exists(engine, id_):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("name", ENDINGS)
def test_no_sandbox_and_no_stray_file_is_left(docker_engine: DockerEngine, work_dir: Path, name: str) -> None:
    script = HOST.format(work_dir=str(work_dir), ending=ENDINGS[name])
    host = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert host.stdout
    assert host.stderr
    id_ = host.stdout.readline().strip()
    assert len(id_) == 64
    if name in SIGNALS:
        time.sleep(0.5)
        assert _exists(docker_engine, id_)
        host.send_signal(SIGNALS[name])
    host.wait(30)
    host.stdout.close()
    if name != "with a forked child that outlives it":
        said = host.stderr.read()
        assert said == "" or name in SPEAKS, said
    host.stderr.close()
    assert _gone_in_time(docker_engine, id_)
    assert os.listdir(work_dir) == ["by_code.txt"]


def test_run_directories_of_dead_processes_are_swept(docker_runtime: Runtime, work_dir: Path) -> None:
    script = HOST.format(work_dir=str(work_dir), ending="os._exit(0)")
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)
    docker_runtime.sweep()
    left = [entry.name for entry in runtime_dir().iterdir() if entry.is_dir()]
    assert all(name.startswith(Owner.current().token) for name in left)


def test_a_created_but_never_started_container_of_a_dead_process_is_swept(
    docker_engine: DockerEngine, docker_runtime: Runtime, new_tool: Callable[..., object]
) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    labels = {**Owner.current().labels, "agent_tools.owner": f"{dead.pid}-1"}
    from agent_tools.engines import context

    made = docker_engine.connection.api().create_container(context.tag_for(), labels=labels)
    assert EngineContainer(made["Id"]) in docker_runtime.sweep()


def test_a_sweep_leaves_what_is_in_use(docker_runtime: Runtime, new_tool: Callable[..., object]) -> None:
    tool = new_tool()
    tool.call("1")  # type: ignore[attr-defined]
    assert docker_runtime.sweep() == []
    assert "2" in tool.call("1 + 1")  # type: ignore[attr-defined]


MAKER = """
import os, urllib3
from agent_tools.tools import CodeInterpreter
from agent_tools.runtime.transport import transport
when, path = {stage!r}
answered = urllib3.connection.HTTPConnection.getresponse
def getresponse(self, *args, **kwargs):
    is_it = path in self._response_options.request_url
    if is_it and when == "sent":
        os.kill(os.getpid(), 9)
    answer = answered(self, *args, **kwargs)
    if is_it:
        os.kill(os.getpid(), 9)
    return answer
urllib3.connection.HTTPConnection.getresponse = getresponse
CodeInterpreter({{"work_dir": {work_dir!r}, "transport": {transport!r}}}).call("1")
"""
STAGES = [
    ("sent", "/containers/create"),
    ("answered", "/containers/create"),
    ("sent", "/attach"),
    ("answered", "/attach"),
    ("sent", "/start"),
    ("answered", "/start"),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("stage", STAGES, ids=" ".join)
def test_a_host_killed_while_it_makes_a_sandbox_leaves_nothing(
    docker_engine: DockerEngine, work_dir: Path, stage: tuple[str, str]
) -> None:
    began, hosts = time.time(), []
    for transport in ("stdio",) if stage[1] == "/attach" else ("sockets", "stdio"):
        script = MAKER.format(stage=stage, work_dir=str(work_dir / transport), transport=transport)
        environment = {**os.environ, "AGENT_TOOLS_MARK": str(work_dir)}
        hosts.append(subprocess.Popen([sys.executable, "-c", script], env=environment))
    assert [host.wait() for host in hosts] == [-signal.SIGKILL] * len(hosts)
    owners = tuple(f"{host.pid}-" for host in hosts)

    def is_seen() -> bool:
        """Tell that the engine has had each container, or that nothing waits for one any more."""
        created = [each for each in _events(docker_engine, began, "create") if each.startswith(owners)]
        return len(created) == len(hosts) or not processes_with("AGENT_TOOLS_MARK", work_dir)

    until(is_seen, seconds=200)
    until(lambda: not any(_owner(labels).startswith(owners) for _, labels in docker_engine.strays(same_host())))


def _events(engine: DockerEngine, since: float, kind: str) -> list[str]:
    """Return the owners of all containers to which something has happened."""
    filters = {"event": kind, "label": "agent_tools.owner"}
    found = engine.connection.api().events(since=since, until=time.time(), filters=filters, decode=True)
    return [_owner(each["Actor"]["Attributes"]) for each in found]


def _owner(labels: Mapping[str, str]) -> str:
    return labels.get("agent_tools.owner", "")
