"""Cells on a plain process: they find what a notebook's cells find, though most of them take a shorter way."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_tools import Sandbox
from agent_tools.results.execution import Died, Display, Error, Result, Stream, TimedOut
from agent_tools.results.variables import Variables
from agent_tools.runtime.kernel.channel import KernelChannel
from agent_tools.runtime.kernel.protocol import KernelMessage
from agent_tools.runtime.runtime import Runtime
from agent_tools.runtime.sandbox.sandbox import LiveSandbox

SYS_EXIT = 60 if platform.machine() == "x86_64" else 93  # of one thread, exit(2)


@pytest.fixture
def sandbox(process_runtime: Runtime) -> Iterator[Sandbox]:
    with Sandbox(runtime=process_runtime) as sandbox:
        sandbox.run_code("import asyncio")
        yield sandbox


def error_of(sandbox: Sandbox, code: str) -> tuple[str, str]:
    error = sandbox.run_code(code).error
    assert isinstance(error, Error)
    return error.name, error.value


# -- the event loop ---------------------------------------------------------------------------------------------------


def test_the_loop_runs_for_code_that_does_not_await(sandbox: Sandbox) -> None:
    assert sandbox.run_code("asyncio.get_event_loop().is_running()").value is True
    assert sandbox.run_code("asyncio.get_event_loop().run_until_complete(asyncio.sleep(0, 7))").value == 7


MEDDLING = {
    "stop": "loop.stop()",
    "stop for ever": "loop.stop(); loop.call_soon(loop.stop); loop.call_later(0.001, meddle)",
    "close": "loop.close()",
    "exit": "sys.exit(3)",
    "interrupt": "raise KeyboardInterrupt",
    "cancel all tasks": "[each.cancel() for each in asyncio.all_tasks(loop)]",
    "exit in a task": "task = asyncio.ensure_future(leave(), loop=loop)",
    "exit in the handler of errors": "loop.set_exception_handler(lambda *_: sys.exit(3)); 1 / 0",
    "run in a thread": "threading.Thread(target=loop.run_forever).start()",
}
MOMENTS = {
    "in the cell": "with contextlib.suppress(BaseException): meddle()",
    "at once": "loop.call_soon(meddle)",
    "later": "loop.call_later(0.01, meddle)",
    "from a thread": "threading.Timer(0.01, loop.call_soon_threadsafe, [meddle]).start()",
    "while a cell awaits": "loop.call_soon(meddle)\nawait asyncio.sleep(0.01)",
}


@pytest.mark.parametrize("meddling", MEDDLING)
def test_what_code_does_to_the_loop_costs_no_variables(sandbox: Sandbox, meddling: str) -> None:
    sandbox.run_code("import contextlib, os, sys, threading\nloop, pid = asyncio.get_event_loop(), os.getpid()")
    sandbox.run_code("async def leave(): sys.exit(3)")
    sandbox.run_code(f"def meddle():\n    global is_done, task\n    is_done = True\n    {MEDDLING[meddling]}")
    for moment, code in MOMENTS.items():
        sandbox.run_code(f"is_done = False\n{code}")
        while sandbox.run_code("is_done").value is False:
            pass
        for await_ in ("await asyncio.sleep(0.06)", ""):
            assert sandbox.run_code(f"{await_}\nos.getpid() == pid").value is True, moment


@pytest.mark.parametrize("use", ["", "asyncio.get_event_loop().call_soon(print)"])
def test_an_error_of_a_signals_handler_between_calls_costs_no_variables(
    sandbox: Sandbox, use: str, tmp_path: Path
) -> None:
    sandbox.run_code("import os, pathlib, signal, sys, threading, time\npid = os.getpid()")
    sandbox.run_code(
        f"def handle(*_):\n    pathlib.Path({str(tmp_path / 'handled')!r}).touch()\n    sys.exit(3)\n"
        "def kill():\n"
        "    main, old = threading.main_thread().ident, None\n"
        "    while (at := sys._current_frames()[main]) is not old or at.f_code.co_name not in ('_await', 'select'):\n"
        "        old = at\n"
        "        time.sleep(0.2)  # longer than the wait for a pause before a copy is taken\n"
        "    os.kill(pid, signal.SIGUSR1)\n"
        f"signal.signal(signal.SIGUSR1, handle)\nthreading.Thread(target=kill).start()\n{use}"
    )
    while not (tmp_path / "handled").exists():
        pass
    assert sandbox.run_code("os.getpid() == pid").value is True


def test_an_error_of_a_signals_handler_ends_the_cell_that_awaits(sandbox: Sandbox) -> None:
    sandbox.run_code(
        "import signal\ndef handle(*_): raise TimeoutError('time is up')\nsignal.signal(signal.SIGALRM, handle)"
    )
    name, value = error_of(sandbox, "signal.setitimer(signal.ITIMER_REAL, 0.01)\nawait asyncio.sleep(60)")
    assert (name, value) == ("CancelledError", "TimeoutError('time is up')")


@pytest.mark.parametrize(
    "use",
    [
        "threading.Timer(0.01, loop.call_soon_threadsafe, [touch]).start()",
        "loop.add_signal_handler(signal.SIGUSR1, touch)\n"
        "threading.Timer(0.01, os.kill, [os.getpid(), signal.SIGUSR1]).start()",
    ],
    ids=["a thread", "a signal"],
)
def test_the_loop_runs_between_calls_once_something_uses_it(sandbox: Sandbox, use: str, tmp_path: Path) -> None:
    sandbox.run_code("import os, pathlib, signal, threading\nloop = asyncio.get_event_loop()")
    sandbox.run_code(f"touch = pathlib.Path({str(tmp_path / 'done')!r}).touch\n{use}")
    while not (tmp_path / "done").exists():
        pass


def test_an_await_that_a_transformer_writes_is_awaited(sandbox: Sandbox) -> None:
    sandbox.run_code(
        "def wait(lines): return ['await ' + line if line.startswith('later') else line for line in lines]"
    )
    sandbox.run_code("get_ipython().input_transformers_post.append(wait)\nlater = asyncio.sleep")
    assert sandbox.run_code("later(0, 5)").value == 5
    sandbox.run_code("get_ipython().input_transformers_post.remove(wait)")


def test_what_a_task_of_an_earlier_cell_shows_is_seen_in_the_call_that_runs(sandbox: Sandbox) -> None:
    sandbox.run_code(
        "async def show():\n    await asyncio.sleep(0.05)\n    print('text')\n    display('picture')\n"
        "task = asyncio.create_task(show())"
    )
    assert sandbox.run_code("await task\nprint('end')").outputs == (
        Stream("stdout", "text\n"),
        Display({"text/plain": "'picture'"}),
        Stream("stdout", "end\n"),
    )


# -- errors that are shown --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shown",
    [
        "try:\n    1 / 0\nexcept Exception:\n    get_ipython().showtraceback()",
        "class A:\n    def _repr_html_(self): 1 / 0\ndisplay(A())",
    ],
    ids=["by code", "by a display"],
)
def test_an_error_that_does_not_end_the_code_is_text_in_its_place(sandbox: Sandbox, shown: str) -> None:
    done = sandbox.run_code(f"print('before')\n{shown}\nprint('after')")
    assert done.ok
    texts = [each.text for each in done.outputs if isinstance(each, Stream)]
    assert (texts[0], texts[-1]) == ("before\n", "after\n")
    assert "ZeroDivisionError: division by zero" in "".join(texts[1:-1])


WITHIN = {
    "capture": "%%capture\n{}",
    "capture into a name": "%%capture taken\n{}",
    "timed": "%%time\n%%capture\n{}",
    "captured by code": "from IPython.utils.capture import capture_output\n"
    "with capture_output():\n    get_ipython().run_cell({!r})",
    "by code": "get_ipython().run_cell({!r})",
    "rerun": "%rerun -g raise_it",
}
FAILING = {
    "ZeroDivisionError": "1 / 0",
    "ModuleNotFoundError": "import no_such_module",
    "SyntaxError": "x = = 3",
    "SystemExit": "import sys; sys.exit(3)",
}


@pytest.mark.parametrize("within", WITHIN)
def test_the_error_of_a_cell_within_a_cell_is_the_error_of_the_run(sandbox: Sandbox, within: str) -> None:
    for name, failing in FAILING.items():
        sandbox.run_code(f"'raise_it'\n{failing}")
        done = sandbox.run_code(WITHIN[within].format(f"print('captured')\n{failing}"))
        assert isinstance(done.error, Error), (name, done)
        assert done.error.name == name
        assert ("captured\n" in done.stdout) == (within == "by code" and name != "SyntaxError")
    if within == "capture into a name":
        assert sandbox.run_code("taken.stdout").value == "captured\n"


RUNS = {
    "%run bad.py": "ValueError",
    "%run -i bad.py": "ValueError",
    "%run -t bad.py": "ValueError",
    "%run -p bad.py": "ValueError",
    "%run -m bad": "ValueError",
    "%run bad.ipy": "ValueError",
    "%run exits.py": "SystemExit",
    "%run -m exits": "SystemExit",
    "%run -e exits.py": "",
    "%run leaves.py": "",
    "%run shows.py": "",
}


def test_a_file_that_fails_ends_the_cell_that_runs_it_with_its_error(sandbox: Sandbox) -> None:
    sandbox.write_file("bad.py", "kept = 5\nraise ValueError(1)")
    sandbox.write_file("bad.ipy", "x = !echo 1\nraise ValueError(1)")
    sandbox.write_file("exits.py", "import sys; sys.exit(3)")
    sandbox.write_file("leaves.py", "import sys; sys.exit(0)")
    sandbox.write_file("shows.py", "try:\n    1 / 0\nexcept Exception:\n    get_ipython().showtraceback()")
    for line, name in RUNS.items():
        done = sandbox.run_code(f"{line}\nprint('went on')")
        assert (getattr(done.error, "name", ""), "went on" in done.stdout) == (name, not name), line
        assert done.stderr.count("ValueError: 1") == 0, line
    sandbox.run_code("%run bad.py")
    assert sandbox.run_code("kept").value == 5


def test_an_error_in_showing_the_result_ends_the_code(sandbox: Sandbox) -> None:
    sandbox.run_code("class A:\n    def __repr__(self): 1 / 0")
    assert error_of(sandbox, "A()")[0] == "ZeroDivisionError"


def test_an_error_that_cannot_be_told_is_told_with_its_place(sandbox: Sandbox) -> None:
    done = sandbox.run_code("class E(Exception):\n    def __str__(self): raise ValueError('in str')\nraise E")
    assert isinstance(done.error, Error)
    assert "----> 3 raise E" in done.error.traceback
    assert done.stderr == ""


def test_an_error_is_formatted_once(sandbox: Sandbox) -> None:
    sandbox.run_code("shown = []\nclass E(Exception):\n    def _render_traceback_(_): return shown.append(1) or ['E']")
    sandbox.run_code("raise E")
    assert sandbox.run_code("shown").value == [1]


# -- names and texts --------------------------------------------------------------------------------------------------


def test_a_well_known_name_that_a_cell_defines_is_not_imported(sandbox: Sandbox) -> None:
    sandbox.run_code("def solve(n): return 0 if n == 0 else solve(n - 1)\nsymbols = ['A']\nfrom math import pi as Eq")
    assert sandbox.run_code("import sys; 'sympy' in sys.modules").value is False
    assert sandbox.run_code("math.floor(Eq)").value == 3


def test_a_well_known_name_brings_no_warning_of_its_own(sandbox: Sandbox) -> None:
    assert sandbox.run_code("x = 1 is 1; math.e").stderr.count("SyntaxWarning") == 1


def test_a_text_is_transformed_anew_where_it_may_mean_something_else(sandbox: Sandbox) -> None:
    code = "shell = get_ipython()\nshell.run_cell(c := 'ls')\nls = 5\nshell.run_cell(c)\nNone"
    assert Result({"text/plain": "5"}) in sandbox.run_code(code).outputs


def test_what_code_puts_into_a_module_does_not_stop_later_cells(sandbox: Sandbox) -> None:
    sandbox.run_code("import hashlib, tempfile\nkept = hashlib.sha1, tempfile.gettempdir")
    sandbox.run_code("hashlib.sha1 = tempfile.gettempdir = None")
    assert sandbox.run_code("hashlib.sha1, tempfile.gettempdir = kept\n1").value == 1


def test_a_thread_may_run_a_cell(sandbox: Sandbox) -> None:
    code = "import threading\nthread = threading.Thread(target=lambda: get_ipython().run_cell('print(1)'))\n"
    done = sandbox.run_code(f"{code}thread.start()\nthread.join()")
    assert (done.ok, done.stdout, done.stderr) == (True, "1\n", "")


@pytest.mark.parametrize("code", [0, 3])
def test_the_status_of_a_first_thread_that_ends_before_the_others_is_told(sandbox: Sandbox, code: int) -> None:
    sandbox.run_code("import ctypes, os, threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()")
    ended = sandbox.run_code(f"ctypes.CDLL(None).syscall({SYS_EXIT}, {code})", timeout=60).error
    assert isinstance(ended, Died)
    assert ended.reason == f"its process exited with code {code}"


# -- variables --------------------------------------------------------------------------------------------------------


def test_one_that_ends_the_process_that_saves_it_costs_itself_alone(sandbox: Sandbox) -> None:
    sandbox.run_code("import os\nclass Ends:\n    def __reduce__(self): os._exit(3)\na, ends, z = 1, Ends(), 2")
    report = sandbox.save(variables=True).variables
    assert {"a", "z"} <= set(report.kept)
    assert [(each.name, "exit code 3" in each.reason) for each in report.missing if each.name == "ends"] == [
        ("ends", True)
    ]


def test_names_that_are_no_text_are_passed_over(sandbox: Sandbox) -> None:
    sandbox.run_code("globals()[5] = 7\nx = 1")
    assert "x" in sandbox.save(variables=True).variables.kept
    sandbox.run_code("del globals()[5]")


# -- interrupts -------------------------------------------------------------------------------------------------------

SLEEP = "import time; time.sleep(60)"
SLEEPING = (
    "!sleep 60",
    "!sleep 60 | cat",
    "x = !sleep 60",
    "!!sleep 60",
    "%sx sleep 60",
    "%alias doze sleep 60\n%doze",
    "%run slow.py",
    "%run -m slow",
    "%run slow.ipy",
    "%run slow.ipynb",
    "%rerun -g of_a_minute",
    f"get_ipython().run_cell({SLEEP!r})",
    "get_ipython().run_cell('!sleep 60')",
    f"from IPython.utils.capture import capture_output\nwith capture_output():\n    get_ipython().run_cell({SLEEP!r})",
    "await asyncio.sleep(0)\n!sleep 60",
    f"await asyncio.sleep(0)\nget_ipython().run_cell({SLEEP!r})",
)


@pytest.mark.parametrize("stopped_by", ["limit", "interrupt"])
def test_an_interrupt_ends_the_cell_whatever_it_waits_for(sandbox: Sandbox, stopped_by: str) -> None:
    sandbox.write_file("slow.py", SLEEP)
    sandbox.write_file("slow.ipy", "!sleep 60\nprint('went on')")
    cells = [{"cell_type": "code", "source": ["!sleep 60\n", "1"]}, {"cell_type": "code", "source": "print('went on')"}]
    sandbox.write_file("slow.ipynb", json.dumps({"cells": cells}))
    sandbox.run_code(f"'of_a_minute'\n{SLEEP}", timeout=0.2)
    sandbox.run_code("%alias")  # loads the module of this magic, which an interrupt would break off
    for code in SLEEPING:
        if stopped_by == "interrupt":
            outputs = sandbox.stream(f"print('begun', flush=True)\n{code}\nprint('went on')")
            seen = [next(outputs)]
            sandbox.interrupt()
            seen += outputs
        else:
            seen = list(sandbox.stream(f"{code}\nprint('went on')", timeout=0.5))
        assert "went on" not in "".join(each.text for each in seen if isinstance(each, Stream)), code
        ends = [each for each in seen if isinstance(each, (Error, TimedOut))]
        kind = "TimedOut" if stopped_by == "limit" else "Error"
        assert [type(each).__name__ for each in ends] == [kind], (code, seen)
        assert getattr(ends[0], "name", "") in ("", "KeyboardInterrupt", "CancelledError"), code
    assert sandbox.run_code("_exit_code").value == -2


def test_code_that_swallows_its_interrupt_is_reported_as_interrupted(sandbox: Sandbox) -> None:
    swallowing = "import time\ntry:\n    print('begun', flush=True)\n    time.sleep(60)\nexcept BaseException: {}"
    for handling in ("pass", "raise ValueError(1)"):
        done = sandbox.run_code(swallowing.format(handling), timeout=0.5)
        assert isinstance(done.error, TimedOut)
        assert done.error.state_kept
        assert ("ValueError: 1" in done.error.where) == (handling != "pass")
    outputs = sandbox.stream(swallowing.format("print('went on')"))
    next(outputs)
    sandbox.interrupt()
    text, error = outputs
    assert (text, getattr(error, "name", "")) == (Stream("stdout", "went on\n"), "KeyboardInterrupt")


MEETING = {
    "a step of asyncio.run": "def call_soon(*given, **named):\n"
    "    loop.call_soon = stock\n    signal.raise_signal(signal.SIGINT)\n    return stock(*given, **named)\n"
    "async def main():\n    global loop, stock\n    loop = asyncio.get_running_loop()\n"
    "    stock, loop.call_soon = loop.call_soon, call_soon\n    await asyncio.sleep(0)\nasyncio.run(main())",
    "a finalizer": "class A:\n    def __del__(_): signal.raise_signal(signal.SIGINT)\na = A()\ndel a\ntime.sleep(60)",
    "a finalizer between two statements": "class A:\n    def __del__(_): signal.raise_signal(signal.SIGINT)\nA()\n"
    + "0\n" * 2_000,
    "a callback of IPython": "shell = get_ipython()\ndef stop():\n    shell.events.unregister('post_execute', stop)\n"
    "    signal.raise_signal(signal.SIGINT)\nshell.events.register('post_execute', stop)\nshell.run_cell('1')",
    "a callback of IPython before a cell": "shell = get_ipython()\ndef stop():\n"
    "    shell.events.unregister('pre_execute', stop)\n    signal.raise_signal(signal.SIGINT)\n"
    "shell.events.register('pre_execute', stop)\nshell.run_cell('time.sleep(60)')",
    "the loop, before code that does not await": "asyncio.get_running_loop().call_soon(signal.raise_signal, "
    "signal.SIGINT)\nawait asyncio.sleep(0)\ntime.sleep(60)",
    "a library's cleanup": "import json\ntry:\n    signal.raise_signal(signal.SIGINT)\nfinally:\n    json.loads('')",
}


@pytest.mark.parametrize("met", MEETING)
def test_an_interrupt_ends_the_cell_whatever_it_meets(sandbox: Sandbox, met: str) -> None:
    done = sandbox.run_code(f"import signal, time\n{MEETING[met]}\nprint('went on')", timeout=20)
    assert isinstance(done.error, Error), done
    assert done.error.name in ("KeyboardInterrupt", "CancelledError")
    assert "went on" not in done.stdout
    assert sandbox.run_code("1").value == 1


def test_an_interrupt_between_a_change_of_the_streams_and_its_undoing_loses_no_later_output(sandbox: Sandbox) -> None:
    sandbox.run_code(
        "import io, signal, sys\nfrom IPython.core.displaypub import CapturingDisplayPublisher\nshell = get_ipython()"
    )
    half = "sys.stdout = sys.stderr = io.StringIO()\nshell.display_pub = CapturingDisplayPublisher()\n"
    assert error_of(sandbox, f"{half}signal.raise_signal(signal.SIGINT)")[0] == "KeyboardInterrupt"
    done = sandbox.run_code("print(1); print(2, file=sys.stderr); display(3)")
    assert (done.stdout, done.stderr, done.outputs[-1]) == ("1\n", "2\n", Display({"text/plain": "3"}))


def test_code_that_awaits_is_cancelled_once_and_may_clean_up(sandbox: Sandbox) -> None:
    code = "try:\n    print('begun', flush=True)\n    await asyncio.sleep(60)\nfinally:\n"
    outputs = sandbox.stream(f"{code}    import time\n    time.sleep(0.2)\n    print('cleaned')")
    next(outputs)
    sandbox.interrupt()
    text, error = outputs
    assert (text, getattr(error, "name", "")) == (Stream("stdout", "cleaned\n"), "CancelledError")


def test_the_limit_holds_after_a_cell_within_the_cell(process_runtime: Runtime) -> None:
    with Sandbox({"limits": {"interrupt_grace": 30}}, runtime=process_runtime) as sandbox:
        done = sandbox.run_code("get_ipython().run_cell('1')\nwhile True: pass", timeout=0.3)
        assert isinstance(done.error, TimedOut)
        assert done.duration < 20, "PID 1 had to end it"


def test_work_of_an_earlier_cells_pool_ends_with_the_cell_that_waits_for_it(sandbox: Sandbox) -> None:
    sandbox.run_code(
        "import multiprocessing, time\npool, other = [multiprocessing.get_context('fork').Pool(1) for _ in '12']"
    )
    sandbox.run_code("job = other.apply_async(time.sleep, [600])")
    done = sandbox.run_code("workers = list(pool._pool)\npool.map(time.sleep, [600, 600])", timeout=1)
    assert isinstance(done.error, TimedOut)
    assert done.error.state_kept
    alive = "[each.join(20) for each in workers]\n[each.is_alive() for each in workers + other._pool]"
    assert sandbox.run_code(alive, timeout=30).value == [False, True]
    assert error_of(sandbox, "pool.map(abs, [1])")[0] == "ValueError"
    sandbox.run_code("other.terminate()")


def test_an_interrupt_while_a_pool_is_made_leaves_no_half_of_one(sandbox: Sandbox) -> None:
    sandbox.run_code(
        "import multiprocessing, signal, threading\nstart = threading.Thread.start\ndef interrupted(thread):\n"
        "    start(thread)\n    if 'tasks' in thread.name: signal.raise_signal(signal.SIGINT)\n"
        "threading.Thread.start = interrupted"
    )
    done = sandbox.run_code("pool = multiprocessing.get_context('fork').Pool(2)\nprint('went on')")
    assert (getattr(done.error, "name", ""), done.stdout) == ("KeyboardInterrupt", "")
    threads = "any('_handle' in thread.name for thread in threading.enumerate())"  # they end soon
    ended = f"import time\nwhile {threads}: time.sleep(0.01)\n"
    left = sandbox.run_code(f"{ended}len(multiprocessing.active_children())", timeout=20)
    assert (left.value, left.notes) == (0, ())


def test_an_idle_pool_whose_workers_an_interrupt_has_ended_can_be_dropped(sandbox: Sandbox) -> None:
    cell = "import gc, multiprocessing, time\npool = multiprocessing.get_context('fork').Pool(2)\npool.map(int, '12')\n"
    sandbox.run_code(f"{cell}time.sleep(60)", timeout=1)
    assert sandbox.run_code("del pool; gc.collect(); 1", timeout=20).value == 1


def test_an_interrupted_script_leaves_no_words_for_a_later_cell(sandbox: Sandbox) -> None:
    sandbox.run_code("%%bash\nsleep 61 & sleep 60", timeout=0.5)
    assert [sandbox.run_code("import gc; gc.collect()").stderr for _ in range(3)] == [""] * 3


# -- context variables ------------------------------------------------------------------------------------------------

SETTINGS = "decimal.setcontext(decimal.Context(prec=5)); variable.set('set')"
READ = "str(decimal.Decimal(1) / 3), variable.get()"


def test_what_a_cell_sets_in_its_context_holds_for_the_next_ones(sandbox: Sandbox) -> None:
    sandbox.run_code("import contextvars, decimal, os\nvariable = contextvars.ContextVar('variable')")
    sandbox.run_code(f"await asyncio.sleep(0)\n{SETTINGS}")
    assert sandbox.run_code(READ).value == ("0.33333", "set")
    assert sandbox.run_code(f"await asyncio.sleep(0)\n{READ}").value == ("0.33333", "set")
    sandbox.run_code("decimal.getcontext().prec = 7; variable.set('again')")
    assert sandbox.run_code(f"await asyncio.sleep(0)\n{READ}").value == ("0.3333333", "again")
    sandbox.checkpoint()
    sandbox.run_code("variable.set('undone')")
    sandbox.undo()
    assert sandbox.run_code(READ).value == ("0.3333333", "again")
    with sandbox.fork() as fork:
        assert fork.run_code(f"await asyncio.sleep(0)\n{READ}").value == ("0.3333333", "again")
    sandbox.run_code("os._exit(1)")
    assert sandbox.run_code(READ).value == ("0.3333333", "again")


# -- scripts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("magic", ["%%bash", "%%script sh"])
def test_a_script_that_takes_too_long_is_timed_out_like_any_code(sandbox: Sandbox, magic: str) -> None:
    sandbox.run_code("x = 5")
    done = sandbox.run_code(f"{magic}\nsleep 60", timeout=0.5)
    assert [each.state_kept for each in done.outputs if isinstance(each, TimedOut)] == [True]
    assert sandbox.run_code("x").value == 5


def test_a_script_that_fails_is_told_by_its_exit_code(sandbox: Sandbox) -> None:
    name, value = error_of(sandbox, "%%bash\nexit 3")
    assert name == "CalledProcessError"
    assert "exit status 3" in value


# -- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limits", "is_kept"), [({}, True), ({"restart_timeout": 2}, False)])
def test_a_checkpoint_that_is_slow_to_go_on_after_a_crash_is_not_given_up(
    process_runtime: Runtime, monkeypatch: pytest.MonkeyPatch, limits: dict[str, float], is_kept: bool
) -> None:
    await_kernel = KernelChannel.await_kernel

    def await_kernel_late(channel: KernelChannel, deadline: float, **options: bool) -> KernelMessage:
        time.sleep(2.5)  # as on a busy machine
        return await_kernel(channel, deadline, **options)

    with Sandbox({"limits": limits}, runtime=process_runtime) as sandbox:
        sandbox.run_code("import os; x = 1")
        with monkeypatch.context() as patch:
            patch.setattr(KernelChannel, "await_kernel", await_kernel_late)
            died = sandbox.run_code("os.kill(os.getpid(), 9)").error
        assert isinstance(died, Died)
        assert died.variables.kept is is_kept
        assert sandbox.run_code("x").value == 1


@pytest.mark.parametrize(("timeout", "most"), [(1, 3), (60, 10)])
def test_a_checkpoint_is_not_waited_for_beyond_the_time_limit(
    process_runtime: Runtime, monkeypatch: pytest.MonkeyPatch, timeout: float, most: float
) -> None:
    waits: list[float] = []
    wake_kernel = LiveSandbox.wake_kernel

    def wake_kernel_in(sandbox: LiveSandbox, seconds: float) -> Variables:
        waits.append(seconds)
        return wake_kernel(sandbox, seconds)

    monkeypatch.setattr(LiveSandbox, "wake_kernel", wake_kernel_in)
    with Sandbox(runtime=process_runtime) as sandbox:
        sandbox.run_code("import os")
        assert isinstance(sandbox.run_code("os.kill(os.getpid(), 9)", timeout=timeout).error, Died)
    assert waits == [pytest.approx(most, abs=1)]


def test_what_the_caller_asks_for_does_not_hurry_as_the_replacement_of_a_crashed_kernel_does(
    process_runtime: Runtime,
) -> None:
    with Sandbox({"limits": {"restart_timeout": 0.001}}, runtime=process_runtime) as sandbox:
        sandbox.run_code("x = 1")
        saved = sandbox.checkpoint()
        sandbox.run_code("x = 2")
        sandbox.undo()
        assert sandbox.run_code("x").value == 1
        sandbox.run_code("x = 3")
        sandbox.rollback(saved)
        with sandbox.fork() as branch:
            assert branch.run_code("x").value == 1


def test_the_answer_names_once_what_keeps_checkpoints_from_being_taken(sandbox: Sandbox) -> None:
    blocks = "no checkpoint is taken: a crash would undo this call and those after it."
    begun = sandbox.run_code("import subprocess, threading\nprogram = subprocess.Popen(['sleep', '600'])").notes
    assert [note.partition(" (pid ")[0] for note in begun] == ["Still running: sleep 600"]
    assert begun[0].endswith(blocks)
    assert sandbox.run_code("1").notes == ()
    begun = sandbox.run_code("ends = threading.Event()\nthreading.Thread(target=ends.wait, name='job').start()").notes
    assert begun == (f"Still running: thread 'job'. Until it ends, {blocks}",)
    assert sandbox.run_code("1 / 0").notes == ()
    assert sandbox.run_code("ends.set(); program.kill(); program.wait()").notes == ()
    idle = (
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\npool.submit(len, '').result()"
    )
    sandbox.run_code(idle)
    assert sandbox.run_code("1").notes == (), "a pool that waits for work keeps nothing up"


def test_undo_leads_back_to_before_the_last_call_for_the_first_eight_quick_ones_and_ever_after(
    sandbox: Sandbox,
) -> None:
    for number in range(7):  # the fixture has made one call
        sandbox.run_code(f"x = {number}")
    sandbox.undo()
    assert sandbox.run_code("x").value == 5
    for number in range(20):
        sandbox.run_code(f"x = {number}")
    sandbox.undo()
    assert sandbox.run_code("x").value == 18
