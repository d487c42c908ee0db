"""What a kernel does with code, on each engine over one transport: no transport changes it."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_tools.results.execution import Died, Display, Error, Notice, Restarted, Result, Stream, TimedOut
from agent_tools.runtime.session.session import Session
from agent_tools.tools.markdown import markdown
from tests.contract.sessions import PATIENCE

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module", params=["docker-sockets", "process-sockets"])
def pair(request: pytest.FixtureRequest) -> str:
    """An engine whose image has a Python of its own, and the double, with this one."""
    return str(request.param)


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
