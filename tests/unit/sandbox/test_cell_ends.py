"""Cells on a plain process: how they end, whatever their code has done to the process, and how their forks end."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from agent_tools import Sandbox
from agent_tools.results.execution import Error, TimedOut
from agent_tools.runtime.runtime import Runtime


@pytest.fixture
def sandbox(process_runtime: Runtime) -> Iterator[Sandbox]:
    with Sandbox(runtime=process_runtime) as sandbox:
        sandbox.run_code("import asyncio")
        yield sandbox


def test_an_error_that_raises_itself_when_it_is_told_ends_no_kernel(sandbox: Sandbox) -> None:
    code = "x = 1\nclass E(Exception):\n    def __str__(self): raise self\nraise E"
    error = sandbox.run_code(code).error
    assert isinstance(error, Error)
    assert error.name == "E"
    assert sandbox.run_code("x").value == 1


def test_code_that_ignores_the_end_of_children_keeps_its_variables(sandbox: Sandbox) -> None:
    sandbox.run_code("import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nx = 1")
    assert "x" in sandbox.save(variables=True).variables.kept


@pytest.mark.parametrize("before", ["", "await asyncio.sleep(0)\n"])
def test_what_runs_at_the_end_of_a_cell_ends_at_the_limit_and_costs_no_variables(sandbox: Sandbox, before: str) -> None:
    sandbox.run_code("import functools, subprocess\nevents = get_ipython().events")
    sandbox.run_code("slow = functools.partial(subprocess.run, ['sleep', '60'])\nended = print")
    code = "x = 5\nevents.register('post_execute', slow)\nprint('begun', flush=True)"
    done = sandbox.run_code(f"{before}{code}", timeout=0.5)
    assert isinstance(done.error, TimedOut)
    assert done.error.state_kept
    outputs = sandbox.stream(f"{before}print('begun', flush=True)")
    next(outputs)
    sandbox.interrupt()
    assert [each.name for each in outputs if isinstance(each, Error)] == ["KeyboardInterrupt"]
    sandbox.run_code("events.unregister('post_execute', slow)", timeout=0.5)
    assert sandbox.run_code("x").value == 5


FEW = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
def use_up():
    try:
        while True: files.append(open('/dev/null'))
    except OSError:
        pass
files = []
"""


def test_code_that_has_used_up_its_descriptors_is_interrupted_like_any_code(sandbox: Sandbox) -> None:
    done = sandbox.run_code(f"{FEW}while True: use_up()", timeout=0.5)
    assert isinstance(done.error, TimedOut)
    assert done.error.state_kept
    assert sandbox.run_code("files.clear()").ok
    code = "import subprocess\nchild = subprocess.Popen(['sleep', '60'])\nuse_up()"
    assert sandbox.run_code(code).ok
    assert sandbox.run_code("files.clear()\nchild.kill()").ok


def test_a_display_of_a_forked_child_that_is_left_out_is_told(sandbox: Sandbox) -> None:
    show = "display({'text/plain': 'shown', 'text/html': 'x' * SIZE}, raw=True)"
    code = f"import os\nif os.fork() == 0:\n    {show}\n    os._exit(0)\nos.wait()[1]"
    done = sandbox.run_code(code.replace("SIZE", "10"))
    assert (len(done.outputs), done.stderr) == (2, ""), done
    assert re.fullmatch(
        r"\[an output of 2\d{5} bytes of a forked process was left out\]\n",
        sandbox.run_code(code.replace("SIZE", "200_000")).stderr,
    )


@pytest.mark.parametrize("end", ["", "\n    raise ValueError", "\n    exit(3)"])
def test_a_forked_child_writes_its_open_files_at_its_end(sandbox: Sandbox, end: str) -> None:
    code = f"import os\nchild = os.fork()\nif child == 0:\n    f = open('f.txt', 'w')\n    f.write('written'){end}"
    sandbox.run_code(f"{code}\nelse:\n    os.waitpid(child, 0)")
    assert sandbox.read_file("f.txt") == b"written"


def test_a_fork_without_descriptors_ends_with_its_cell(sandbox: Sandbox) -> None:
    code = f"{FEW}import os\nuse_up()\npid = os.fork()\nif pid: print(os.waitpid(pid, 0)[1])"
    assert sandbox.run_code(code).stdout == "0\n"
    assert sandbox.run_code("1 + 1").value == 2


def test_printing_code_with_a_handler_of_its_own_for_alarms_is_interrupted(sandbox: Sandbox) -> None:
    sandbox.run_code("x = 1")
    code = "import signal\nx = 2\nsignal.signal(signal.SIGALRM, lambda *_: None)\nwhile True: print(1, flush=True)"
    error = sandbox.run_code(code, timeout=0.5).error
    assert isinstance(error, TimedOut)
    assert error.state_kept
    assert sandbox.run_code("x").value == 2
