"""The boot of a kernel: what it has loaded, from where, and that nobody can tell it from one that was started alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.limits import MIB
from agent_tools.results.execution import TimedOut
from agent_tools.tools import CodeInterpreter

pytestmark = pytest.mark.docker

IDLE = 40 * MIB
PUT_OFF = ["zmq", "tornado", "ssl", "dateutil", "jupyter_client.manager", "logging.config", "importlib.metadata"]
NEVER = ["numpy", "pandas", "matplotlib", "prompt_toolkit", "jedi", "sqlite3", "multiprocessing"]


def result(tool: CodeInterpreter, code: str) -> str:
    execution = tool.run(code)
    assert execution.error is None, execution.error
    assert execution.result
    return execution.result.text


@pytest.fixture
def fresh(shared_tool: CodeInterpreter) -> CodeInterpreter:
    """A tool with a fresh kernel: each is a fork of its sandbox's first process, as the first one was."""
    shared_tool.restart()
    return shared_tool


def test_a_fresh_kernel_has_loaded_nothing_that_a_first_cell_does_not_need(tool: CodeInterpreter) -> None:
    code = f"import sys; [name for name in {PUT_OFF + NEVER} if name in sys.modules]"
    assert result(tool, code) == "[]"


def test_a_kernel_comes_from_the_bundle_and_what_code_imports_from_its_file(fresh: CodeInterpreter) -> None:
    names = ["IPython", "asyncio", "json", "ipykernel.kernelbase", "agent_tools_guest.kernel.kernel", "csv"]
    code = f"import sys, csv; ' '.join(type(sys.modules[name].__spec__.loader).__name__ for name in {names})"
    assert result(fresh, code) == repr(" ".join(["BundledLoader"] * 5 + ["SourceFileLoader"]))


def test_few_modules_are_looked_for_on_the_path(fresh: CodeInterpreter) -> None:
    code = (
        "import sys; loaders = [type(getattr(m.__spec__, 'loader', None)).__name__ for m in sys.modules.values()\n"
        "    if getattr(m, '__spec__', None)]\n"
        "loaders.count('SourceFileLoader') < 25 < 200 < loaders.count('BundledLoader')"
    )
    assert result(fresh, code) == "True"


def test_an_idle_sandbox_needs_little_memory(tool: CodeInterpreter, docker_engine: DockerEngine) -> None:
    tool.call("1")
    assert tool.sandbox
    stats = docker_engine.connection.api().stats(tool.sandbox.id, stream=False, one_shot=True)["memory_stats"]
    cache = stats["stats"].get("total_inactive_file", stats["stats"].get("inactive_file", 0))  # cgroup v1, v2
    assert stats["usage"] - cache <= IDLE


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("import os; os.getcwd(), [str(path) for path in _dh]", "('/workspace', ['/workspace'])"),
        ("import __main__; __main__.__dict__ is globals()", "True"),
        ("get_ipython().kernel.shell is get_ipython() is get_ipython().kernel.shell.kernel.shell", "True"),
        ("get_ipython().parent is get_ipython().kernel", "True"),
        ("get_ipython().user_ns is get_ipython().kernel.user_ns is globals()", "True"),
        ("len(In), Out, [name for name in dir() if not name.startswith('_')]", "(2, {}, ['In', 'Out', "),
        ("import gc; gc.isenabled(), gc.get_freeze_count() > 1000", "(True, True)"),
        ("import threading; sorted(t.name for t in threading.enumerate())", "['MainThread', 'watcher']"),
        ("import sys; [f for f in sys.meta_path if 'bundle' in str(f)]", "[]"),
        ("import sys; sys.path[-1]", "''"),
    ],
)
def test_a_fresh_kernel_is_as_if_it_had_started_alone(fresh: CodeInterpreter, code: str, answer: str) -> None:
    assert result(fresh, code).startswith(answer)


def test_kernels_of_one_sandbox_share_no_randomness_and_no_state(fresh: CodeInterpreter) -> None:
    code = (
        "import random, uuid, tempfile; seen = globals().get('seen', 0) + 1\n"
        "random.random(), uuid.uuid4().hex, tempfile.mktemp()"
    )
    one = result(fresh, code)
    fresh.restart()
    assert result(fresh, code) != one
    assert result(fresh, "seen") == "1"


def test_stored_variables_outlive_the_kernel(fresh: CodeInterpreter) -> None:
    fresh.call("kept = [1, 2]\n%store kept")
    fresh.restart()
    assert result(fresh, "%store -r\nkept") == "[1, 2]"


def test_an_interrupted_cell_that_awaits_ends_without_tornado(new_tool: Callable[..., CodeInterpreter]) -> None:
    tool = new_tool(limits={"interrupt_grace": 20.0})
    execution = tool.run("import asyncio\nawait asyncio.sleep(600)", timeout=1)
    assert execution.error == TimedOut(1, state_kept=True, where=execution.error.where)  # type: ignore[union-attr]
    assert result(tool, "import sys; 'tornado' in sys.modules") == "False"
