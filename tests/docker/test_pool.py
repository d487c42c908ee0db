"""Sandboxes made ahead, in real containers: handed over, preloaded, stopped while idle, and gone with their host."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent_tools.engines.docker import image
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.docker.payload import SHARES
from agent_tools.engines.oci_runtime import kind_of
from agent_tools.machine.owner import same_host
from agent_tools.runtime.runtime import Runtime
from agent_tools.sandbox import Sandbox

pytestmark = pytest.mark.docker
ENOUGH = 60.0  # seconds
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Where all work_dirs lie: a pool is for one folder, so the sandbox that a test leaves ready is the next one's."""
    with tempfile.TemporaryDirectory(prefix="agent-tools-test-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def runtime(docker_engine: DockerEngine, folder: Path) -> Iterator[Runtime]:
    """Closed before the folder goes, where its pools make their blank folders."""
    runtime = Runtime(docker_engine, partial(image.ensure, docker_engine))
    yield runtime
    runtime.close_all()


@pytest.fixture(scope="module")
def is_gvisor(docker_engine: DockerEngine) -> bool:
    """The engine's default runtime is gVisor, which hides the processes, changes no shares and takes more memory."""
    return kind_of(next(iter(docker_engine.info().runtimes), "")) == "gvisor"


@pytest.fixture(scope="module")
def stack(is_gvisor: bool) -> dict[str, Any]:
    """Modules to preload, and a limit of memory to which they count."""
    return {"preload": ["numpy", "pandas", "matplotlib.pyplot"], "memory": (320 if is_gvisor else 256) * 2**20}


@pytest.fixture
def new(runtime: Runtime, folder: Path) -> Iterator[Callable[..., Sandbox]]:
    """Makes sandboxes for which one is ready; each is taken from the pool."""
    made: list[Sandbox] = []
    before = runtime.pools.takes.get("hit", 0)

    def make(**cfg: Any) -> Sandbox:
        work_dir = folder / str(next(NUMBERS))
        made.append(Sandbox({"work_dir": str(work_dir), "pool": 1, **cfg}, runtime=runtime))
        assert made[-1].prepare_pool(ENOUGH) == 1, runtime.pools
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.close()
    assert runtime.pools.takes.get("hit", 0) - before == len(made)


@pytest.mark.parametrize("transport", ["sockets", "stdio"])
def test_it_is_a_sandbox_like_any_other(
    new: Callable[..., Sandbox],
    folder: Path,
    work_dir: Path,
    transport: str,
    docker_engine: DockerEngine,
    is_gvisor: bool,
) -> None:
    own = folder / f"own-{transport}"
    sandbox = new(transport=transport, work_dir=str(own))
    (work_dir / "data.csv").write_text("1,2")
    sandbox.stage([str(work_dir / "data.csv")])
    assert sandbox.run_code("open('made.txt', 'w').write(open('data.csv').read())").error is None
    assert (own / "made.txt").read_text() == "1,2"
    (work_dir / "more.csv").write_text("3")
    sandbox.stage([str(work_dir / "more.csv")])  # after the hand-over: the code owns this one, too
    assert sandbox.run_code("open('more.csv', 'a').write('4')").error is None
    assert sandbox.run_command("cat more.csv; rm data.csv").stdout == b"34"
    sandbox.write_file("by_service", "5")
    assert sorted(os.listdir(own)) == ["by_service", "made.txt", "more.csv"]
    assert "exited with code 3" in str(sandbox.run_code("import os; os._exit(3)").error)
    assert sandbox.run_code("open('by_service').read()").value == "5"
    assert len({os.stat(own / name).st_uid for name in ("", "by_service", "made.txt", "more.csv")}) == 1
    assert sandbox.container
    shares = docker_engine.inspect(sandbox.container)["HostConfig"]["CpuShares"]
    assert shares == (
        SHARES if docker_engine.info().changes_shares and not is_gvisor else 0
    )  # the weight of all others


def test_an_undo_goes_back_to_before_the_first_cell(new: Callable[..., Sandbox]) -> None:
    sandbox = new(preload=["numpy"])
    sandbox.run_code("x = 1")
    sandbox.undo()
    assert sandbox.run_code("import sys; ['x' in globals(), 'numpy' in sys.modules]").value == [False, True]


FACTS = """
import hashlib, os, random, sys, threading, uuid, warnings
import numpy, pandas, matplotlib, matplotlib.pyplot as plt
told = [
    [str(each) for each in warnings.filters],
    hashlib.sha256(str(sorted((k, str(v)) for k, v in matplotlib.rcParams.items())).encode()).hexdigest(),
    matplotlib.get_backend(), plt.get_fignums(), [each.name for each in threading.enumerate()],
    len(matplotlib.units.registry), sorted(os.environ), sys.path, os.getcwd(), sorted(get_ipython().user_ns)[:40],
]
told
"""
DRAWN = """
plt.plot([1, 2], [3, 1], label='x'); plt.legend(); plt.title('Title'); plt.show()
[plt.get_backend(), plt.get_fignums()]
"""


def test_preloaded_kernels_differ_in_nothing_from_lean_ones(
    new: Callable[..., Sandbox], runtime: Runtime, folder: Path, stack: dict[str, Any]
) -> None:
    sandbox = new(**stack)
    assert sandbox.run_code("import sys; 'pandas._libs' in sys.modules").value is True
    with Sandbox({"work_dir": str(folder / "cold"), "memory": stack["memory"]}, runtime=runtime) as cold:
        assert cold.run_code("import sys; 'numpy' in sys.modules").value is False
        assert sandbox.run_code(FACTS).value == cold.run_code(FACTS).value
        ours, theirs = sandbox.run_code(DRAWN), cold.run_code(DRAWN)
    assert ours.value == theirs.value
    assert [each.data for each in ours.outputs if hasattr(each, "data") and "image/png" in each.data] == [
        each.data for each in theirs.outputs if hasattr(each, "data") and "image/png" in each.data
    ]


def test_no_two_kernels_have_the_same_random_numbers_and_what_was_preloaded_fits(
    new: Callable[..., Sandbox], stack: dict[str, Any]
) -> None:
    code = (
        "import random, uuid, numpy; "
        "[float(numpy.random.rand()), float(numpy.random.default_rng().random()), random.random(), str(uuid.uuid4())]"
    )
    sandbox, told = new(**stack), []
    assert sandbox.run_code("import pandas; int(pandas.Series([1, 2]).sum())").value == 3
    for _ in range(3):
        told.append(sandbox.run_code(code).value)
        sandbox.restart()
    assert all(len(set(values)) == 3 for values in zip(*told, strict=True))


def test_a_module_in_work_dir_shadows_as_without_preload(new: Callable[..., Sandbox], work_dir: Path) -> None:
    (work_dir / "numpy.py").write_text("own = True")
    (work_dir / "helper.py").write_text("own = True")
    sandbox = new(preload=["numpy"])
    sandbox.stage([str(work_dir / "numpy.py"), str(work_dir / "helper.py")])
    assert sandbox.run_code("import numpy, helper; [hasattr(numpy, 'own'), helper.own]").value == [False, True]


def test_a_module_that_starts_a_thread_is_not_preloaded_and_the_reason_told(runtime: Runtime, folder: Path) -> None:
    cfg = {"work_dir": str(folder / "threads"), "pool": 1, "preload": ["numpy"], "env": {"OPENBLAS_NUM_THREADS": "4"}}
    with Sandbox(cfg, runtime=runtime) as sandbox:
        assert sandbox.prepare_pool(ENOUGH) == 0
        assert sandbox.run_code("1 + 1").value == 2
    assert "numpy starts a thread when it is imported" in runtime.pools.failures[-1]


COUNTS = "import threading, time\nticks = []\n"
COUNTS += (
    "def tick():\n    while True:\n        ticks.append(open('ticks', 'a').write('.'))\n        time.sleep(0.02)\n"
)
COUNTS += "threading.Thread(target=tick, daemon=True).start()"


@pytest.mark.parametrize("transport", ["sockets", "stdio"])
def test_an_idle_sandbox_is_stopped_and_woken_by_its_next_use(
    new: Callable[..., Sandbox], transport: str, until_stopped: Callable[[Sandbox], None]
) -> None:
    sandbox = new(idle_stop=1.0, transport=transport)
    sandbox.run_code(COUNTS)
    until_stopped(sandbox)
    assert sandbox.run_code("len(ticks) > 0").value is True
    until_stopped(sandbox)
    assert sandbox.run_command("echo awake").stdout == b"awake\n"
    until_stopped(sandbox)
    sandbox.write_file("a", "1")
    until_stopped(sandbox)
    assert sandbox.read_file("a") == b"1"
    until_stopped(sandbox)
    sandbox.restart()
    assert sandbox.run_code("'ticks' in globals()").value is False


def test_a_sandbox_with_a_command_in_the_background_is_not_stopped(
    new: Callable[..., Sandbox], until_stopped: Callable[[Sandbox], None]
) -> None:
    sandbox = new(idle_stop=1.0)
    sandbox.run_code(COUNTS)
    server = sandbox.start_command("for i in $(seq 30); do echo $i; sleep 0.1; done")
    assert server.wait(20).exit_code == 0
    until_stopped(sandbox)


@pytest.fixture
def until_stopped(docker_engine: DockerEngine, is_gvisor: bool) -> Callable[[Sandbox], None]:
    """Wait until all processes but PID 1 are stopped; under gVisor, which hides them, until COUNTS writes no more."""

    def wait(sandbox: Sandbox) -> None:
        assert sandbox.container
        deadline = time.monotonic() + ENOUGH
        while time.monotonic() < deadline:
            if is_gvisor:
                size = os.stat(f"{sandbox.workspace.path}/ticks").st_size
                time.sleep(1)  # fifty of its ticks
                if os.stat(f"{sandbox.workspace.path}/ticks").st_size == size:
                    return
                continue
            states = [_state(pid) for pid in docker_engine.processes(sandbox.container) if pid != sandbox.container.pid]
            states = [state for state in states if state != "Z"]  # it ended, and its stopped parent does not reap it
            if states and all(state == "T" for state in states):
                return
            time.sleep(0.1)
        raise AssertionError("it is not stopped")

    return wait


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


HOST = """
import os, sys, threading, time
from agent_tools.sandbox import Sandbox
sandbox = Sandbox({{"work_dir": {work_dir!r}, "pool": 1, "idle_stop": 1.0}})
assert sandbox.prepare_pool(60) == 1
assert sandbox.run_code("1 + 1").value == 2
time.sleep(1.5)
print(sandbox.container.id, flush=True)
{ending}
"""


@pytest.mark.parametrize(
    "ending", ["os.kill(os.getpid(), 9)", "os._exit(0)", "", "sandbox.close(); os.kill(os.getpid(), 9)"]
)
def test_nothing_is_left_by_a_host_with_a_pool(
    docker_engine: DockerEngine, runtime: Runtime, work_dir: Path, ending: str
) -> None:
    script = HOST.format(work_dir=str(work_dir / "a"), ending=ending)
    host = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = host.communicate(timeout=120)
    assert len(out.strip()) == 64, err
    owner = f"{host.pid}-"
    deadline = time.monotonic() + ENOUGH
    while left := [labels for _, labels in docker_engine.strays(same_host()) if _owner(labels).startswith(owner)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    runtime.sweep()
    assert os.listdir(work_dir) == ["a"]


def _owner(labels: Any) -> str:
    return str(labels.get("agent_tools.owner", ""))
