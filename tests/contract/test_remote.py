"""Sessions on an engine that shares no folder with this machine: work_dir is the same on both sides all the same."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_tools.engines.isolation import Isolation
from agent_tools.errors import FileRejected
from agent_tools.limits import Limits
from agent_tools.results.execution import Died, Omitted
from agent_tools.runtime.files.work_dir import prepare_work_dir
from agent_tools.runtime.files.workspace import Workspace
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.runtime.session.session import Session
from tests.doubles import ProcessEngine
from tests.waiting import until

KILL_ITSELF = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"


@pytest.fixture(scope="module")
def engine() -> ProcessEngine:
    return ProcessEngine(shares_files=False)


@pytest.fixture
def new_session(engine: ProcessEngine, work_dir: Path) -> Iterator[Callable[..., Session]]:
    sessions: list[Session] = []

    def make(**limits: float) -> Session:
        path = prepare_work_dir(work_dir, engine.guest(work_dir))
        bounds = Limits(**{"min_disk_free": 0, **limits})  # type: ignore[arg-type]
        sessions.append(Session(engine, SessionSpec("none", path, Isolation(), bounds)))
        return sessions[-1]

    yield make
    for session in sessions:
        session.close()


@pytest.fixture
def session(new_session: Callable[..., Session]) -> Session:
    return new_session()


@pytest.fixture
def workspace(engine: ProcessEngine, work_dir: Path) -> Workspace:
    return Workspace(work_dir, engine.guest(work_dir), Limits())


def listed(session: Session) -> str:
    return session.run("import os\nprint(sorted(os.listdir()))", 30).stdout.strip()


def test_files_that_are_staged_reach_the_code(session: Session, workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a,b")
    workspace.stage([str(tmp_path / "in.csv")])
    assert session.run("print(open('in.csv').read())", 30).stdout == "a,b\n"


def test_files_that_are_staged_while_code_runs_reach_the_next_run(session: Session, work_dir: Path) -> None:
    session.run("1", 30)
    staging = threading.Timer(0.2, (work_dir / "late.txt").write_text, ["late"])
    staging.start()
    session.run("import time\nopen('by_code.txt', 'w').close()\ntime.sleep(0.6)", 30)
    staging.join()
    assert listed(session) == "['by_code.txt', 'late.txt']"


def test_files_the_code_writes_come_back_and_are_told_as_changes(session: Session, work_dir: Path) -> None:
    (work_dir / "old.txt").write_text("old")
    execution = session.run(
        "import os\nos.makedirs('d')\nopen('d/new.txt', 'w').write('new')\nopen('old.txt', 'a').write('er')", 30
    )
    assert (work_dir / "d/new.txt").read_text() == "new"
    assert [(change.name, change.is_new) for change in execution.changes] == [
        ("d/new.txt", True),
        ("old.txt", False),
    ]


def test_deletions_travel_both_ways(session: Session, work_dir: Path) -> None:
    for name in ("a", "b"):
        (work_dir / name).write_text(name)
    session.run("import os\nos.unlink('a')", 30)
    assert os.listdir(work_dir) == ["b"]
    (work_dir / "b").unlink()
    assert listed(session) == "[]"


@pytest.mark.parametrize("ending", [KILL_ITSELF, "while True:\n    try: time.sleep(1)\n    except BaseException: pass"])
def test_a_killed_kernel_keeps_its_files(session: Session, work_dir: Path, ending: str) -> None:
    session.run("1", 30)
    session.run(f"import time\nopen('kept.txt', 'w').write('kept')\n{ending}", 0.5)
    assert (work_dir / "kept.txt").read_text() == "kept"
    (work_dir / "more.txt").write_text("more")
    assert listed(session) == "['kept.txt', 'more.txt']"


def test_a_restart_keeps_files(session: Session, work_dir: Path) -> None:
    session.run("open('kept.txt', 'w').write('kept')", 30)
    session.restart()
    assert listed(session) == "['kept.txt']"


def test_a_lost_sandbox_says_that_files_were_lost_and_a_fresh_one_gets_the_rest(
    session: Session, engine: ProcessEngine, work_dir: Path
) -> None:
    session.run("open('fetched.txt', 'w').write('1')", 30)
    assert session.container
    threading.Timer(0.3, engine.remove, [session.container]).start()
    outputs = session.run("open('lost.txt', 'w').write('2')\nimport time\ntime.sleep(60)", 60).outputs
    assert any(isinstance(output, Died) for output in outputs)
    assert Omitted("files written by this run: the sandbox ended before they could be fetched") in outputs
    assert os.listdir(work_dir) == ["fetched.txt"]
    assert listed(session) == "['fetched.txt']"


def test_files_over_the_limit_are_told_and_fetched_once_there_is_room(
    new_session: Callable[..., Session], work_dir: Path
) -> None:
    session = new_session(max_work_dir_bytes=1000)
    outputs = session.run("for name in 'ab': open(name, 'wb').write(bytes(600))", 30).outputs
    told = [output.text for output in outputs if isinstance(output, Omitted)]
    assert len(told) == 1
    assert "work_dir holds 1,200 bytes, more than max_work_dir_bytes" in told[0]
    assert os.listdir(work_dir) == []
    session.run("import os\nos.unlink('a')", 30)
    assert os.listdir(work_dir) == ["b"]


def test_no_code_runs_when_files_cannot_be_brought_in(new_session: Callable[..., Session], work_dir: Path) -> None:
    session = new_session(max_work_dir_entries=2)
    session.run("x = 1", 30)
    for number in range(3):
        (work_dir / str(number)).touch()
    with pytest.raises(FileRejected, match="more than 2 entries"):
        session.run("x = 2", 30)
    (work_dir / "0").unlink()
    assert session.run("print(x)", 30).stdout == "1\n"


def test_nothing_is_left_of_it(engine: ProcessEngine, new_session: Callable[..., Session]) -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    new_session().close()
    before = held()
    for _ in range(3):
        session = new_session()
        session.run("open('a', 'w').close()", 30)
        session.restart()
        session.run("open('b', 'w').close()", 30)
        session.close()
    until(lambda: all(now <= then for now, then in zip(held(), before)))  # threads that all sandboxes share go later
    assert engine.processes == {}
