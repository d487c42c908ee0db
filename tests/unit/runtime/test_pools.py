"""Sessions and sandboxes made ahead, on real kernels that are plain processes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_tools.code_mode.toolset import Toolset
from agent_tools.engines.engine import EngineContainer, SandboxSpec
from agent_tools.runtime.pool.pools import MOST_KINDS
from agent_tools.runtime.runtime import Runtime
from agent_tools.runtime.transport.transport import TransportName
from agent_tools.sandbox import Sandbox
from tests.doubles import ProcessEngine

ENOUGH = 30.0  # seconds for what takes a fraction of one


@pytest.fixture
def new(process_runtime: Runtime, work_dir: Path) -> Iterator[Callable[..., Sandbox]]:
    """Makes sandboxes whose work_dirs lie beside each other, and waits until one is ready for them."""
    made: list[Sandbox] = []

    def make(name: str = "a", runtime: Runtime = process_runtime, **cfg: Any) -> Sandbox:
        functions = cfg.pop("hostcalls", None)
        cfg = {"work_dir": str(work_dir / name), "pool": 1, **cfg}
        made.append(Sandbox(cfg, hostcalls=functions, runtime=runtime))
        assert made[-1].prepare_pool(ENOUGH) == 1, runtime.pools
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.close()
    process_runtime.close_all()


def test_a_session_has_a_sandbox_made_ahead_on_its_own_folder(
    new: Callable[..., Sandbox], process_runtime: Runtime, work_dir: Path
) -> None:
    sandbox = new()
    (work_dir / "data.csv").write_text("1,2")
    assert [each.name for each in sandbox.stage([str(work_dir / "data.csv")])] == ["data.csv"]
    run = sandbox.run_code("open('made.txt', 'w').write(open('data.csv').read())")
    assert run.error is None
    assert [change.name for change in run.changes] == ["made.txt"]
    assert (work_dir / "a" / "made.txt").read_text() == "1,2"
    assert process_runtime.pools.takes == {"hit": 1}


def test_nothing_of_its_making_is_seen(new: Callable[..., Sandbox], process_runtime: Runtime, work_dir: Path) -> None:
    code = (
        "import os; [sorted(name for name in globals() if name[0] != '_'), In[:-1], list(_oh), sorted(os.environ), "
        "get_ipython().execution_count, os.listdir()]"
    )
    made_ahead = new(preload=["colorsys"]).run_code(code)
    with Sandbox({"work_dir": str(work_dir / "cold")}, runtime=process_runtime) as cold:
        assert made_ahead.value == cold.run_code(code).value
    assert process_runtime.pools.takes == {"hit": 1}


@pytest.mark.parametrize("transport", ["sockets", "stdio"])
def test_it_is_a_sandbox_like_any_other_afterwards(
    new: Callable[..., Sandbox], process_runtime: Runtime, transport: TransportName
) -> None:
    sandbox = new(transport=transport)
    sandbox.run_code("x = 1")
    assert sandbox.run_code("x").value == 1
    sandbox.run_code("open('a.txt', 'w').write('1')")
    sandbox.restart()
    assert sandbox.run_code("'x' in globals()").value is False
    assert sandbox.run_code("import os, signal; os.kill(os.getpid(), 9)").error
    assert sandbox.run_code("open('a.txt').read()").value == "1"
    assert process_runtime.pools.takes == {"hit": 1}


def test_host_functions_of_the_session_are_served(new: Callable[..., Sandbox], process_runtime: Runtime) -> None:
    def double(x: int) -> int:
        return 2 * x

    sandbox = new(hostcalls=[double])
    assert sandbox.run_code("await double(21)").value == 42
    assert process_runtime.pools.takes == {"hit": 1}
    sandbox.restart()
    assert sandbox.run_code("await double(4)").value == 8


def test_a_prelude_that_fails_is_told_as_without_a_pool(
    new: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    def double(x: int) -> int:
        return 2 * x

    sandbox = new(hostcalls=[double])
    monkeypatch.setattr(Toolset, "source", lambda _: "1 / 0")
    with pytest.raises(Exception, match="ZeroDivisionError: division by zero"):
        sandbox.run_code("1")


def test_other_options_are_another_kind(new: Callable[..., Sandbox], process_runtime: Runtime) -> None:
    new("a", env={"WHO": "a"})
    other = new("b", env={"WHO": "b"})
    assert other.run_code("__import__('os').environ['WHO']").value == "b"
    assert process_runtime.pools.takes == {"hit": 1}


def test_limits_of_the_folder_are_the_sessions_own(new: Callable[..., Sandbox], process_runtime: Runtime) -> None:
    new("a", limits={"max_work_dir_entries": 50_000})
    sandbox = new("b", limits={"max_work_dir_entries": 10})
    run = sandbox.run_code("import time\nfor i in range(100): open(f'{i}', 'w')\ntime.sleep(20)")
    assert "max_work_dir_entries" in str(run.error)
    assert process_runtime.pools.takes == {"hit": 1}


def test_an_engine_that_shares_no_folder_needs_no_rename(work_dir: Path, new: Callable[..., Sandbox]) -> None:
    runtime = Runtime(ProcessEngine(shares_files=False), lambda packages: "none")
    try:
        (work_dir / "users").mkdir()
        (work_dir / "users" / "data.csv").write_text("1,2")
        sandbox = new("users", runtime)
        sandbox.run_code("open('made.txt', 'w').write(open('data.csv').read())")
        assert (work_dir / "users" / "made.txt").read_text() == "1,2"
        assert runtime.pools.takes == {"hit": 1}
        sandbox.close()
    finally:
        runtime.close_all()


def test_a_folder_with_a_users_files_is_left_alone(
    new: Callable[..., Sandbox], process_runtime: Runtime, work_dir: Path
) -> None:
    (work_dir / "a").mkdir()
    (work_dir / "a" / "data.csv").write_text("1")
    inode = os.stat(work_dir / "a").st_ino
    assert new().run_code("open('data.csv').read()").value == "1"
    assert os.stat(work_dir / "a").st_ino == inode
    assert process_runtime.pools.takes == {"folder": 1}


def test_two_sandboxes_of_one_folder_share_it(
    new: Callable[..., Sandbox], process_runtime: Runtime, work_dir: Path
) -> None:
    first = new()
    first.run_code("1")
    second = new()
    second.run_code("open('by_second', 'w')")
    assert first.run_code("import os; os.listdir()").value == ["by_second"]
    assert process_runtime.pools.takes == {"hit": 1, "folder": 1}


def test_a_folder_of_the_sandboxs_own_is_handed_over_too(process_runtime: Runtime) -> None:
    with Sandbox({"pool": 1}, runtime=process_runtime) as sandbox:
        assert sandbox.prepare_pool(ENOUGH) == 1
        sandbox.run_code("open('a', 'w')")
        path = sandbox.workspace.path
        assert os.listdir(path) == ["a"]
        assert process_runtime.pools.takes == {"hit": 1}
    assert not path.exists()


def test_after_a_reset_another_one_serves(new: Callable[..., Sandbox], process_runtime: Runtime) -> None:
    sandbox = new()
    sandbox.run_code("x = 1")
    sandbox.prepare_pool(ENOUGH)
    sandbox.reset()
    assert sandbox.run_code("'x' in globals()").value is False
    assert process_runtime.pools.takes == {"hit": 2}


def test_one_that_crashed_while_it_waited_is_not_given_away(
    new: Callable[..., Sandbox], process_runtime: Runtime
) -> None:
    sandbox = new()
    engine = process_runtime.engine
    assert isinstance(engine, ProcessEngine)
    (process,) = engine.processes.values()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert sandbox.run_code("1 + 1").value == 2
    assert process_runtime.pools.takes == {"ended": 1}


def test_the_first_sandbox_starts_cold_and_the_pool_fills_beside_it(
    process_runtime: Runtime, new: Callable[..., Sandbox], work_dir: Path
) -> None:
    with Sandbox({"work_dir": str(work_dir / "a"), "pool": 1}, runtime=process_runtime) as sandbox:
        sandbox.run_code("1")
        assert process_runtime.pools.takes == {"empty": 1}
        assert sandbox.prepare_pool(ENOUGH) == 1


def test_modules_are_there_before_a_cell_asks_and_after_a_restart(new: Callable[..., Sandbox]) -> None:
    sandbox = new(preload=["colorsys", "email.mime.text"])
    code = "import sys; [name in sys.modules for name in ('colorsys', 'email.mime.text', 'wave')]"
    assert sandbox.run_code(code).value == [True, True, False]
    sandbox.restart()
    assert sandbox.run_code(code).value == [True, True, False]


def test_a_module_that_is_not_there_stops_the_pool_and_nothing_else(process_runtime: Runtime, work_dir: Path) -> None:
    cfg = {"work_dir": str(work_dir / "a"), "pool": 1, "preload": ["no_such_module"]}
    with Sandbox(cfg, runtime=process_runtime) as sandbox:
        assert sandbox.prepare_pool(ENOUGH) == 0
        assert sandbox.run_code("1 + 1").value == 2
    assert process_runtime.pools.takes == {"failed": 1}
    assert "No module named 'no_such_module'" in process_runtime.pools.failures[0]


def test_there_are_only_so_many_pools(process_runtime: Runtime, new: Callable[..., Sandbox]) -> None:
    engine = process_runtime.engine
    assert isinstance(engine, ProcessEngine)
    for number in range(MOST_KINDS + 1):
        new(env={"NUMBER": str(number)})
    process_runtime.settle()
    assert len(engine.processes) == MOST_KINDS


def test_closing_all_leaves_none_and_no_folder(
    new: Callable[..., Sandbox], process_runtime: Runtime, work_dir: Path
) -> None:
    new()
    process_runtime.close_all()
    engine = process_runtime.engine
    assert isinstance(engine, ProcessEngine)
    assert engine.processes == {}
    assert list(work_dir.iterdir()) == []
    assert process_runtime.pools.ready == 0


def test_closing_waits_for_one_that_is_being_made(work_dir: Path) -> None:
    may_start, starts = threading.Event(), threading.Event()

    class Slow(ProcessEngine):
        def start(self, spec: SandboxSpec) -> EngineContainer:
            starts.set()
            assert may_start.wait(ENOUGH)
            return super().start(spec)

    engine = Slow()
    runtime = Runtime(engine, lambda packages: "none")
    Sandbox({"work_dir": str(work_dir / "a"), "pool": 1}, runtime=runtime).prepare_pool()
    assert starts.wait(ENOUGH)
    closing = threading.Thread(target=runtime.close_all)
    closing.start()
    may_start.set()
    closing.join(ENOUGH)
    assert engine.processes == {}


def test_a_forked_child_has_none_and_leaves_its_parents_alone(
    new: Callable[..., Sandbox], process_runtime: Runtime
) -> None:
    sandbox = new()
    child = os.fork()
    if child == 0:
        is_right = process_runtime.pools.ready == 0
        process_runtime.close_all()
        os._exit(0 if is_right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert sandbox.run_code("1 + 1").value == 2
    assert process_runtime.pools.takes == {"hit": 1}
