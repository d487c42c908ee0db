"""An engine that fails, and others who meddle with our containers: a clear error in time, then the next call works."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent_tools.engines import context
from agent_tools.engines.docker import image
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.errors import ToolServiceError
from agent_tools.results.execution import Died, Restarted, TimedOut
from agent_tools.runtime.runtime import Runtime
from agent_tools.tools import CodeInterpreter
from tests.docker.pausing import pause
from tests.engine_proxy import EngineProxy, Fault
from tests.leaks import Scratch

pytestmark = [
    pytest.mark.docker,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # the SDK drops those it cannot connect
]
PATIENCE = 10.0  # seconds a call may take beyond its time limit, and a failing engine beyond its own
ENGINE_TIMEOUT = 5
SLEEP = "import time\ntime.sleep(60)"
CREATE, START, REMOVE = r"POST .*/containers/create", r"POST .*/start", r"DELETE .*/containers/"


@pytest.fixture
def proxy(scratch: Scratch, monkeypatch: pytest.MonkeyPatch, docker_engine: DockerEngine) -> Iterator[EngineProxy]:
    """Return what DOCKER_HOST points at."""
    with EngineProxy(scratch.path / "engine.sock") as proxy:
        monkeypatch.setenv("DOCKER_HOST", proxy.url)
        yield proxy


@pytest.fixture
def tool(proxy: EngineProxy, work_dir: Path) -> Iterator[CodeInterpreter]:
    """A tool whose engine is behind the proxy."""
    with _new_tool(work_dir) as tool:
        yield tool
        proxy.heal()


def _new_tool(work_dir: Path) -> CodeInterpreter:
    engine = DockerEngine(timeout=ENGINE_TIMEOUT)
    return CodeInterpreter({"work_dir": str(work_dir)}, runtime=Runtime(engine, partial(image.ensure, engine)))


@contextlib.contextmanager
def _takes_at_most(seconds: float) -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds + PATIENCE


def _refusal(tool: CodeInterpreter) -> ToolServiceError:
    with pytest.raises(ToolServiceError) as caught:
        tool.call("1")
    return caught.value


def _works(tool: CodeInterpreter) -> bool:
    return tool.run("print('works')").stdout == "works\n"


# -- there is no engine, or something else in its place ---------------------------------------------------------------

WRONG_HOSTS = {
    "absent": "unix:///nowhere/docker.sock",
    "a folder": "unix:///tmp",
    "refused": "tcp://127.0.0.1:1",
    "an unknown scheme": "carrier-pigeon://loft",
    "no host": "tcp://",
    "no port": "tcp://127.0.0.1:none",
}


@pytest.mark.parametrize("host", WRONG_HOSTS.values(), ids=WRONG_HOSTS.keys())
def test_an_engine_that_is_not_there_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, work_dir: Path, host: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    with _new_tool(work_dir) as tool, _takes_at_most(ENGINE_TIMEOUT):
        refusal = _refusal(tool)
    assert refusal.code == "EngineUnavailable"
    assert "systemctl start docker" in str(refusal.message)
    assert "DOCKER_HOST" in str(refusal.message)


def test_a_socket_that_nobody_serves_is_told(proxy: EngineProxy, tool: CodeInterpreter) -> None:
    proxy.refuse()
    assert "Connection refused" in str(_refusal(tool).message)
    proxy.come_back()
    assert _works(tool)


def test_a_socket_one_may_not_use_is_told_with_what_to_do(proxy: EngineProxy, tool: CodeInterpreter) -> None:
    proxy.path.chmod(0)
    with _without_root():
        refusal = _refusal(tool)
    assert refusal.code == "EngineUnavailable"
    assert "group" in str(refusal.message)


@contextlib.contextmanager
def _without_root() -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_something_that_is_no_engine_is_told(proxy: EngineProxy, tool: CodeInterpreter) -> None:
    for status in (404, 500, 503):
        proxy.faults = [Fault("", "answer", status=status)]
        assert _refusal(tool).code in ("EngineUnavailable", "EngineError"), status
        proxy.heal()
    assert _works(tool)


# -- an engine that fails at one step ---------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [CREATE, START], ids=["create", "start"])
def test_a_refused_step_is_told_and_the_next_call_works(proxy: EngineProxy, tool: CodeInterpreter, step: str) -> None:
    for status in (400, 409, 500):  # of which each call comes as far as this step
        proxy.faults = [Fault(step, "answer", status=status)]
        refusal = _refusal(tool)
        assert refusal.code == "SandboxStartError", status
        assert "out of order" in str(refusal.message), status
        proxy.heal()
    assert _works(tool)


CUTS: dict[str, tuple[Any, ...]] = {CREATE: ("cut", "deafen", "halve"), START: ("cut", "deafen")}


@pytest.mark.parametrize(("step", "kinds"), CUTS.items(), ids=["create", "start"])
def test_a_connection_cut_in_mid_start_is_told_and_leaves_nothing(
    proxy: EngineProxy, tool: CodeInterpreter, step: str, kinds: tuple[Any, ...]
) -> None:
    for kind in kinds:
        proxy.faults = [Fault(step, kind)]
        assert _refusal(tool).code == "EngineUnavailable", kind
        proxy.heal()
    assert _works(tool)


def test_a_connection_cut_in_mid_start_leaves_nothing_even_if_nothing_is_called_again(
    proxy: EngineProxy, tool: CodeInterpreter
) -> None:
    proxy.faults = [Fault(CREATE, "deafen", times=1)]
    assert _refusal(tool).code == "EngineUnavailable"


def test_an_engine_that_hangs_is_given_up_in_time(proxy: EngineProxy, tool: CodeInterpreter) -> None:
    for step in ("GET .*/(info|version)", CREATE, START):
        proxy.faults = [Fault(step, "delay", seconds=120)]
        with _takes_at_most(ENGINE_TIMEOUT):
            assert _refusal(tool).code == "EngineUnavailable", step
        proxy.heal()
    assert _works(tool)


REMOVALS = {
    "refused": Fault(REMOVE, "answer", status=500),
    "hangs": Fault(REMOVE, "delay", seconds=120),
    "cut": Fault(REMOVE, "cut"),
}


@pytest.mark.parametrize("fault", REMOVALS.values(), ids=REMOVALS.keys())
def test_a_removal_that_fails_neither_raises_nor_leaves_a_sandbox(
    proxy: EngineProxy, work_dir: Path, docker_engine: DockerEngine, fault: Fault
) -> None:
    with _new_tool(work_dir) as tool:
        assert _works(tool)
        sandbox = tool.sandbox
        proxy.faults = [fault]
        with _takes_at_most(ENGINE_TIMEOUT):
            tool.close()
    deadline = time.monotonic() + PATIENCE
    while sandbox in [each for each, _ in docker_engine.strays({})]:  # it ends with its lifeline
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_call_ends_in_time_though_the_engine_hangs_when_its_sandbox_is_given_up(
    proxy: EngineProxy, tool: CodeInterpreter, docker_engine: DockerEngine
) -> None:
    assert _works(tool)
    pause(docker_engine.connection.api(), tool.sandbox.id)  # type: ignore[union-attr]
    proxy.faults = [Fault(REMOVE, "delay", seconds=120)]
    with _takes_at_most(1 + ENGINE_TIMEOUT):
        assert isinstance(tool.run(SLEEP, timeout=1).outputs[-1], (TimedOut, Died))
    proxy.heal()
    assert _works(tool)


# -- an engine that restarts ------------------------------------------------------------------------------------------


def test_a_call_does_not_notice_that_the_engine_restarts(proxy: EngineProxy, tool: CodeInterpreter) -> None:
    assert _works(tool)
    threading.Timer(0.2, proxy.vanish).start()
    assert tool.run("import time\ntime.sleep(0.6)\nx = 1\nprint('done')").stdout == "done\n"
    assert not proxy.path.exists()
    assert tool.run("print(x)").stdout == "1\n"
    proxy.come_back()
    assert tool.run("print(x)").stdout == "1\n"


def test_a_fresh_kernel_needs_no_engine(proxy: EngineProxy, tool: CodeInterpreter) -> None:
    assert _works(tool)
    proxy.vanish()
    assert isinstance(tool.run("import os\nos.kill(-1, 9)\nos._exit(1)").outputs[-1], Died)
    assert isinstance(tool.run("1").outputs[0], Restarted)
    tool.restart()
    assert _works(tool)
    proxy.come_back()


def test_a_sandbox_that_went_with_its_engine_is_replaced_once_that_is_back(
    proxy: EngineProxy, tool: CodeInterpreter, docker_engine: DockerEngine
) -> None:
    assert _works(tool)
    proxy.vanish()
    docker_engine.remove(tool.sandbox)  # type: ignore[arg-type]
    assert _refusal(tool).code == "EngineUnavailable"
    proxy.come_back()
    execution = tool.run("print('works')")
    assert isinstance(execution.outputs[0], Restarted)
    assert execution.stdout == "works\n"


def test_closing_while_the_engine_is_away_leaves_no_sandbox(proxy: EngineProxy, work_dir: Path) -> None:
    with _new_tool(work_dir) as tool:
        assert _works(tool)
        proxy.vanish()
        with _takes_at_most(0):
            tool.close()


# -- someone else's hand on our container -----------------------------------------------------------------------------

MEDDLING: dict[str, Callable[[Any, str], object]] = {
    "kill": lambda api, id_: api.kill(id_),
    "stop": lambda api, id_: api.stop(id_, timeout=0),
    "pause": pause,
}


@pytest.mark.parametrize("meddle", MEDDLING.values(), ids=MEDDLING.keys())
def test_meddling_in_mid_call_ends_the_call_in_time(
    docker_engine: DockerEngine, used_tool: CodeInterpreter, meddle: Callable[[Any, str], object]
) -> None:
    assert _works(used_tool)
    other = threading.Timer(0.3, meddle, [docker_engine.connection.api(), used_tool.sandbox.id])  # type: ignore[union-attr]
    other.start()
    with _takes_at_most(2):
        assert isinstance(used_tool.run(SLEEP, timeout=2).outputs[-1], (Died, TimedOut))
    other.join()
    execution = used_tool.run("print('works')")
    assert isinstance(execution.outputs[0], Restarted)
    assert execution.stdout == "works\n"


@pytest.mark.parametrize("name", ["kill", "stop"])
def test_meddling_between_calls_is_told_by_the_next(
    docker_engine: DockerEngine, used_tool: CodeInterpreter, name: str
) -> None:
    assert _works(used_tool)
    MEDDLING[name](docker_engine.connection.api(), used_tool.sandbox.id)  # type: ignore[union-attr]
    execution = used_tool.run("print('works')")
    assert isinstance(execution.outputs[0], Restarted)
    assert execution.stdout == "works\n"


def test_an_image_removed_between_calls_is_missed_only_by_the_next_sandbox(
    docker_engine: DockerEngine, new_tool: Callable[..., CodeInterpreter]
) -> None:
    api, name = docker_engine.connection.api(), f"agent-tools-gone-{uuid.uuid4().hex}"
    api.tag(context.tag_for(), name, "test")
    tool = new_tool(image=f"{name}:test")
    assert _works(tool)
    docker_engine.remove_image(f"{name}:test")
    assert _works(tool)
    docker_engine.remove(tool.sandbox)  # type: ignore[arg-type]
    refusal = _refusal(tool)
    assert refusal.code == "SandboxStartError"
    assert f"{name}:test is missing" in str(refusal.message)


# -- the host's own troubles ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in work_dir", "in figures_dir"])
def test_a_figure_that_finds_no_room_costs_only_itself(
    new_tool: Callable[..., CodeInterpreter], tmp_path: Path, elsewhere: bool
) -> None:
    folder = tmp_path / "figures"
    tool = new_tool(figures_dir=str(folder)) if elsewhere else new_tool()
    assert _works(tool)
    with _no_room():
        answer = tool.call("plt.plot([1, 2])\nplt.show()\nprint('text')")
    assert "stdout:\n\n```\ntext\n\n```" in answer
    assert "fig-001 could not be saved" in answer
    assert os.listdir(folder if elsewhere else tool.work_dir) == []
    assert "![fig-001](" in tool.call("plt.plot([1, 2])\nplt.show()")


@contextlib.contextmanager
def _no_room() -> Iterator[None]:
    """This process cannot write more than a few bytes to a file, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("then", ["removed", "replaced"])
def test_a_work_dir_that_goes_away_is_made_again_and_the_code_sees_the_new_one(
    new_tool: Callable[..., CodeInterpreter], tmp_path: Path, then: str
) -> None:
    tool, source = new_tool(), tmp_path / "data.csv"
    source.write_text("a,b\n")
    assert _works(tool)
    work_dir = Path(tool.work_dir)
    work_dir.rename(tmp_path / "moved")
    if then == "replaced":
        work_dir.mkdir()
        os.chown(work_dir, *_owner(tmp_path / "moved"))
    execution = tool.run("print(open('data.csv').read())\nopen('out.txt', 'w').write('x')", files=[str(source)])
    assert execution.stdout == "a,b\n\n"
    assert isinstance(execution.outputs[0], Restarted)
    assert [change.name for change in execution.changes] == ["out.txt"]
    assert os.listdir(tmp_path / "moved") == []


def _owner(folder: Path) -> tuple[int, int]:
    return folder.stat().st_uid, folder.stat().st_gid


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[float], None]]:
    """Presses Ctrl-C so many seconds later; a test run in the background would ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.main_thread().ident
    assert main is not None
    yield lambda delay: threading.Timer(delay, signal.pthread_kill, [main, signal.SIGINT]).start()
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_in_mid_call_interrupts_the_code_and_keeps_variables(
    used_tool: CodeInterpreter, ctrl_c: Callable[[float], None]
) -> None:
    used_tool.run("x = 5")
    ctrl_c(0.3)
    with _takes_at_most(0.3), pytest.raises(KeyboardInterrupt):
        used_tool.run(SLEEP, timeout=60)
    assert used_tool.run("print(x)").stdout == "5\n"


def test_ctrl_c_in_mid_start_leaves_nothing(
    proxy: EngineProxy, tool: CodeInterpreter, ctrl_c: Callable[[float], None]
) -> None:
    proxy.faults = [Fault(CREATE, "delay", seconds=1, times=1)]
    ctrl_c(0.6)
    with pytest.raises(KeyboardInterrupt):
        tool.run("1")
    assert _works(tool)


def test_closing_from_another_thread_ends_the_call_and_both_return(used_tool: CodeInterpreter) -> None:
    assert _works(used_tool)
    closer = threading.Timer(0.3, used_tool.close)
    closer.start()
    with _takes_at_most(0.3), pytest.raises(ToolServiceError) as caught:
        used_tool.run(SLEEP, timeout=60)
    closer.join(PATIENCE)
    assert not closer.is_alive()
    assert caught.value.code == "SessionClosed"
    assert _works(used_tool)


def test_an_exception_inside_the_with_block_passes_and_closes(
    docker_runtime: Runtime, work_dir: Path, docker_engine: DockerEngine
) -> None:
    tool = CodeInterpreter({"work_dir": str(work_dir)}, runtime=docker_runtime)

    def fail() -> None:
        with tool:
            assert _works(tool)
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert tool.sandbox is None


def test_several_instances_at_once_all_work(docker_runtime: Runtime, work_dir: Path) -> None:
    found: dict[int, str] = {}

    def work(number: int) -> None:
        folder = str(work_dir / str(number))
        with CodeInterpreter({"work_dir": folder, "memory": 256 * 2**20}, runtime=docker_runtime) as tool:
            found[number] = tool.run(f"x = {number}\nprint(x)", timeout=60).stdout

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: f"{number}\n" for number in range(4)}
