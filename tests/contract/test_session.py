"""One suite for a session on every engine we have: the real one, and the process double."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from agent_tools.engines.engine import Engine
from agent_tools.errors import KernelDied, SessionBusy, SessionClosed
from agent_tools.limits import MIB
from agent_tools.machine.owner import Owner
from agent_tools.machine.private_folder import private_base
from agent_tools.results.execution import (
    Died,
    Display,
    Error,
    Notice,
    Omitted,
    Output,
    Restarted,
    Result,
    Stream,
    TimedOut,
)
from agent_tools.runtime.kernel.kernel import Kernel
from agent_tools.runtime.session.session import Session
from agent_tools.runtime.transport.transport import TransportName
from tests.contract.sessions import PATIENCE
from tests.waiting import until

pytestmark = pytest.mark.docker
BACKGROUND = "Printed by background code since the previous call:\n"
SMALL = {
    "max_text_chars": 1000,
    "max_message_bytes": 1_000_000,
    "interrupt_grace": 20.0,
}  # for one sandbox, used by all


def test_outputs_come_as_values_in_order(shared_session: Session) -> None:
    execution = shared_session.run("import sys\nprint('a')\nprint('b', file=sys.stderr)\n40 + 2", 30)
    assert execution.outputs == (Stream("stdout", "a\n"), Stream("stderr", "b\n"), Result({"text/plain": "42"}))


def test_variables_live_from_run_to_run(shared_session: Session) -> None:
    shared_session.run("x = 20", 30)
    assert shared_session.run("print(x + 1)", 30).stdout == "21\n"


def test_an_exception_is_a_value_with_the_users_line(shared_session: Session) -> None:
    execution = shared_session.run("def f():\n    return 1 / 0\n\nf()", 30)
    assert isinstance(execution.error, Error)
    assert execution.error.name == "ZeroDivisionError"
    assert "line 2, in f()" in execution.error.traceback
    assert "line 4" in execution.error.traceback


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


def test_code_that_reads_its_successor_slowly_is_ended_in_time(session: Session) -> None:
    slow = "import threading, time\nkernel = get_ipython().kernel\n"
    slow += "kernel.loop.await_input = lambda *_: time.sleep(60)\n"
    slow += "def sip(wire):\n    while wire.recv(20_000): time.sleep(0.02)\n"
    slow += "threading.Thread(target=sip, args=(kernel.session._writer.socket,), daemon=True).start()"
    session.run(slow, 30)
    started = time.monotonic()
    ending = session.run(f"'{'x' * 8_000_000}'", 0.5).outputs[-1]
    assert time.monotonic() - started < 0.5 + PATIENCE
    assert isinstance(ending, TimedOut)
    assert not ending.state_kept


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
    assert session.container
    engine.remove(session.container)
    execution = session.run("print('fresh')", 30)
    if Died("the sandbox ended") in execution.outputs:  # what is noticed only once the code is sent ends that run
        execution = session.run("print('fresh')", 30)
    assert isinstance(execution.outputs[0], Restarted)
    assert execution.stdout == "fresh\n"


def test_a_sandbox_removed_in_mid_run_ends_the_run(session: Session, engine: Engine) -> None:
    session.run("1", 30)
    assert session.container
    threading.Timer(0.3, engine.remove, [session.container]).start()
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


def test_restart_forgets_variables_and_keeps_files(session: Session) -> None:
    session.run("x = 1\nopen('kept.txt', 'w').write('here')", 30)
    session.restart()
    session.restart()
    execution = session.run("print('x' in globals(), open('kept.txt').read())", 30)
    assert execution.stdout == "False here\n"


UNFINISHED = """
import atexit, zipfile
text, archive = open("text.txt", "w"), zipfile.ZipFile("archive.zip", "w")
text.write("buffered")
archive.writestr("member", "stored")
atexit.register(lambda: open("exit.txt", "w").write("ran"))
"""


@pytest.mark.parametrize("how", ["restart", "close"])
def test_a_kernel_that_is_ended_first_finishes_as_a_program_does(own_session: Session, how: str) -> None:
    folder = own_session.spec.work_dir
    assert own_session.run(UNFINISHED, 30).ok
    assert (folder / "text.txt").read_text() == ""
    getattr(own_session, how)()
    assert [(folder / name).read_text() for name in ("text.txt", "exit.txt")] == ["buffered", "ran"]
    assert zipfile.ZipFile(folder / "archive.zip").read("member") == b"stored"


def test_an_exit_function_that_never_returns_delays_a_restart_for_a_moment(session: Session) -> None:
    code = "import atexit, time\natexit.register(time.sleep, 60)\nout = open('out.txt', 'w')\nout.write('buffered')"
    assert session.run(code, 30).ok
    started = time.monotonic()
    session.restart()
    assert time.monotonic() - started < PATIENCE
    assert session.run("print('atexit' in globals(), open('out.txt').read())", 30).stdout == "False buffered\n"


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
    ended = Restarted("its process exited with code 7")
    assert execution.outputs[:2] == (ended, Stream("stdout", "fresh\n"))
    assert execution.notes == (ended.text, f"{BACKGROUND}printed\nwritten\n")


def test_a_restart_forgets_what_background_code_has_printed(session: Session) -> None:
    session.run("import threading\nthreading.Timer(0.2, print, ['late']).start()", 30)
    time.sleep(0.5)
    session.restart()
    assert session.run("print('mine')", 30).outputs == (Stream("stdout", "mine\n"),)


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
    left_out = "[... 2,999,004 characters left out ...]"
    assert execution.stdout == "a" * 500 + f"\n{left_out}\n" + "a" * 496 + "end\n"
    assert left_out in [each.text for each in execution.outputs if isinstance(each, Omitted)]


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
