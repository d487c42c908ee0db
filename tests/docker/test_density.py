"""Many sessions of one process, in real containers: few threads and descriptors, and all of them gone at the end."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from agent_tools.engines.docker import image
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.errors import AgentToolsError
from agent_tools.machine.owner import Owner, same_host
from agent_tools.machine.rounds import MOST_CHECKERS
from agent_tools.runtime.runtime import Runtime
from agent_tools.sandbox import Sandbox

pytestmark = pytest.mark.docker
MANY = 8  # more than the threads that they share
AT_ONCE = 4
SHARED_THREADS = 2 + MOST_CHECKERS  # the rounds, those who check, and whoever waits for all sandboxes
MOST_DESCRIPTORS = 8  # of one session


@pytest.fixture
def runtime(docker_engine: DockerEngine) -> Iterator[Runtime]:
    runtime = Runtime(docker_engine, partial(image.ensure, docker_engine))
    yield runtime
    runtime.close_all()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def own_containers(engine: DockerEngine) -> int:
    owner = Owner.current().labels
    return sum(owner.items() <= labels.items() for _, labels in engine.strays(same_host()))


def in_threads(work: Callable[[Sandbox], object], items: list[Sandbox]) -> list[object]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(work, items))


@pytest.mark.parametrize("transport", ["sockets", "stdio"])
def test_many_sessions_share_few_threads_and_leave_nothing(
    runtime: Runtime, docker_engine: DockerEngine, work_dir: Path, transport: str
) -> None:
    threads, before = threading.active_count(), own_containers(docker_engine)
    cfg = {"transport": transport, "idle_stop": 600}
    sandboxes = [Sandbox({**cfg, "work_dir": str(work_dir / str(n))}, runtime=runtime) for n in range(MANY)]
    sandboxes[0].run_code("0")
    held = descriptors()

    def store(sandbox: Sandbox) -> object:
        return sandbox.run_code(f"name = {sandbox.id!r}").error

    assert in_threads(store, sandboxes) == [None] * MANY
    assert own_containers(docker_engine) - before == MANY
    assert threading.active_count() - threads <= SHARED_THREADS, threading.enumerate()
    assert descriptors() - held <= MOST_DESCRIPTORS * (MANY - 1)
    assert in_threads(lambda sandbox: sandbox.run_code("name").value, sandboxes) == [each.id for each in sandboxes]
    runtime.close_all()
    assert own_containers(docker_engine) == before


def test_one_that_neither_reads_nor_stops_talking_holds_up_no_other(runtime: Runtime, work_dir: Path) -> None:
    cfg = {"transport": "stdio"}
    loud, deaf, other = (Sandbox({**cfg, "work_dir": str(work_dir / name)}, runtime=runtime) for name in "abc")
    hostile = {
        loud: "import os, sys\nwhile True: os.write(1, b'x' * 65536)",
        deaf: "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    }
    other.run_code("number = 0")
    for each in hostile:
        each.start()

    def run(sandbox: Sandbox, code: str) -> None:
        with contextlib.suppress(AgentToolsError):  # it is closed meanwhile
            sandbox.run_code(code)

    running = [threading.Thread(target=run, args=each) for each in hostile.items()]
    for thread in running:
        thread.start()
    for number in range(1, 21):
        assert other.run_code("number += 1; number").value == number
    for each in hostile:
        each.close()
    for thread in running:
        thread.join(60)
    assert not any(thread.is_alive() for thread in running)
