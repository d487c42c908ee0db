"""Every way to end a kernel in mid-cell, with much alive in it: the variables come back."""

import time
from collections.abc import Iterator

import pytest

from agent_tools import Sandbox
from agent_tools.guest.pid1.last_words import LEFT_OUT
from agent_tools.results.execution import Died, Restarted, TimedOut
from agent_tools.results.outputs import Variables
from tests.docker.crashing import LIMITS

MIB = 1024 * 1024
TIMEOUT = 1.0
ENOUGH = 60.0  # seconds in which a call has ended, on the slowest of machines
ALIVE = """
import asyncio, copy, os, random, sqlite3, sys, threading
import numpy as np, pandas as pd, pyarrow as pa
from sklearn.cluster import KMeans
x = 41
array = np.arange(1_000_000)
frame = pd.DataFrame({"a": array[:1000]})
table = pa.table({"a": [1, 2, 3]})
model = KMeans(2, n_init=1).fit(np.random.rand(100, 2))
random.seed(5); np.random.seed(5); firsts = random.random(), np.random.rand()
base = sqlite3.connect("base.db"); base.execute("create table if not exists t (a)")
base.execute("delete from t"); base.execute("insert into t values (1)"); base.commit()
file = open("log.txt", "w"); file.write("one ")
numbers = iter(range(10)); next(numbers)
ticks = []
async def tick():
    while True:
        ticks.append(1)
        await asyncio.sleep(0.01)
task = asyncio.get_event_loop().create_task(tick())
def double(n): return 2 * n
x + 1
"""
CHECK = """
assert (x, _, double(4)) == (41, 42, 8), (x, _)
assert array.sum() == 499999500000 and frame.a.sum() == 499500 and table.num_rows == 3
assert model.predict([[0.5, 0.5]]).shape == (1,)
assert base.execute("select count(*) from t").fetchone() == (1,)
assert file.write("two ") == 4 and not file.closed
assert list(copy.copy(numbers)) == list(range(1, 10))
seen = len(ticks); await asyncio.sleep(0.1); assert len(ticks) > seen
states = random.getstate(), np.random.get_state()
seconds = random.random(), np.random.rand()
random.seed(5); np.random.seed(5)
assert (random.random(), np.random.rand()) == firsts and (random.random(), np.random.rand()) == seconds
random.setstate(states[0]); np.random.set_state(states[1])
"""

KEPT = {
    "SIGKILL": "os.kill(os.getpid(), 9)",
    "SIGTERM": "os.kill(os.getpid(), 15)",
    "SIGILL": "os.kill(os.getpid(), 4)",
    "SIGFPE": "os.kill(os.getpid(), 8)",
    "a null pointer": "import ctypes; ctypes.string_at(0)",
    "faulthandler": "import faulthandler; faulthandler._sigsegv()",
    "os.abort": "os.abort()",
    "os._exit": "os._exit(7)",
    "exit of the C library": "import ctypes; ctypes.CDLL(None).exit(3)",
    "a double free": "import ctypes; c = ctypes.CDLL(None); c.malloc.restype = ctypes.c_void_p\n"
    "p = c.malloc(64); c.free(ctypes.c_void_p(p)); c.free(ctypes.c_void_p(p))",
    "a broken object": "import ctypes; ctypes.memset(id(double), 0, 200); double(1)",
    "unmapped memory": "import ctypes; ctypes.CDLL(None).munmap(ctypes.c_void_p(id(x) & ~4095), 1 << 20)\n"
    "[{} for _ in range(9**6)]",
    "a truncated mapping": "import mmap\nwith open('m', 'w+b') as f:\n"
    "    f.truncate(4096); m = mmap.mmap(f.fileno(), 4096); f.truncate(0); m[0]",
    "the stack": "import resource; resource.setrlimit(resource.RLIMIT_STACK, (65536, 65536))\n"
    "class A:\n    def __repr__(self): return repr([self])\nrepr(A())",
    "a limit on CPU time": "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass",
    "a child's SIGKILL": "import subprocess; subprocess.run(f'kill -9 {os.getpid()}', shell=True)",
    "a forked child's SIGKILL": "if os.fork() == 0: os.kill(os.getppid(), 9)\nimport time; time.sleep(9)",
    "a thread's crash": "import ctypes; t = threading.Thread(target=ctypes.string_at, args=[0]); t.start(); t.join()",
    "the process group": "os.killpg(0, 9)",
    "another program": "os.execv('/bin/true', ['true'])",
    "another program that stays": "os.execv('/bin/sleep', ['sleep', '60'])",
    "all descriptors closed": "os.closerange(0, 4096)",
    "the socket shut down": "get_ipython().kernel.session._writer.socket.shutdown(2); import time; time.sleep(9)",
    "no message": "get_ipython().kernel.session._writer.socket.send(b'\\xff' * 100); import time; time.sleep(9)",
    "deaf Python": "while True:\n    try:\n        while True:\n            try:\n                while True: pass\n"
    "            except BaseException: pass\n    except BaseException: pass",  # two interrupts may be raised at once
    "ignored signals": "import signal; signal.signal(2, signal.SIG_IGN); signal.signal(14, signal.SIG_IGN)\n"
    "while True: pass",
    "a C loop": "import itertools; any(itertools.repeat(0))",
    "a stopped process": "os.kill(os.getpid(), 19)",
    "half a gigabyte too much": "array = bytearray(3 * 1024**3)",
    "memory bit by bit": "keep = []\nwhile True: keep.append(bytearray(1024**2))",
}
BY_ITSELF = {
    "a limit on CPU time",
    "half a gigabyte too much",
    "memory bit by bit",
}  # ends, if the machine has time for it


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox({"memory": 1024 * MIB, "limits": LIMITS}) as made:
        assert made.run_code(ALIVE, timeout=4 * ENOUGH).ok
        yield made


@pytest.mark.parametrize(("name", "code"), KEPT.items(), ids=KEPT)
def test_a_crash_costs_one_cell(sandbox: Sandbox, name: str, code: str) -> None:
    began = time.monotonic()
    code = f"x = 0; double = None; ticks.clear(); file.close(); del frame\n{code}"
    ended = sandbox.run_code(code, timeout=ENOUGH / 2 if name in BY_ITSELF else TIMEOUT)
    took, after = time.monotonic() - began, sandbox.run_code(CHECK)
    if not after.ok:
        sandbox.run_code(ALIVE, timeout=4 * ENOUGH)  # for the next one
    assert took < ENOUGH
    assert isinstance(ended.error, (Died, TimedOut)), ended.outputs
    assert ended.error.variables == Variables(kept=True, undone=1), ended.error
    assert "; variables are as they were before this code, files are kept." in ended.error.text
    assert after.ok, after.error
    assert not any(isinstance(output, Restarted) for output in after.outputs)


PRINTS = {
    "print that flushes": ("print('last', flush=True)", "last\n", ""),
    "a flush": ("import sys; print('last'); sys.stdout.flush()", "last\n", ""),
    "descriptors": ("import os; os.write(1, b'last'); os.write(2, b'of all')", "last", "of all"),
    "a process": ("import os; os.system('echo last; echo of all >&2')", "last\n", "of all\n"),
    "many lines": ("for i in range(500): print(i, flush=True)", "".join(f"{i}\n" for i in range(500)), ""),
    "as much as a pipe holds": ("import os; os.write(1, b'x' * 30_000 + b'last')", "x" * 30_000 + "last", ""),
}
ENDS = {
    "a segmentation fault": "import ctypes; ctypes.string_at(0)",
    "os._exit": "import os; os._exit(3)",
    "SIGKILL": "import os; os.kill(os.getpid(), 9)",
}


@pytest.fixture(scope="module", params=["sockets", "stdio"])
def printing(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox({"limits": LIMITS, "transport": request.param}) as made:
        made.run_code("first = 1")
        yield made


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
@pytest.mark.parametrize(("prints", "stdout", "stderr"), PRINTS.values(), ids=PRINTS.keys())
def test_what_was_flushed_before_a_crash_arrives(
    printing: Sandbox, prints: str, stdout: str, stderr: str, end: str
) -> None:
    ended = printing.run_code(f"{prints}\n{end}")
    assert isinstance(ended.error, Died), ended.outputs
    assert (ended.stdout, ended.stderr) == (stdout, stderr)


def test_what_was_flushed_in_a_fork_before_a_crash_arrives(printing: Sandbox) -> None:
    with printing.fork() as fork:
        for _ in range(2):
            ended = fork.run_code("import os; print('one', flush=True); os.write(1, b'two\\n'); os._exit(1)")
            assert isinstance(ended.error, Died), ended.outputs
            assert ended.stdout == "one\ntwo\n"


def test_what_a_pipe_held_beyond_the_bound_is_told_as_lost(printing: Sandbox) -> None:
    code = "import fcntl, os; fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20); os.write(1, bytes(1 << 19)); os._exit(1)"
    ended = printing.run_code(code)
    assert ended.stdout.endswith(LEFT_OUT)


@pytest.mark.parametrize("place", ["the sandbox", "a fork"])
def test_a_system_call_of_another_abi_ends_the_kernel_and_is_named(printing: Sandbox, place: str) -> None:
    with printing.fork() as fork:
        used = fork if place == "a fork" else printing
        ended = used.run_code("import ctypes; ctypes.CDLL(None).syscall(0x40000001)", timeout=ENOUGH)
        assert isinstance(ended.error, Died), ended.outputs
        assert ended.error.reason == "it was killed by signal 31 (SIGSYS)"
        assert ended.error.variables.kept


def test_after_a_fork_bomb_the_variables_are_there_or_told_as_lost() -> None:
    with Sandbox({"limits": LIMITS, "pids": 64}) as sandbox:
        assert sandbox.run_code("x = 1").ok
        bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
        error = sandbox.run_code(bomb, timeout=TIMEOUT).error
        assert isinstance(error, (Died, TimedOut))
        after = sandbox.run_code("'x' in globals()")
        assert after.value is error.variables.kept  # it may take too long to end so many processes
        assert any(isinstance(output, Restarted) for output in after.outputs) is not error.variables.kept
