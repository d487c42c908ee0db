"""One suite for a session on every engine we have: the real one, and the process double."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from agent_tools.engines.engine import Engine, Isolation
from agent_tools.errors import KernelDied, SessionBusy, SessionClosed
from agent_tools.limits import MIB, Limits
from agent_tools.machine.owner import Owner
from agent_tools.machine.private_folder import private_base
from agent_tools.machine.removal import empty_folder
from agent_tools.results.execution import Died, Display, Error, Notice, Output, Restarted, Result, Stream, TimedOut
from agent_tools.runtime.files.work_dir import prepare_work_dir
from agent_tools.runtime.kernel.kernel import Kernel
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.runtime.session.session import Session
from agent_tools.runtime.transport.transport import TransportName
from agent_tools.tools.markdown import markdown
from tests.contract.images import image_of
from tests.waiting import until

pytestmark = pytest.mark.docker
BACKGROUND = "Printed by background code since the previous call:\n"
PATIENCE = 3.0  # seconds a call may take beyond its time limit
SMALL = {
    "max_text_chars": 1000,
    "max_message_bytes": 1_000_000,
    "interrupt_grace": 20.0,
}  # for one sandbox, used by all


def make_session(engine: Engine, transport: TransportName, work_dir: Path, **limits: float) -> Session:
    path = prepare_work_dir(work_dir, engine.guest(work_dir))
    return Session(engine, SessionSpec(image_of(engine), path, Isolation(), Limits(**limits), transport))


@pytest.fixture
def new_session(engine: Engine, transport: TransportName, work_dir: Path) -> Iterator[Callable[..., Session]]:
    sessions: list[Session] = []

    def make(**limits: float) -> Session:
        sessions.append(make_session(engine, transport, work_dir, **limits))
        return sessions[-1]

    yield make
    for session in sessions:
        session.close()


@pytest.fixture
def own_session(new_session: Callable[..., Session]) -> Session:
    return new_session()


@pytest.fixture(scope="module")
def used_sessions(engine: Engine, transport: TransportName) -> Iterator[Callable[..., Session]]:
    """Sessions that tests have one after another, by their limits: with a fresh kernel and an empty folder."""
    with contextlib.ExitStack() as stack:
        made: dict[frozenset[tuple[str, float]], Session] = {}

        def hand_over(**limits: float) -> Session:
            key = frozenset(limits.items())
            if key not in made:
                path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agent-tools-test-")))
                made[key] = stack.enter_context(contextlib.closing(make_session(engine, transport, path, **limits)))
            made[key].restart()
            empty_folder(made[key].spec.work_dir)
            return made[key]

        yield hand_over


@pytest.fixture
def session(used_sessions: Callable[..., Session]) -> Session:
    return used_sessions()


@pytest.fixture(scope="module")
def shared_session(engine: Engine, transport: TransportName) -> Iterator[Session]:
    """A session for all tests whose code leaves its kernel alive and nothing that another one's could meet."""
    path = Path(tempfile.mkdtemp(prefix="agent-tools-test-"))
    with contextlib.closing(make_session(engine, transport, path)) as session:
        session.run("0", 30)  # what it holds is the fixture's, and not the first test's
        yield session
    shutil.rmtree(path, ignore_errors=True)


def test_outputs_come_as_values_in_order(shared_session: Session) -> None:
    execution = shared_session.run("import sys\nprint('a')\nprint('b', file=sys.stderr)\n40 + 2", 30)
    assert execution.outputs == (Stream("stdout", "a\n"), Stream("stderr", "b\n"), Result({"text/plain": "42"}))


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("print('a\\ud800b')", "a\\ud800b"),
        ("'a\\ud800b'", "a\\ud800b"),
        ("raise ValueError('a\\ud800b')", "ValueError: a\\ud800b"),
        ("import sys\nprint('a\\udc80b', file=sys.stderr)", "a\ufffdb"),
    ],
    ids=["printed", "returned", "raised", "to stderr"],
)
def test_half_a_character_is_shown_as_its_escape(shared_session: Session, code: str, shown: str) -> None:
    told = markdown(shared_session.run(code, 30))
    assert shown in told
    assert shared_session.run("1 + 1", 30).result == Result({"text/plain": "2"})


def test_variables_live_from_run_to_run(shared_session: Session) -> None:
    shared_session.run("x = 20", 30)
    assert shared_session.run("print(x + 1)", 30).stdout == "21\n"


def test_an_exception_is_a_value_with_the_users_line(shared_session: Session) -> None:
    execution = shared_session.run("def f():\n    return 1 / 0\n\nf()", 30)
    assert isinstance(execution.error, Error)
    assert execution.error.name == "ZeroDivisionError"
    assert "line 2, in f()" in execution.error.traceback
    assert "line 4" in execution.error.traceback


def test_a_syntax_error_has_the_true_line(shared_session: Session) -> None:
    error = shared_session.run("x = 1\ndef f(:\n    pass", 30).error
    assert isinstance(error, Error)
    assert "line 2" in error.traceback


def test_frames_of_installed_libraries_are_left_out(shared_session: Session) -> None:
    error = shared_session.run("import json\njson.loads('{')", 30).error
    assert isinstance(error, Error)
    assert "line 2" in error.traceback
    assert "decoder.py" not in error.traceback


def test_exception_groups_are_told_whole(shared_session: Session) -> None:
    error = shared_session.run("raise ExceptionGroup('two', [ValueError(1), KeyError('b')])", 30).error
    assert isinstance(error, Error)
    assert "ValueError: 1" in error.traceback
    assert "Cell In[" in error.traceback


@pytest.mark.parametrize(
    "code",
    [
        "import time\ntime.sleep(60)",
        "while True:\n    pass",
        "import asyncio\nawait asyncio.sleep(60)",
        "import subprocess\nsubprocess.run(['sh', '-c', 'trap \"\" INT; sleep 60'])",
    ],
    ids=["sleep", "loop", "await", "a program that ignores it"],
)
def test_a_time_out_keeps_variables(used_sessions: Callable[..., Session], code: str) -> None:
    session = used_sessions(
        **SMALL
    )  # with its long grace, the code's own alarm ends it, and no second signal comes late
    session.run("x = 1", 30)
    started = time.monotonic()
    ending = session.run(code, 0.5).outputs[-1]
    assert time.monotonic() - started < 0.5 + PATIENCE
    assert isinstance(ending, TimedOut)
    assert ending.state_kept
    assert session.run("x", 30).result == Result({"text/plain": "1"})


STUBBORN = {
    "swallows": "import time\nwhile True:\n    try:\n        time.sleep(1)\n    except BaseException:\n        pass",
    "ignores signals": "import signal, time\n"
    "for s in (signal.SIGALRM, signal.SIGINT):\n    signal.signal(s, signal.SIG_IGN)\ntime.sleep(60)",
    "holds the GIL": "sum(range(10**11))",
    "stops itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
}


@pytest.mark.parametrize("code", STUBBORN.values(), ids=STUBBORN.keys())
def test_code_that_will_not_stop_loses_its_kernel_and_says_so(session: Session, code: str) -> None:
    session.run("x = 1", 30)
    started = time.monotonic()
    ending = session.run(code, 0.5).outputs[-1]
    assert time.monotonic() - started < 0.5 + PATIENCE
    assert isinstance(ending, TimedOut)
    assert not ending.state_kept
    after = session.run("'x' in globals()", 30).outputs
    assert isinstance(after[0], Restarted)
    assert after[1] == Result({"text/plain": "False"})


def test_cancelled_code_that_will_not_stop_is_not_called_too_slow(session: Session) -> None:
    cancelled, code = threading.Event(), "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    outputs = []
    for output in session.stream(f"{code}print('on', flush=True)\nwhile True: pass", 100, cancelled):
        outputs.append(output)
        session.cancel(cancelled)
    assert outputs == [Stream("stdout", "on\n"), Died("its code did not stop when it was interrupted")]


DEATHS = {
    "exit": ("import os\nos._exit(3)", "exited with code 3"),
    "kill": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "signal 9 (SIGKILL)"),
    "segfault": ("import ctypes\nctypes.string_at(0)", "signal 11 (SIGSEGV)"),
    "abort": ("import os\nos.abort()", "signal 6 (SIGABRT)"),
}


@pytest.mark.parametrize(("code", "reason"), DEATHS.values(), ids=DEATHS.keys())
def test_the_kernels_death_is_told_at_once(session: Session, code: str, reason: str) -> None:
    session.run("1", 30)
    started = time.monotonic()
    ending = session.run(code, 30).outputs[-1]
    assert time.monotonic() - started < PATIENCE
    assert isinstance(ending, Died)
    assert reason in ending.reason
    assert session.run("print('alive')", 30).stdout == "alive\n"


def test_a_death_between_runs_is_told_by_the_next(session: Session) -> None:
    session.run("import os, signal, threading\nthreading.Timer(0.1, os._exit, [7]).start()", 30)
    time.sleep(0.6)
    execution = session.run("print('fresh')", 30)
    assert execution.outputs == (Restarted("its process exited with code 7"), Stream("stdout", "fresh\n"))


def test_opening_anew_does_not_keep_back_that_variables_were_lost(session: Session) -> None:
    session.run("import os\nos._exit(7)", 30)
    session.open()
    execution = session.run("print('fresh')", 30)
    assert execution.outputs == (Restarted("its process exited with code 7"), Stream("stdout", "fresh\n"))


def test_a_sandbox_that_was_removed_is_replaced(session: Session, engine: Engine) -> None:
    session.run("x = 1", 30)
    assert session.sandbox
    engine.remove(session.sandbox)
    execution = session.run("print('fresh')", 30)
    if Died("the sandbox ended") in execution.outputs:  # what is noticed only once the code is sent ends that run
        execution = session.run("print('fresh')", 30)
    assert isinstance(execution.outputs[0], Restarted)
    assert execution.stdout == "fresh\n"


def test_a_sandbox_removed_in_mid_run_ends_the_run(session: Session, engine: Engine) -> None:
    session.run("1", 30)
    assert session.sandbox
    threading.Timer(0.3, engine.remove, [session.sandbox]).start()
    started = time.monotonic()
    outputs = session.run("import time\ntime.sleep(60)", 60).outputs
    assert time.monotonic() - started < PATIENCE
    assert any(isinstance(output, Died) for output in outputs)  # a remote engine tells of lost files, too


def test_outputs_stream_while_the_code_runs(shared_session: Session) -> None:
    stream = shared_session.stream("import time\nprint('first\\n', end='', flush=True)\ntime.sleep(60)", 30)
    assert next(stream) == Stream("stdout", "first\n")
    stream.close()
    assert shared_session.run("print('usable')", 30).stdout == "usable\n"


def test_closing_a_stream_interrupts_the_code_and_keeps_variables(shared_session: Session) -> None:
    stream = shared_session.stream("x = 5\nprint('on', flush=True)\nimport time\ntime.sleep(60)", 30)
    next(stream)
    stream.close()
    assert shared_session.run("x", 30).result == Result({"text/plain": "5"})


def test_interrupt_stops_the_code_and_keeps_variables(shared_session: Session) -> None:
    shared_session.run("x = 1", 30)
    threading.Timer(0.3, shared_session.interrupt).start()
    error = shared_session.run("import time\ntime.sleep(60)", 30).error
    assert isinstance(error, Error)
    assert error.name == "KeyboardInterrupt"
    assert shared_session.run("x", 30).result == Result({"text/plain": "1"})


def test_interrupt_with_nothing_running_is_harmless(own_session: Session) -> None:
    own_session.interrupt()
    own_session.run("x = 1", 30)
    for _ in range(30):  # the next run is armed before PID 1 hears of the interrupt
        own_session.interrupt()
        assert own_session.run("x", 30).outputs == (Result({"text/plain": "1"}),)


@pytest.mark.parametrize("code", ["x", "import asyncio\nawait asyncio.sleep(0)\nx"], ids=["plain", "await"])
def test_an_interrupt_at_any_moment_costs_no_reply_and_no_variable(session: Session, code: str) -> None:
    session.run("x = 1", 30)
    for step in range(40):
        timer = threading.Timer(step * 0.0002, session.interrupt)
        timer.start()
        ending = session.run(code, 30).error
        timer.join()
        assert ending is None or (isinstance(ending, Error) and ending.name in ("KeyboardInterrupt", "CancelledError"))
    assert session.run("x", 30).outputs == (Result({"text/plain": "1"}),)


def test_an_interrupt_that_breaks_the_cleanup_of_the_printer_ends_the_cell_as_an_interrupt(session: Session) -> None:
    code = """
import signal, sys
from IPython.lib.pretty import GroupQueue
def interrupt(frame, event, _):
    if event == "call" and frame.f_code is GroupQueue.enq.__code__ and frame.f_locals["group"].depth == 2:
        signal.raise_signal(signal.SIGINT)  # its caller's `finally` then looks for a group that is not there
sys.setprofile(interrupt)
1
"""
    error = session.run(code, 30).error
    assert isinstance(error, Error)
    assert error.name == "KeyboardInterrupt"
    assert "IndexError" not in error.traceback


def test_restart_forgets_variables_and_keeps_files(session: Session) -> None:
    session.run("x = 1\nopen('kept.txt', 'w').write('here')", 30)
    session.restart()
    session.restart()
    execution = session.run("print('x' in globals(), open('kept.txt').read())", 30)
    assert execution.stdout == "False here\n"


def test_a_cancel_as_early_as_can_be_interrupts_and_kills_nothing(shared_session: Session) -> None:
    for step in range(30):
        shared_session.run("kept = 1", 30)
        cancelled = threading.Event()
        timer = threading.Timer(step * 0.0002, shared_session.cancel, [cancelled])
        timer.start()
        outputs = shared_session.run("while True: pass", 30, cancelled).outputs
        timer.join()
        assert not [output for output in outputs if isinstance(output, Died)]
    assert shared_session.run("kept", 30).result == Result({"text/plain": "1"})


@pytest.mark.parametrize(("how", "reason"), [("restart", "it was restarted"), ("reset", "it was reset")])
def test_running_code_is_ended_and_told_that_its_variables_are_gone(session: Session, how: str, reason: str) -> None:
    session.run("x = 1", 30)
    anew = threading.Timer(0.3, getattr(session, how))
    anew.start()
    ending = session.run("import time\ntime.sleep(60)", 30).outputs[-1]
    assert isinstance(ending, Died)
    assert (ending.reason, ending.variables.kept) == (reason, False)
    anew.join()
    assert session.run("print('x' in globals())", 30).stdout == "False\n"


@pytest.mark.parametrize(("how", "reason"), [("restart", "it was restarted"), ("reset", "it was reset")])
def test_code_whose_sandbox_is_still_starting_is_ended_too(own_session: Session, how: str, reason: str) -> None:
    recovery, is_starting, may_start = own_session.recovery, threading.Event(), threading.Event()
    start = recovery._start

    def slowly(*args: Any) -> Any:
        is_starting.set()
        assert may_start.wait(60)
        return start(*args)

    recovery._start = slowly
    endings: list[Output] = []
    code = threading.Thread(target=lambda: endings.extend(own_session.run("while True: pass", 60).outputs))
    code.start()
    assert is_starting.wait(60)
    order = threading.Thread(target=getattr(own_session, how))
    order.start()
    until(lambda: own_session._ends_next)
    may_start.set()
    code.join()
    order.join()
    (ending,) = endings
    assert isinstance(ending, Died)
    assert ending.reason == reason
    assert own_session.run("6 * 7", 30).result == Result({"text/plain": "42"})


def test_a_restart_that_is_interrupted_is_done_by_the_next_call(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.run("x = 1", 30)
    with monkeypatch.context() as patch:
        patch.setattr(session._lock, "acquire", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            session.restart()
    assert session.run("'x' in globals()", 30).outputs == (Result({"text/plain": "False"}),)


def test_close_is_idempotent_and_final(own_session: Session) -> None:
    own_session.run("1", 30)
    own_session.close()
    own_session.close()
    with pytest.raises(SessionClosed):
        own_session.run("1", 30)


def test_close_while_the_sandbox_starts_keeps_the_code_from_running(
    own_session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = own_session.recovery.kernel

    def closed_meanwhile() -> Kernel:
        made = kernel()
        own_session.close()
        return made

    monkeypatch.setattr(own_session.recovery, "kernel", closed_meanwhile)
    with pytest.raises(SessionClosed):
        own_session.run("open('ran', 'w')", 30)
    assert not (own_session.spec.work_dir / "ran").exists()


def test_what_fails_because_the_session_was_closed_says_so(
    own_session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed_meanwhile() -> Kernel:
        own_session.close()
        raise KernelDied("the sandbox ended before its kernel was ready")

    monkeypatch.setattr(own_session.recovery, "kernel", closed_meanwhile)
    with pytest.raises(SessionClosed, match="meanwhile"):
        own_session.run("1", 30)


@pytest.mark.parametrize("how", ["restart", "reset"])
def test_what_is_refused_while_a_stream_is_read_changes_nothing(session: Session, how: str) -> None:
    session.run("x = 1", 30)
    stream = session.stream("print('a', flush=True)\nimport time\ntime.sleep(0.5)\nprint('b')", 30)
    next(stream)
    with pytest.raises(SessionBusy):
        getattr(session, how)()
    rest = "".join(output.text for output in stream if isinstance(output, Stream))
    assert rest.lstrip("\n") == "b\n", "the end of the first line may come by itself"
    assert session.run("x", 30).outputs == (Result({"text/plain": "1"}),)


def test_close_in_mid_run_ends_the_run(own_session: Session) -> None:
    own_session.run("1", 30)
    threading.Timer(0.3, own_session.close).start()
    started = time.monotonic()
    with pytest.raises(SessionClosed) as closed:
        own_session.run("import time\ntime.sleep(60)", 60)
    assert closed.value.has_begun
    assert time.monotonic() - started < PATIENCE


def test_runs_of_many_threads_are_served_in_turn_and_never_mixed(session: Session) -> None:
    session.open()
    found: dict[int, str] = {}

    def work(number: int) -> None:
        found[number] = session.run(f"for _ in range(3): print({number}, flush=True)", 30).stdout

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: f"{number}\n" * 3 for number in range(8)}


def test_waiting_for_ones_turn_is_visible_and_costs_no_time_limit(session: Session) -> None:
    session.open()
    first = threading.Thread(target=session.run, args=("import time\ntime.sleep(1.5)", 30))
    first.start()
    while not session.is_busy:
        time.sleep(0.01)
    execution = session.run("print('mine')", 1)
    first.join()
    assert execution.stdout == "mine\n"
    assert execution.queued > 0.5


def test_a_second_run_while_reading_a_stream_is_refused_and_not_a_deadlock(shared_session: Session) -> None:
    stream = shared_session.stream("print('a', flush=True)\nimport time\ntime.sleep(30)", 30)
    next(stream)
    with pytest.raises(SessionBusy):
        shared_session.run("1", 30)
    stream.close()


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("import threading\nthreading.Timer(0.2, print, ['late']).start()", "late\n"),
        ("import asyncio\nasyncio.get_running_loop().call_later(0.2, print, 'late')", "late\n"),
        ("import subprocess\n_ = subprocess.Popen('sleep 0.2; echo late >&2', shell=True)", "late\n"),
        (
            "import threading\nthreading.Timer(0.2, display, ['late']).start()",
            "\n[... a display of background code left out ...]\n",
        ),
    ],
    ids=["thread", "asyncio", "subprocess", "display"],
)
def test_text_printed_between_two_runs_is_a_note_of_the_second_and_not_its_stdout(
    session: Session, code: str, shown: str
) -> None:
    session.run(code, 30)
    time.sleep(0.5)
    assert session.run("print('mine')", 30).outputs == (Stream("stdout", "mine\n"), Notice(f"{BACKGROUND}{shown}"))
    assert session.run("print('mine')", 30).outputs == (Stream("stdout", "mine\n"),)


def test_each_line_of_a_thread_is_shown_once_and_in_order_however_the_runs_fall(session: Session) -> None:
    code = "import threading, time\ndef talk():\n    for n in range(2000):\n        print(n); time.sleep(0.001)\n"
    shown = session.run(f"{code}thread = threading.Thread(target=talk)\nthread.start()", 30).stdout
    step, is_over = 0, False
    while not is_over:
        time.sleep(step * 0.0005)  # some at once, some after the text was sent
        step = (step + 7) % 300
        execution = session.run("thread.is_alive()", 30)
        for note in execution.notes:
            assert note.startswith(BACKGROUND)
            shown += note.removeprefix(BACKGROUND)
        shown += execution.stdout
        is_over = execution.value is False
    assert shown == "".join(f"{n}\n" for n in range(2000))


def test_a_thread_that_prints_for_ever_costs_the_next_runs_little_and_what_is_left_out_is_counted(
    used_sessions: Callable[..., Session],
) -> None:
    session = used_sessions(**SMALL)
    code = "import threading\ndef flood():\n    for _ in range(1000):\n        print('x' * 100_000)\n"
    session.run(f"{code}threading.Thread(target=flood, daemon=True).start()", 30)
    notes = []
    for _ in range(5):
        time.sleep(0.3)
        started = time.monotonic()
        execution = session.run("1 + 1", 30)
        assert time.monotonic() - started < PATIENCE
        assert execution.result == Result({"text/plain": "2"})
        notes += execution.notes
    assert notes
    for note in notes:
        assert re.fullmatch(rf"{BACKGROUND}[x\n]+\n\[\.\.\. [\d,]{{7,}} characters left out \.\.\.\]\n[x\n]+", note)
        assert len(note) < 1100


def test_last_words_of_a_kernel_that_ended_between_two_runs_are_shown(session: Session) -> None:
    code = "import os, threading\ndef end():\n    print('printed', flush=True)\n"
    code += "    os.write(2, b'written\\n')\n    os._exit(7)\nthreading.Timer(0.2, end).start()"
    session.run(code, 30)
    time.sleep(0.6)
    execution = session.run("print('fresh')", 30)
    assert execution.outputs[:2] == (Restarted("its process exited with code 7"), Stream("stdout", "fresh\n"))
    assert execution.notes == (f"{BACKGROUND}printed\nwritten\n",)


def test_a_restart_forgets_what_background_code_has_printed(session: Session) -> None:
    session.run("import threading\nthreading.Timer(0.2, print, ['late']).start()", 30)
    time.sleep(0.5)
    session.restart()
    assert session.run("print('mine')", 30).outputs == (Stream("stdout", "mine\n"),)


def test_displays_stay_between_the_text_before_and_after_them(shared_session: Session) -> None:
    code = (
        "for n in range(50):\n    print('before', n)\n    display({'text/plain': f'shown {n}'}, raw=True)\nprint('end')"
    )
    shown = [
        output.text.strip() for output in shared_session.run(code, 30).outputs if isinstance(output, (Stream, Display))
    ]
    assert shown == [words for n in range(50) for words in (f"before {n}", f"shown {n}")] + ["end"]


def test_what_was_flushed_is_told_once_though_a_child_was_forked(session: Session) -> None:
    code = "import os\nfor n in range(20):\n    print('one', n, flush=True)\n    if not (pid := os.fork()):\n"
    code += "        print('child', n, flush=True)\n        os._exit(0)\n    _ = os.waitpid(pid, 0)"
    stdout = session.run(code, 30).stdout
    assert re.findall(r"one (\d+)\n", stdout) == [str(n) for n in range(20)]  # a child's words may be between


@pytest.mark.parametrize("pause", [0, 0.5])
def test_output_costs_the_code_no_memory_whether_it_is_read_at_once_or_late(session: Session, pause: float) -> None:
    peak = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    before = int(session.run(peak, 30).stdout)
    with contextlib.closing(session.stream("for n in range(500): print('x' * 100_000, flush=True)", 60)) as outputs:
        next(outputs)
        time.sleep(pause)  # about as long as the code would need to print it all
        for _ in outputs:
            pass
    assert int(session.run(peak, 30).stdout) < before + 20  # MiB, of 50


def test_no_output_is_lost(shared_session: Session) -> None:
    execution = shared_session.run("for n in range(3000): print(n, flush=n % 10 == 0)", 30)
    assert execution.stdout == "".join(f"{n}\n" for n in range(3000))


def test_a_long_print_is_cut_in_the_middle_with_an_exact_count(used_sessions: Callable[..., Session]) -> None:
    session = used_sessions(**SMALL)
    execution = session.run("print('a' * 3_000_000 + 'end')", 30)
    assert execution.stdout == "a" * 500 + "a" * 496 + "end\n"
    assert "[... 2,999,004 characters left out ...]" in [o.text for o in execution.outputs if not isinstance(o, Stream)]


def test_a_message_over_the_limit_ends_the_kernel_with_a_reason(used_sessions: Callable[..., Session]) -> None:
    session = used_sessions(**SMALL)
    big = "get_ipython().kernel.session._writer.send(2, [b'{}', b'{}', b'{}', b' ' * 3_000_000])"
    ending = session.run(f"{big}\nimport time\ntime.sleep(30)", 30).outputs[-1]
    assert isinstance(ending, Died)
    assert "1,000,000 bytes" in ending.reason
    assert session.run("print('alive')", 30).stdout == "alive\n"


def test_the_guest_keeps_to_the_limit_of_messages_it_was_told(used_sessions: Callable[..., Session]) -> None:
    """Smaller or larger than the usual one, so that honest code meets no limit but the one that was set."""
    page = "from IPython.display import HTML, display\ndisplay(HTML('x' * 13_000_000))"
    large, small = used_sessions(max_message_bytes=40 * MIB, max_rich_chars=20 * MIB), used_sessions(**SMALL)
    (shown,) = large.run(page, 30).outputs
    assert isinstance(shown, Display)
    assert len(shown.data["text/html"]) == 13_000_000
    (shown,) = small.run(page, 30).outputs
    assert isinstance(shown, Display)
    assert "left out" in shown.text
    assert small.run("import os\nprint([name for name in os.environ if 'LIMITS' in name])", 30).stdout == "[]\n"


def test_what_a_process_wrote_before_it_ended_comes_before_what_is_printed_then(shared_session: Session) -> None:
    shell = "subprocess.run('echo -n one; echo -n two >&2; echo', shell=True)"
    stdout = shared_session.run(f"import subprocess\nfor n in range(50):\n    {shell}\n    print('then', n)", 60).stdout
    assert re.findall(r"one\nthen (\d+)\n", stdout) == [str(n) for n in range(50)]


def test_an_alarm_goes_to_the_handler_of_an_earlier_cell_and_the_time_limit_holds_on(session: Session) -> None:
    session.run("import signal, time\n_ = signal.signal(signal.SIGALRM, lambda *_: print('rung'))", 30)
    assert session.run("_ = signal.alarm(1)\ntime.sleep(1.2)\nprint('end')", 30).stdout == "rung\nend\n"
    run = session.run("_ = signal.setitimer(signal.ITIMER_REAL, 0.1)\ntime.sleep(60)", 1)
    assert run.stdout == "rung\n"
    assert isinstance(run.outputs[-1], TimedOut)
    assert run.outputs[-1].state_kept
    session.run("_ = signal.signal(signal.SIGALRM, signal.SIG_IGN)", 30)
    assert session.run("_ = signal.alarm(1)\ntime.sleep(1.2)\nprint('end')", 30).stdout == "end\n"


def test_a_handler_of_a_signal_may_print_and_flush_at_any_time(shared_session: Session) -> None:
    """Each handler sets up the next signal: at a fixed interval they would nest without end on a busy machine."""
    code = (
        "import os, signal, sys\nrung = 0\ndef ring(*_):\n    global rung\n    rung += 1\n    print(flush=True)\n"
        "    if rung < 500: signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + rung % 50))\n"
        "before = signal.signal(signal.SIGALRM, ring)\nsignal.setitimer(signal.ITIMER_REAL, 1e-5)\n"
        "while rung < 500:\n    os.write(1, b'.')\n    sys.stdout.flush()\n"
        "signal.signal(signal.SIGALRM, before)\nprint('rung', rung)"
    )
    stdout = shared_session.run(code, 60).stdout
    assert stdout.count("\n") - 1 == int(stdout.rpartition("rung ")[2]) == 500


CHILDREN = {
    "exits": "print('child')\n    sys.exit(3)",
    "raises": "print('child')\n    raise ValueError('of the child')",
    "goes on to the end": "print('child')",
}


@pytest.mark.parametrize(("how", "status"), list(zip(CHILDREN, [3, 1, 0])))
def test_a_forked_child_ends_with_the_program_it_was_forked_in(session: Session, how: str, status: int) -> None:
    code = f"import os, sys\nx = 1\npid = os.fork()\nif not pid:\n    {CHILDREN[how]}\n"
    code += "if pid:\n    print('status', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    execution = session.run(code, 30)
    assert "child\n" in execution.stdout
    assert f"status {status}\n" in execution.stdout
    assert ("ValueError: of the child" in execution.stderr) == (how == "raises")
    for n in range(4):
        assert session.run("x += 1; print(x, os.getpid() != pid)", 30).stdout == f"{n + 2} True\n"


def test_what_an_interrupted_cell_started_ends_with_it_unless_it_was_to_live_on(session: Session) -> None:
    session.run(
        "import multiprocessing, os, subprocess, sys, time\nfork = multiprocessing.get_context('fork')\n"
        "earlier = fork.Process(target=time.sleep, args=(600,)); earlier.start()\n"
        "program = subprocess.Popen(['sleep', '600'])",
        30,
    )
    execution = session.run(
        "awaited = subprocess.Popen(['sh', '-c', 'trap \"\" INT; sleep 600; sleep 600'])\n"
        "server = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "subprocess.run('sleep 600 & echo $! > daemon', shell=True)\n"
        "worker = fork.Process(target=time.sleep, args=(600,)); worker.start()\n"
        "forks = [os.fork() for _ in range(3)]\nwhile True: time.sleep(0.05)",
        5,
    )
    assert [type(output) for output in execution.outputs if not isinstance(output, Stream)] == [Notice, TimedOut]
    (note,) = execution.notes
    assert note.startswith("Still running: ")
    assert note.count("sleep 600 (pid ") == 2, note
    code = (
        "daemon = int(open('daemon').read())\n"
        "print(earlier.is_alive(), program.poll(), server.poll(), os.path.exists(f'/proc/{daemon}'))\n"
        "print(awaited.poll(), worker.exitcode, [os.path.exists(f'/proc/{pid}') for pid in forks])"
    )
    found = session.run(code, 30)
    assert found.stdout == "True None None True\n-9 -9 [False, False, False]\n", found.outputs
    session.run("earlier.kill(); program.kill(); server.kill(); os.kill(daemon, 9)", 30)


WAITING = (
    "%%bash\nsleep 4321\necho on",
    "subprocess.Popen(['sleep', '4321']).wait()",
    "subprocess.run('sleep 4321; echo', shell=True)",
    "!sleep 4321 | cat",
    "x = !sleep 4321; echo",
    "os.system('sleep 4321')",
    "p = await asyncio.create_subprocess_exec('sleep', '4321'); await p.wait()",
    "thread = threading.Thread(target=subprocess.run, args=(['sleep', '4321'],)); thread.start(); thread.join()",
    "try:\n    subprocess.run(['sleep', '4321'])\nexcept BaseException: pass",
)
LEFT = """
def left(mark):
    for name in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open(f'/proc/{name}/cmdline', 'rb') as file:
                if mark in file.read():
                    yield int(name)
        except OSError:
            pass
"""


@pytest.mark.parametrize("stopped_by", ["limit", "interrupt"])
def test_programs_end_with_the_code_that_waits_for_them(session: Session, stopped_by: str) -> None:
    session.run(f"import asyncio, os, subprocess, threading\n{LEFT}", 30)
    seconds = str(random.randrange(10**6, 10**7))  # by which its programs are known on a machine with others
    for code in WAITING:
        timer = threading.Timer(0.5 if stopped_by == "interrupt" else 600, session.interrupt)
        timer.start()
        error = session.run(code.replace("4321", seconds), 0.5 if stopped_by == "limit" else 30).error
        timer.cancel()
        assert isinstance(error, TimedOut if stopped_by == "limit" else Error), (code, error)
        assert not isinstance(error, TimedOut) or error.state_kept, code
        assert session.run(f"list(left({seconds.encode()}))", 30).value == [], code


@pytest.mark.parametrize(
    "code",
    ["os.close(1)", "os.close(2)", "os.dup2(os.open('/dev/null', os.O_WRONLY), 2)", "os.fdopen(1, 'w').close()"],
)
def test_a_descriptor_that_is_closed_holds_nothing_up(session: Session, code: str) -> None:
    outputs = session.run(f"import os\nkept = 1\n{code}", 20).outputs
    assert not any(isinstance(output, (Died, TimedOut)) for output in outputs)
    assert session.run("print('lives', kept)", 20).stdout == "lives 1\n"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "with open('o.txt', 'w') as f:\n    sys.stdout = f\n    print('x')",
            "ValueError: I/O operation on closed file",
        ),
        ("sys.stdout = types.SimpleNamespace(write=sys.stdout.write)\nprint('x')", "AttributeError: "),
        ("del sys.stdout", "AttributeError: "),
    ],
)
def test_a_stdout_that_cannot_be_flushed_is_told_and_put_back(session: Session, code: str, reason: str) -> None:
    assert f"sys.stdout could not be flushed ({reason}" in session.run(f"import sys, types\n{code}", 20).stderr
    assert session.run("print('lives')", 20).stdout == "lives\n"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("sys.stdout = io.StringIO()\nprint('lost')\n1 / 0", "StringIO"),
        ("sys.stdout = open(os.devnull, 'w')", "TextIOWrapper"),
        ("contextlib.redirect_stdout(io.StringIO()).__enter__()", "StringIO"),
    ],
)
def test_a_stdout_that_was_not_restored_mutes_no_later_code(session: Session, code: str, kind: str) -> None:
    said = session.run(f"import contextlib, io, os, sys\n{code}", 20).stderr
    assert said == f"sys.stdout was left as a {kind}; it is the cell's output again.\n"
    assert session.run("print('lives')", 20).stdout == "lives\n"


WRAPPED = """
import codecs, gc, io, sys
sys.stdout.reconfigure(encoding='utf-8', errors='replace', line_buffering=True)
print('a', end=' '); sys.stdout.buffer.write('é '.encode()[:1]); sys.stdout.buffer.write('é '.encode()[1:]); print('b')
sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8', line_buffering=True); print('c')
sys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='utf-8', write_through=True); print('d')
sys.stdout = codecs.getwriter('utf-8')(sys.stdout.buffer); print('e'); gc.collect()
"""


def test_a_stdout_has_what_a_scripts_has(session: Session) -> None:
    assert session.run(WRAPPED, 20).stdout == "a é b\nc\nd\ne\n"
    assert session.run("print('f')", 20).stdout == "f\n"  # through the wrapper, which stays
    session.run("sys.stdout = sys.__stdout__", 20)
    code = "o = sys.stdout; o is sys.__stdout__, o.encoding, o.mode, o.name, o.fileno(), o.buffer.fileno(), o.closed"
    assert session.run(code, 20).result == Result({"text/plain": "(True, 'utf-8', 'w', '<stdout>', 1, 1, False)"})
    code = "o.line_buffering, o.write_through, o.errors, o.isatty(), o.buffer.raw.writable(), sys.stderr.name"
    assert session.run(code, 20).result == Result({"text/plain": "(False, True, 'strict', False, True, '<stderr>')"})
    forked = (
        "import os\nif not os.fork():\n    sys.stdout.buffer.write(b'child\\n')\n    os._exit(0)\nos.wait(); print('g')"
    )
    assert session.run(forked, 20).stdout == "child\ng\n"


def test_modules_are_found_where_the_code_has_gone(session: Session) -> None:
    session.run("import os, sys\nos.mkdir('proj'); open('proj/helper.py', 'w').write('v = 1')", 20)
    session.run("open('json.py', 'w').write('v = 2')\nos.chdir('proj')\nimport helper, json", 20)
    assert session.run("helper.v, hasattr(json, 'v'), sys.path[-1]", 20).result == Result(
        {"text/plain": "(1, False, '')"}
    )


def test_the_shell_is_known_as_a_notebooks(session: Session) -> None:
    assert session.run("get_ipython().__class__.__name__", 20).result == Result({"text/plain": "'ZMQInteractiveShell'"})


@pytest.mark.parametrize(
    "code",
    [
        "asyncio.run(main())",
        "asyncio.get_event_loop().run_until_complete(main())",
        "asyncio.new_event_loop().run_until_complete(main())",
        "loop = asyncio.get_event_loop(); x = loop.run_until_complete(main()); loop.close(); x",
        "with asyncio.Runner() as runner: x = runner.run(main())\nx",
        "await asyncio.sleep(0); asyncio.run(main())",  # in a cell that runs in the loop itself
    ],
)
def test_a_scripts_own_event_loop_runs_in_a_cell(session: Session, code: str) -> None:
    session.run("import asyncio\nasync def main():\n    await asyncio.sleep(0.01)\n    return 5", 20)
    session.run("task = asyncio.create_task(main())", 20)
    assert session.run(code, 20).result == Result({"text/plain": "5"})
    assert session.run("await task, await main(), asyncio.run(main())", 20).result == Result(
        {"text/plain": "(5, 5, 5)"}
    )


@pytest.mark.parametrize("before", ["", "await asyncio.sleep(0)\n"])
def test_a_scripts_own_event_loop_ends_at_the_time_limit(used_sessions: Callable[..., Session], before: str) -> None:
    session = used_sessions(kill_grace=20.0)  # on a busy machine it may take long to obey
    session.run("import asyncio\nx = 1", 20)
    outputs = session.run(f"{before}asyncio.run(asyncio.sleep(600))", 1).outputs
    assert any(isinstance(output, TimedOut) for output in outputs), outputs
    assert not any(isinstance(output, Died) for output in outputs)
    assert session.run("x, await asyncio.sleep(0, 2), asyncio.run(asyncio.sleep(0, 3))", 20).result == Result(
        {"text/plain": "(1, 2, 3)"}
    )


def test_an_interrupt_right_after_a_swallowed_one_ends_a_cell_that_awaits(session: Session) -> None:
    code = """
import asyncio, signal
await asyncio.sleep(0)
try:
    signal.raise_signal(signal.SIGINT)
except asyncio.CancelledError:
    pass
signal.raise_signal(signal.SIGINT)
await asyncio.sleep(600)
"""
    execution = session.run(code, 60)
    assert not any(isinstance(output, TimedOut) for output in execution.outputs)
    assert isinstance(execution.error, Error)
    assert execution.error.name == "CancelledError"


def test_what_is_printed_beside_a_stdout_of_the_codes_is_part_of_the_run(session: Session) -> None:
    tee = (
        "class Tee:\n    def write(self, text): both.write(text), log.append(text)\n    def flush(self): both.flush()\n"
    )
    session.run(f"import os, sys\nboth, log = sys.stdout, []\n{tee}sys.stdout = Tee()", 20)
    assert session.run("print('two')\nos.system('echo sub')", 20).stdout == "two\nsub\n"
    assert session.run("sys.stdout = sys.__stdout__ if sys.__stdout__ is both else both\nprint('three')", 20).stdout
    assert session.run("print('four', log)", 20).stdout == "four ['two', '\\n']\n"


def test_a_script_leaves_no_thread_which_would_hinder_a_checkpoint(session: Session) -> None:
    count = "import threading; print(threading.active_count())"
    before = session.run(count, 30).stdout
    assert session.run("%%bash\necho one\necho two >&2", 30).stdout == "one\n"
    assert session.run(count, 30).stdout == before
    session.run("%%bash --bg --out later\necho three", 30)
    assert "three" in session.run("%%bash\nsleep 0.2; echo three", 30).stdout


def test_what_subprocesses_write_is_part_of_the_run(shared_session: Session) -> None:
    code = "import subprocess\nfor n in range(3): subprocess.run(f'echo {n}', shell=True)"
    assert shared_session.run(code, 30).stdout == "0\n1\n2\n"


def test_input_is_refused_at_once(shared_session: Session) -> None:
    for code in ("input('name?')", "import getpass\ngetpass.getpass()"):
        error = shared_session.run(code, 30).error
        assert isinstance(error, Error)
        assert "function is disabled" in error.value


LEAVING = {"exit()": "", "quit()": "", "raise SystemExit(0)": "", "import sys\nsys.exit(3)": "3", "exit('no')": "no"}


@pytest.mark.parametrize(("code", "status"), LEAVING.items())
def test_leaving_ends_the_code_and_not_the_kernel(shared_session: Session, code: str, status: str) -> None:
    shared_session.run("x = 1", 30)
    done = shared_session.run(f"{code}\nprint('not reached')", 30)
    assert (done.stdout, done.ok) == ("", not status)
    assert not status or (isinstance(done.error, Error) and done.error.text.startswith(f"SystemExit: {status}"))
    assert shared_session.run("x", 30).result == Result({"text/plain": "1"})


def test_magics_work_and_line_numbers_stay_true(shared_session: Session) -> None:
    assert "Wall time" in shared_session.run("%%time\nsum(range(10))", 30).stdout
    assert shared_session.run("!echo shell", 30).stdout.strip() == "shell"


def test_displays_are_updated_and_cleared(shared_session: Session) -> None:
    code = "from IPython.display import display, clear_output\nprint('gone')\nclear_output()\n"
    code += "h = display('a', display_id='d')\nh.update('b')"
    assert shared_session.run(code, 30).outputs == (Display({"text/plain": "'b'"}, "d"),)


def test_lazy_names_are_real_modules_unless_the_user_defines_them(session: Session) -> None:
    assert session.run("type(json).__name__, math.pi > 3, re.sub('a', 'b', 'a')", 30).result == Result(
        {"text/plain": "('module', True, 'b')"}
    )
    assert session.run("math = 'mine'\nmath", 30).result == Result({"text/plain": "'mine'"})


def test_work_dir_is_importable_but_shadows_nothing(session: Session) -> None:
    session.run(
        "for n, t in {'helper': 'x = 5', 'random': '1/0', 'zmq': '1/0'}.items(): open(f'{n}.py', 'w').write(t)", 30
    )
    assert session.run("import helper, random, zmq\nhelper.x", 30).result == Result({"text/plain": "5"})


def test_a_planted_module_does_not_hijack_the_next_kernel(new_session: Callable[..., Session], work_dir: Path) -> None:
    for name in ("ipykernel_launcher", "ipykernel", "json", "sitecustomize", "usercustomize", "agent_tools_guest"):
        (work_dir / f"{name}.py").write_text("raise SystemExit('hijacked')")
    assert new_session().run("print('clean')", 30).stdout == "clean\n"


def test_a_forked_child_leaves_its_parents_sandbox_alone(session: Session) -> None:
    session.run("x = 1", 30)
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(SessionClosed):
            session.close()
            session.interrupt()
            session.run("x = 2", 30)
        code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert session.run("x", 30).result == Result({"text/plain": "1"})


def test_the_host_side_directory_goes_with_the_session(own_session: Session, transport: TransportName) -> None:
    before = _own_run_dirs()
    own_session.run("1", 30)
    assert len(_own_run_dirs() - before) == (1 if transport == "sockets" else 0)
    own_session.close()
    assert _own_run_dirs() == before


def _own_run_dirs() -> set[Path]:
    return set(private_base().glob(f"{Owner.current().token}-*"))


def test_sessions_opened_and_closed_leave_nothing_on_the_host(
    new_session: Callable[..., Session], shared_session: Session
) -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    shared_session.run("1", 30)
    new_session().close()
    before = held()
    for _ in range(3):  # one more than what is forgiven below
        session = new_session()
        session.run("1", 30)
        session.restart()
        session.close()

    def are_gone() -> bool:  # the removal goes on behind `close`
        fds, threads = held()
        return fds <= before[0] + 2 and threads <= before[1] + 2  # of those that all sessions share

    until(are_gone)
