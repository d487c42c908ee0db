"""A session that is closed while another caller has its lock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from agent_tools.engines.isolation import Isolation
from agent_tools.limits import Limits
from agent_tools.results.execution import Died, Restarted
from agent_tools.runtime.files.mirror import Mirror
from agent_tools.runtime.run_lock import RunLock
from agent_tools.runtime.runtime import Runtime
from agent_tools.runtime.sandbox.sandbox import LiveSandbox
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.runtime.session.session import Session
from tests.doubles import ProcessEngine


class FakeSandbox:
    """Stands for a running sandbox, and notes what ends it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def remove(self) -> None:
        self.calls.append("remove")

    def close(self) -> None:
        self.calls.append("close")


class OvertakenLock(RunLock):
    """Does something once, just before it is released: as another thread may, which finds it locked."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self._actions = [action]

    def release(self) -> None:
        while self._actions:
            self._actions.pop()()
        super().release()


def test_a_session_closed_just_before_its_lock_is_released_closes_its_sandbox(work_dir: Path) -> None:
    session = Session(ProcessEngine(), SessionSpec("none", work_dir, Isolation(), Limits()))
    sandbox = FakeSandbox()
    session.recovery.sandbox = cast("LiveSandbox", sandbox)
    session._lock = OvertakenLock(session.close)
    with session.locked():
        pass
    assert sandbox.calls == ["remove", "close"]
    assert not session.is_busy


def test_a_file_that_comes_after_a_run_is_not_among_its_changes(process_runtime: Runtime, work_dir: Path) -> None:
    session = process_runtime.open("a", SessionSpec("none", work_dir, Isolation(), Limits()))
    session._lock = OvertakenLock(lambda: (work_dir / "later").touch())
    execution = session.run("open('mine', 'w').close()", 20)
    assert (work_dir / "later").exists()
    assert [each.name for each in execution.changes] == ["mine"]


def test_a_sandbox_that_is_gone_when_its_files_are_sent_is_replaced(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ProcessEngine(shares_files=False)
    session = Session(engine, SessionSpec("none", work_dir, Isolation(), Limits()))
    push = Mirror.push

    def late(mirror: Mirror) -> None:
        monkeypatch.setattr(Mirror, "push", push)
        assert session.container
        engine.remove(session.container)
        push(mirror)

    session.run("x = 1", 20)
    monkeypatch.setattr(Mirror, "push", late)
    assert isinstance(session.run("1", 20).error, Died)
    execution = session.run("print('x' in globals())", 20)
    assert isinstance(execution.outputs[0], Restarted)
    assert execution.stdout == "False\n"
    session.close()
