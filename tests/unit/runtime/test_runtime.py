import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from agent_tools.engines.engine import EngineContainer
from agent_tools.engines.isolation import Isolation
from agent_tools.errors import EngineUnavailable, SessionClosed
from agent_tools.limits import Limits
from agent_tools.machine.owner import Owner
from agent_tools.runtime.runtime import Runtime
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.runtime.session.session import Session
from tests.doubles import ProcessEngine


@pytest.fixture(autouse=True)
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="at-", dir="/tmp"))
    monkeypatch.setenv("AGENT_TOOLS_RUN_DIR", str(folder))
    yield folder / f"agent_tools-{os.getuid()}"
    shutil.rmtree(folder)


@pytest.fixture
def engine() -> Iterator[ProcessEngine]:
    engine = ProcessEngine()
    yield engine
    for id_ in list(engine.processes):
        engine.remove(EngineContainer(id_))


@pytest.fixture
def runtime(engine: ProcessEngine) -> Iterator[Runtime]:
    runtime = Runtime(engine, lambda packages: "none")
    yield runtime
    runtime.close_all()


@pytest.fixture
def spec(tmp_path: Path) -> SessionSpec:
    return SessionSpec("none", tmp_path, Isolation(), Limits())


@pytest.fixture
def finished() -> Owner:
    """A process of this machine that has ended."""
    code = "from agent_tools.machine.owner import Owner; print(Owner.current().token)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pid, start = done.stdout.strip().split("-")
    return Owner(Owner.current().host, int(pid), int(start))


def put(engine: ProcessEngine, labels: Mapping[str, str]) -> EngineContainer:
    """A running sandbox with these labels."""
    process = subprocess.Popen(["sleep", "600"])
    sandbox = EngineContainer(str(process.pid))
    engine.processes[sandbox.id] = process
    engine.labels[sandbox.id] = labels
    return sandbox


def test_the_same_key_gives_the_same_session(runtime: Runtime, spec: SessionSpec) -> None:
    session = runtime.open("a", spec)
    assert runtime.open("a", spec) is session
    assert runtime.find("a") is session
    assert runtime.open("b", spec) is not session


def test_a_session_starts_no_sandbox_before_its_first_run(
    runtime: Runtime, spec: SessionSpec, engine: ProcessEngine
) -> None:
    assert runtime.open("a", spec).container is None
    assert engine.processes == {}


def test_a_key_that_nobody_opened_is_not_found(runtime: Runtime) -> None:
    assert runtime.find("a") is None
    runtime.close("a")


def test_a_closed_session_is_not_found_and_replaced(runtime: Runtime, spec: SessionSpec) -> None:
    session = runtime.open("a", spec)
    session.close()
    assert runtime.find("a") is None
    assert runtime.open("a", spec) is not session


def test_closing_a_key_closes_its_session_only(runtime: Runtime, spec: SessionSpec) -> None:
    one, other = runtime.open("a", spec), runtime.open("b", spec)
    runtime.close("a")
    assert (one.is_closed, other.is_closed) == (True, False)
    assert runtime.open("a", spec) is not one


def test_all_are_closed_and_new_ones_may_be_opened(runtime: Runtime, spec: SessionSpec) -> None:
    sessions = [runtime.open(key, spec) for key in "abc"]
    runtime.close_all()
    runtime.close_all()
    assert [session.is_closed for session in sessions] == [True] * 3
    assert [runtime.find(key) for key in "abc"] == [None] * 3
    assert not runtime.open("a", spec).is_closed


def test_threads_that_open_one_key_share_one_session(runtime: Runtime, spec: SessionSpec) -> None:
    found: list[Session] = []
    threads = [threading.Thread(target=lambda: found.append(runtime.open("a", spec))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert len({id(session) for session in found}) == 1


def test_a_sweep_removes_orphans_only(runtime: Runtime, engine: ProcessEngine, finished: Owner) -> None:
    orphan = put(engine, finished.labels)
    mine = put(engine, Owner.current().labels)
    foreign = put(engine, {**finished.labels, "agent_tools.host": "another-boot/pid:[1]"})
    of_another_user = put(engine, {**finished.labels, "agent_tools.user": str(os.getuid() + 1)})
    unnamed = put(engine, {"agent_tools.host": finished.host})
    assert runtime.sweep() == [orphan]
    assert engine.processes.keys() == {mine.id, foreign.id, of_another_user.id, unnamed.id}


def test_a_sweep_removes_the_folders_of_orphans_only(runtime: Runtime, finished: Owner, base: Path) -> None:
    stale, live = base / f"{finished.token}-x", base / f"{Owner.current().token}-x"
    for path in (stale, live):
        path.mkdir(parents=True)
    assert runtime.sweep() == []
    assert list(base.iterdir()) == [live]


def test_the_first_session_sweeps(runtime: Runtime, spec: SessionSpec, engine: ProcessEngine, finished: Owner) -> None:
    put(engine, finished.labels)
    runtime.open("a", spec)
    runtime.close_all()  # waits for what is done beside
    assert engine.processes == {}


def test_later_sessions_do_not_sweep_again(
    runtime: Runtime, spec: SessionSpec, engine: ProcessEngine, finished: Owner
) -> None:
    runtime.open("a", spec)
    runtime.close_all()
    orphan = put(engine, finished.labels)
    runtime.open("b", spec)
    assert engine.processes.keys() == {orphan.id}


def test_a_sweep_that_fails_does_not_keep_a_session_from_opening(spec: SessionSpec) -> None:
    class Failing(ProcessEngine):
        def strays(self, host: Mapping[str, str]) -> list[tuple[EngineContainer, Mapping[str, str]]]:
            raise EngineUnavailable("no engine")

    runtime = Runtime(Failing(), lambda packages: "none")
    assert not runtime.open("a", spec).is_closed
    with pytest.raises(EngineUnavailable):
        runtime.sweep()


def child_starts_with_none(runtime: Runtime, spec: SessionSpec, parents: Session) -> bool:
    """Return what is so in a forked child."""
    assert runtime.find("a") is None
    own = runtime.open("a", spec)
    assert own is not parents
    runtime.close_all()
    assert own.is_closed
    assert not parents.is_closed
    with pytest.raises(SessionClosed):
        parents.run("1", 1)
    return True


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_starts_with_none(runtime: Runtime, spec: SessionSpec) -> None:
    session = runtime.open("a", spec)
    child = os.fork()
    if child == 0:
        done = False
        with contextlib.suppress(BaseException):
            done = child_starts_with_none(runtime, spec, session)
        os._exit(0 if done else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert runtime.find("a") is session
