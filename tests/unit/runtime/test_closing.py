"""Closing a session: its code has ended when `close` returns, and nobody waits for the engine but the process's end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_tools.engines.engine import EngineContainer
from agent_tools.engines.isolation import Isolation
from agent_tools.limits import Limits
from agent_tools.runtime.runtime import Runtime
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.runtime.session.session import Session
from agent_tools.runtime.transport.transport import TransportName
from tests.doubles import ProcessEngine

ENOUGH = 20.0  # seconds for what takes milliseconds


class SlowToRemove(ProcessEngine):
    """Removes a sandbox when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_remove = threading.Event()
        self.removed: list[str] = []

    def remove(self, sandbox: EngineContainer) -> None:
        assert self.may_remove.wait(ENOUGH)
        super().remove(sandbox)
        self.removed.append(sandbox.id)


@pytest.fixture
def engine() -> Iterator[SlowToRemove]:
    engine = SlowToRemove()
    yield engine
    engine.may_remove.set()


@pytest.fixture
def runtime(engine: SlowToRemove, process_runtime: Runtime) -> Iterator[Runtime]:
    """Return the folder that `process_runtime` lends for sockets."""
    runtime = Runtime(engine, lambda packages: "none")
    yield runtime
    engine.may_remove.set()
    runtime.close_all()


def opened(runtime: Runtime, work_dir: Path, transport: TransportName = "auto") -> tuple[Session, int]:
    """A session in whose kernel a thread is busy, and the kernel's pid."""
    session = runtime.open("a", SessionSpec("none", work_dir, Isolation(), Limits(), transport))
    code = (
        "import os, threading, time; threading.Thread(target=time.sleep, args=[600], daemon=True).start(); os.getpid()"
    )
    return session, int(session.run(code, 10).result.text)


@pytest.mark.parametrize("transport", ["sockets", "stdio"])
def test_code_has_ended_though_the_sandbox_is_not_removed_yet(
    runtime: Runtime, engine: SlowToRemove, work_dir: Path, transport: TransportName
) -> None:
    _, kernel = opened(runtime, work_dir, transport)
    runtime.close("a")
    assert not Path(f"/proc/{kernel}").exists()
    assert engine.removed == []


def test_closing_all_waits_for_what_was_closed_before(runtime: Runtime, engine: SlowToRemove, work_dir: Path) -> None:
    session, _ = opened(runtime, work_dir)
    assert session.container
    id_ = session.container.id
    runtime.close("a")
    closing = threading.Thread(target=runtime.close_all)
    closing.start()
    assert engine.removed == []
    engine.may_remove.set()
    closing.join(ENOUGH)
    assert engine.removed == [id_]


def test_a_sandbox_whose_pid_1_does_not_answer_is_removed_before_close_returns(
    runtime: Runtime, engine: SlowToRemove, work_dir: Path
) -> None:
    session, _ = opened(runtime, work_dir)
    assert session.container
    id_ = session.container.id
    os.kill(int(id_), signal.SIGSTOP)
    engine.may_remove.set()
    runtime.close("a")
    assert engine.removed == [id_]


def test_a_session_closed_while_its_code_runs_is_removed_before_close_returns(
    runtime: Runtime, engine: SlowToRemove, work_dir: Path
) -> None:
    session, _ = opened(runtime, work_dir)
    assert session.container
    id_ = session.container.id
    engine.may_remove.set()
    outputs = session.stream("print('begun', flush=True); import time; time.sleep(600)", 600)
    next(outputs)
    runtime.close("a")
    assert engine.removed == [id_]
    outputs.close()


def test_a_process_that_ends_waits_for_removals(work_dir: Path) -> None:
    code = f"""
import os, threading, time
from pathlib import Path
from agent_tools.engines.isolation import Isolation
from agent_tools.runtime.runtime import Runtime
from agent_tools.runtime.sandbox.sandbox import SessionSpec
from agent_tools.limits import Limits
from tests.doubles import ProcessEngine

class Slow(ProcessEngine):
    def remove(self, sandbox):
        while threading.main_thread().is_alive():  # as it does until its last line
            time.sleep(0.01)
        super().remove(sandbox)
        print("removed", flush=True)

runtime = Runtime(Slow(), lambda packages: "none")
session = runtime.open("a", SessionSpec("none", Path({str(work_dir)!r}), Isolation(), Limits()))
session.run("1", 10)
runtime.close("a")
print("closed", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=ENOUGH)
    assert done.stdout.split() == ["closed", "removed"]
