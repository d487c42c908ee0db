"""Checkpoints in a real sandbox: going back, what keeps one from being taken, and what the code notices of them."""

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import Mock

import pytest

from agent_tools import Sandbox
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.errors import CheckpointMissing
from agent_tools.machine.owner import same_host
from agent_tools.results.execution import Died, Error, Restarted
from agent_tools.results.variables import Hindrance, Variables
from agent_tools.runtime.kernel.channel import KernelChannel
from agent_tools.runtime.kernel.run_numbers import MAX_WAKINGS
from tests.docker.crashing import CRASH, LIMITS, crash, run
from tests.docker.lasting import begin_anew
from tests.waiting import until

MIB = 1024 * 1024


@pytest.fixture
def sandbox(sandbox: Sandbox) -> Sandbox:
    """A sandbox that was asked for a checkpoint: from then on each call has one, however fast they follow."""
    sandbox.checkpoint()
    return sandbox


def test_undo_takes_back_the_last_code_and_nothing_else(sandbox: Sandbox) -> None:
    run(sandbox, "x = 1; open('f', 'w').write('1')", "x = 2; open('f', 'w').write('2')", "x = 3")
    sandbox.undo()
    assert sandbox.run_code("x, open('f').read()").value == (2, "2")
    sandbox.undo()
    with pytest.raises(CheckpointMissing, match="no checkpoint of the moment before"):
        sandbox.undo()
    assert sandbox.run_code("x").value == 2


def test_code_after_a_pause_does_not_wait_for_pages_that_the_checkpoint_shares(sandbox: Sandbox) -> None:
    sandbox.run_code("""
import resource
memory = bytearray(400 * 4096)
def waits():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for number in range(0, len(memory), 4096):
        memory[number] = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
""")

    def waits() -> int:
        time.sleep(0.2)  # the pause; more than one on a busy machine
        return int(sandbox.run_code("waits()").value)

    until(lambda: waits() < 100)  # 400 where nothing is done in a pause


def test_text_printed_before_an_undo_is_noted_after_it(sandbox: Sandbox) -> None:
    run(sandbox, "x = 1", "import asyncio; _ = asyncio.get_running_loop().call_later(0.2, print, 'late')")
    time.sleep(0.5)
    sandbox.undo()
    told = sandbox.run_code("x")
    assert (told.value, told.stdout) == (1, "")
    assert told.notes == ("Printed by background code since the previous call:\nlate\n",)


def test_code_that_a_crash_has_taken_back_is_not_undone_twice(sandbox: Sandbox) -> None:
    sandbox.run_code("k = 1")
    sandbox.run_code("k = 2")
    assert crash(sandbox, "k = 3; import os; os._exit(1)") == Variables(kept=True, undone=1)
    sandbox.undo()
    assert sandbox.run_code("k").value == 2


def test_the_first_code_can_be_undone(sandbox: Sandbox) -> None:
    with pytest.raises(CheckpointMissing, match="nothing to undo"):
        sandbox.undo()
    run(sandbox, "x = 1")
    sandbox.undo()
    assert sandbox.run_code("'x' in globals()").value is False


def test_an_undo_that_is_interrupted_costs_no_variables(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    run(sandbox, "x = 1", "y = 2")
    sandbox.checkpoint()
    with monkeypatch.context() as patch:
        patch.setattr(KernelChannel, "await_kernel", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            sandbox.undo()
    told = sandbox.run_code("x")
    assert told.value == 1
    assert isinstance(told.outputs[0], Restarted)
    assert told.outputs[0].reason == "the way back to a checkpoint was interrupted"


def test_loaded_variables_can_be_undone_and_their_loss_is_told(sandbox: Sandbox) -> None:
    run(sandbox, "x = 1")
    saved = sandbox.save(variables=True)
    run(sandbox, "x = 2")
    sandbox.load(saved)
    sandbox.undo()
    assert sandbox.run_code("x").value == 2
    sandbox.load(saved)
    run(sandbox, "import threading, time\nthreading.Thread(target=time.sleep, args=[60], daemon=True).start()")
    assert crash(sandbox) == Variables(kept=True, undone=2, hindrance="threads")
    assert sandbox.run_code("x").value == 1


def test_marks_lead_back_and_forth(sandbox: Sandbox) -> None:
    run(sandbox, "x = [1]")
    one = sandbox.checkpoint()
    run(sandbox, "x.append(2)")
    two = sandbox.checkpoint()
    for mark, value in ((one, [1]), (two, [1, 2]), (one, [1]), (two, [1, 2])):
        sandbox.rollback(mark)
        assert sandbox.run_code("x").value == value
        assert crash(sandbox, "x.clear(); import os; os._exit(1)") == Variables(kept=True, undone=1)
        assert sandbox.run_code("x").value == value
    run(sandbox, *(f"x = {number}" for number in range(5)))
    sandbox.rollback(one)
    assert sandbox.run_code("x").value == [1]
    sandbox.restart()
    with pytest.raises(CheckpointMissing, match="no checkpoint of that moment any more"):
        sandbox.rollback(one)


def test_a_mark_of_another_sandbox_is_refused(sandbox: Sandbox) -> None:
    with Sandbox() as other:
        mark = other.checkpoint()
    with pytest.raises(CheckpointMissing, match="belongs to another sandbox"):
        sandbox.rollback(mark)


def test_of_many_marks_the_oldest_goes(sandbox: Sandbox) -> None:
    marks = []
    for number in range(18):
        run(sandbox, f"x = {number}")
        marks.append(sandbox.checkpoint())
    sandbox.rollback(marks[-16])
    assert sandbox.run_code("x").value == 2
    with pytest.raises(CheckpointMissing, match="any more"):
        sandbox.rollback(marks[0])


WAITING = "for _ in tqdm(range(2)): pass\nawait asyncio.to_thread(time.sleep, 0.01)"


def test_threads_that_only_wait_for_work_hinder_none(sandbox: Sandbox) -> None:
    run(sandbox, f"import asyncio, time\nfrom tqdm import tqdm\n{WAITING}\nx = 1")
    for x in (2, 3):
        assert crash(sandbox) == Variables(kept=True, undone=1)
        run(sandbox, f"{WAITING}\nx = {x}")  # in what goes on they come again
        assert sandbox.run_code("x, asyncio.get_event_loop().is_running()").value == (x, True)


POOLED = """
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from joblib import Parallel, delayed
threads, processes = ThreadPoolExecutor(2), ProcessPoolExecutor(2)
"""
WORKED = "list(threads.map(abs, [-1] * 9)), Parallel(n_jobs=2)(delayed(abs)(-n) for n in range(3))"


def test_pools_that_wait_for_work_hinder_none(sandbox: Sandbox) -> None:
    done = ([1] * 9, [0, 1, 2])
    run(sandbox, POOLED)
    assert sandbox.run_code(f"found = list(processes.map(abs, [-1]))\n{WORKED}").value == done
    run(sandbox, "x = 1")
    for _ in range(2):
        assert crash(sandbox) == Variables(kept=True, undone=1)
        assert sandbox.run_code(f"assert (x, found) == (1, [1])\n{WORKED}").value == done
    left = sandbox.run_code("processes.submit(abs, -1)").error
    assert isinstance(left, Error)
    assert "left behind when the kernel went back" in left.value


def test_pools_at_work_hinder_as_other_threads_do(sandbox: Sandbox) -> None:
    run(sandbox, "x = 1", f"import time\n{POOLED}\nfuture = threads.submit(time.sleep, 600)\nx = 2")
    lost = crash(sandbox)
    assert (lost.kept, lost.undone) == (True, 2)


BARS = """
from tqdm.auto import tqdm, trange
from tqdm.notebook import tqdm as in_notebook
import tqdm.asyncio
class Own(tqdm.asyncio.tqdm): pass
for bar in (tqdm.auto.tqdm, in_notebook, tqdm.asyncio.tqdm, Own, Own):
    for _ in bar(range(2)): pass
"""


def test_monitors_of_all_kinds_of_tqdm_hinder_none(sandbox: Sandbox) -> None:
    run(sandbox, BARS, "x = 1")
    sandbox.checkpoint()
    for _ in range(2):
        assert crash(sandbox) == Variables(kept=True, undone=1)
        run(sandbox, BARS)
        assert sandbox.run_code("x").value == 1


IDLE_THREADS = {
    "pyarrow's CSV reader": (
        "import pandas as pd\npd.DataFrame({'a': range(9)}).to_csv('a')\nn = len(pd.read_csv('a', engine='pyarrow'))"
    ),
    "pyarrow": "import pandas as pd\npd.DataFrame({'a': range(9)}).to_parquet('a')\nn = len(pd.read_parquet('a'))",
    "scipy": "import numpy as np, scipy.fft\nn = len(scipy.fft.fft(np.ones((9, 4096)), workers=4))",
}


@pytest.mark.parametrize("library", IDLE_THREADS)
def test_idle_threads_of_libraries_that_renew_them_are_no_hindrance(sandbox: Sandbox, library: str) -> None:
    work = IDLE_THREADS[library]
    run(sandbox, f"{work}\nimport os", "x = 1")
    assert sandbox.run_code("len(os.listdir('/proc/self/task')) > 2").value is True
    sandbox.checkpoint()
    for _ in range(2):
        assert crash(sandbox) == Variables(kept=True, undone=1)
        run(sandbox, f"n = 0\n{work}")
        assert sandbox.run_code("n, x").value == (9, 1)


SHARED_MEMORY = """
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(create=True, size=8); memory.buf[0] = 7
again = SharedMemory(memory.name)
again.close()
"""


def test_multiprocessings_tracker_is_no_hindrance(sandbox: Sandbox) -> None:
    run(sandbox, SHARED_MEMORY, "x = 1")
    sandbox.checkpoint()
    for _ in range(2):
        assert crash(sandbox) == Variables(kept=True, undone=1)
        told = sandbox.run_code(SHARED_MEMORY.replace("memory", "other").replace("other import", "memory import"))
        assert (told.ok, told.stderr) == (True, "")
        assert sandbox.run_code("memory.buf[0], x").value == (7, 1)


UNKNOWN_THREAD = """import ctypes
libc = ctypes.CDLL(None)
semaphore, thread = ctypes.create_string_buffer(64), ctypes.c_ulong()
libc.sem_init(semaphore, 0, 0)
libc.pthread_create(ctypes.byref(thread), None, libc.sem_wait, semaphore)
import pandas as pd
pd.DataFrame({'a': range(9)}).to_parquet('a')
pd.read_parquet('a')
"""


@pytest.mark.parametrize(
    ("begin", "end", "hindrance"),
    [
        (
            "import threading; e = threading.Event(); t = threading.Thread(target=e.wait, daemon=True); t.start()",
            "e.set(); t.join()",
            "threads",
        ),
        (UNKNOWN_THREAD, "libc.sem_post(semaphore); libc.pthread_join(thread, None)", "threads"),
        ("import subprocess; p = subprocess.Popen(['sleep', '600'])", "p.kill(); p.wait()", "children"),
    ],
    ids=["thread", "native thread", "child"],
)
def test_what_a_fork_would_lose_keeps_checkpoints_from_being_taken(
    sandbox: Sandbox, begin: str, end: str, hindrance: Hindrance
) -> None:
    run(sandbox, "x = 1", begin, "x = 2")
    with pytest.raises(CheckpointMissing, match="none is while threads of the code"):
        sandbox.checkpoint()
    with pytest.raises(CheckpointMissing, match=r"before the last code \(no checkpoint is taken while .* running\);"):
        sandbox.undo()
    assert crash(sandbox) == Variables(kept=True, undone=3, hindrance=hindrance)
    assert sandbox.run_code("x").value == 1
    run(sandbox, begin, end, "x = 3")
    assert crash(sandbox) == Variables(kept=True, undone=1)
    assert sandbox.run_code("x").value == 3


def test_calls_that_come_too_fast_for_their_memory_are_told(sandbox: Sandbox) -> None:
    run(sandbox, "import time; x = 0; cells = get_ipython().kernel; import gc")
    burn = "import sys; gc.get_referrers(cells)[0]"
    run(sandbox, burn)
    wait = (
        "checkpoints = next(o for o in gc.get_objects() if type(o).__name__ == 'Checkpoints')\n"
        "checkpoints._pace.timeout = lambda: 100.0"
    )
    run(sandbox, wait, "x = 1", "x = 2")
    assert crash(sandbox) == Variables(kept=True, undone=4, hindrance="time")
    assert sandbox.run_code("x").value == 0


def test_all_processes_killed_at_once_are_told_as_lost(sandbox: Sandbox) -> None:
    run(sandbox, "x = 1")
    variables = crash(sandbox, "import os; os.kill(-1, 9); os._exit(1)")
    assert not variables.kept
    execution = sandbox.run_code("'x' in globals()")
    assert isinstance(execution.outputs[0], Restarted)
    assert execution.value is False


def test_a_kernel_that_ends_between_two_calls_is_told_once(sandbox: Sandbox) -> None:
    run(sandbox, "import os; x = 1; pid = os.getpid()")
    pid = sandbox.run_code("pid").value
    sandbox.checkpoint()  # which waits for the copy
    sandbox.run_command(f"kill -9 {pid}; while kill -0 {pid} 2>/dev/null; do sleep 0.01; done; sleep 0.2")
    execution = sandbox.run_code("x")
    assert execution.outputs[0] == Restarted("it was killed by signal 9 (SIGKILL)")
    assert "variables are kept" in execution.outputs[0].text
    assert execution.value == 1
    assert len(sandbox.run_code("x").outputs) == 1


OTHERS = """
import contextlib, os
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) not in (1, os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(name), {number})
os._exit(1)
"""


def test_a_copy_that_was_stopped_goes_on(sandbox: Sandbox) -> None:
    run(sandbox, "x = 1")
    assert crash(sandbox, OTHERS.format(number=19)) == Variables(kept=True, undone=1)
    assert sandbox.run_code("x").value == 1


def test_a_copy_that_was_killed_is_told_as_lost(sandbox: Sandbox) -> None:
    run(sandbox, "x = 1")
    assert crash(sandbox, OTHERS.format(number=9)) == Variables()
    assert sandbox.run_code("'x' in globals()").value is False


def test_a_checkpoint_that_ends_again_and_again_makes_way_for_a_fresh_kernel(sandbox: Sandbox) -> None:
    run(sandbox, "x = 1")
    assert [crash(sandbox).kept for _ in range(MAX_WAKINGS + 2)] == [True] * MAX_WAKINGS + [False] * 2
    assert sandbox.run_code("'x' in globals()").value is False


def test_the_code_sees_no_child_and_no_end_held_open(sandbox: Sandbox) -> None:
    run(
        sandbox,
        "import fcntl, os, subprocess; r, w = os.pipe(); f = open('f', 'w'); fcntl.flock(f, fcntl.LOCK_EX)",
        "cat = subprocess.run(['cat'], stdin=r, close_fds=True) if not os.close(w) else None",  # ends as w is closed
        "f.close(); g = open('f'); fcntl.flock(g, fcntl.LOCK_EX | fcntl.LOCK_NB)",
    )
    assert sandbox.run_code("os.wait()").error.name == "ChildProcessError"  # type: ignore[union-attr]


HANDLE = """
import os, signal
ended = []
def reap(*_):
    try:
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append(child)
    except ChildProcessError:
        pass
signal.signal(signal.SIGCHLD, reap)
"""
IGNORE = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); ended = []"


@pytest.mark.parametrize("code", [HANDLE, IGNORE], ids=["handled", "ignored"])
def test_code_that_waits_for_all_its_children_meets_none_of_ours(sandbox: Sandbox, code: str) -> None:
    run(sandbox, code, "x = 1")
    sandbox.checkpoint()
    run(sandbox, "x = 2", "assert (x, ended) == (2, [])")
    sandbox.undo()
    run(sandbox, "assert (x, ended) == (2, []) and signal.getsignal(signal.SIGCHLD) is not signal.SIG_DFL")


def test_of_many_calls_in_a_row_a_crash_takes_back_as_many_as_it_says(used_sandbox: Sandbox) -> None:
    begin_anew(used_sandbox)
    run(used_sandbox, "x = 0", *["x += 1"] * 30)
    told = crash(used_sandbox)
    assert told.kept
    assert used_sandbox.run_code("x").value == 30 - (told.undone - 1)


def test_once_a_checkpoint_was_asked_for_there_is_one_after_each_call(used_sandbox: Sandbox) -> None:
    begin_anew(used_sandbox)
    run(used_sandbox, "x = 1")  # which has one already
    used_sandbox.checkpoint()
    run(used_sandbox, "x = 2", "x = 3")
    used_sandbox.undo()
    assert used_sandbox.run_code("x").value == 2


def test_the_first_code_is_kept_however_fast_the_next_follows(used_sandbox: Sandbox) -> None:
    begin_anew(used_sandbox)
    run(used_sandbox, "x = 1")
    assert crash(used_sandbox) == Variables(kept=True, undone=1)
    assert used_sandbox.run_code("x").value == 1


def test_host_functions_and_prelude_are_there_afterwards() -> None:
    def triple(n: int) -> int:
        return 3 * n

    def half(n: int) -> float:
        return n / 2

    with Sandbox({"hostcalls": [triple], "limits": LIMITS}) as sandbox:
        run(sandbox, "x = await triple(2)")
        assert crash(sandbox) == Variables(kept=True, undone=1)
        assert sandbox.run_code("x, await triple(x)").value == (6, 18)
        sandbox.add_functions([half])
        assert crash(sandbox) == Variables(kept=True, undone=1)
        assert sandbox.run_code("await half(x)").value == 3.0


STATE = "import numpy as np; state = np.ones(150 * 131072)"
FITS = """
state += 1                                              # all of it is written: the checkpoint has its own copy now
more = np.ones(230 * 131072)
print(state.sum(), more.sum())
"""


def test_code_that_fits_into_the_memory_fits_without_checkpoints() -> None:
    with Sandbox({"memory": 512 * MIB, "checkpoint": False, "limits": LIMITS}) as sandbox:
        run(sandbox, STATE, FITS)


def test_code_that_fits_into_the_memory_fits_with_checkpoints_and_what_does_not_costs_no_variable() -> None:
    with Sandbox({"memory": 512 * MIB, "limits": LIMITS}) as sandbox:
        sandbox.checkpoint()
        run(sandbox, STATE, *[FITS, "state -= 1; del more"] * 4)
        for code in ("more = np.ones(2**28)", "more = []\nwhile True: more.append(bytearray(2**20))"):
            error = sandbox.run_code(code).error
            assert isinstance(error, Died)
            assert error.reason.startswith("it was killed at its memory limit of 0.5 GiB (read less at once")
            assert error.variables == Variables(kept=True, undone=1)
            assert sandbox.run_code("int(state.sum())").value == 150 * 131072


DECOYS = """
import glob
def decoys():
    for name in glob.glob('/proc/[0-9]*/comm'):
        if open(name).read() == 'sleep\\n':
            yield int(open(name.replace('comm', 'oom_score_adj')).read())
while len(found := list(decoys())) < 3:
    pass
print(found)
"""


def test_decoys_go_before_the_kernel_at_the_memory_limit() -> None:
    with Sandbox({"memory": 512 * MIB, "limits": LIMITS}) as sandbox:
        run(sandbox, STATE)
        assert sandbox.run_code(DECOYS).stdout == "[999, 999, 999]\n"


def test_the_memory_limit_is_no_reason_for_an_end_that_comes_after_it() -> None:
    with Sandbox({"memory": 512 * MIB, "limits": LIMITS}) as sandbox:
        run(sandbox, STATE, FITS)  # at the limit the copy ends
        error = sandbox.run_code("import os; os.kill(os.getpid(), 9)").error
        assert isinstance(error, Died)
        assert error.reason == "it was killed by signal 9 (SIGKILL)"


HOSTILE = """
import gc, os, socket
checkpoints = next(o for o in gc.get_objects() if type(o).__name__ == 'Checkpoints')
line = checkpoints._keeper
copies = [b"copy 1", b"copy 1 1", b"copy 1 2", b"copy " + b"9" * 40]
for word in (b"", b"x" * 60000, *copies, b"skipped " + b"a" * 50, b"awake", b"\\xff" * 10):
    for _ in range(100):
        ends = socket.socketpair()
        try:
            socket.send_fds(line, [word], [end.fileno() for end in ends] * 20, socket.MSG_DONTWAIT)
        except OSError:
            pass
        for end in ends: end.close()
"""


def test_a_kernel_that_lies_to_pid_1_gains_nothing(sandbox: Sandbox) -> None:
    sandbox.run_code(HOSTILE)
    for _ in range(3):
        sandbox.run_code(CRASH)
        assert sandbox.run_code("1").value == 1
    assert sandbox.run_code("x = 1").ok
    assert crash(sandbox).kept


def test_a_process_that_says_it_is_the_kernel_is_not_believed(sandbox: Sandbox) -> None:
    run(sandbox, "x = 1")
    lie = """
import gc, os, socket, time
line = next(o for o in gc.get_objects() if type(o).__name__ == 'Checkpoints')._keeper
if os.fork() == 0:
    os.setsid()
    number, (mine,), _, _ = socket.recv_fds(line, 100, 1)
    line.send(b"copy 999999 " + number)
    socket.recv_fds(socket.socket(fileno=mine), 100, 7)
    line.send(b"awake"); time.sleep(60)
time.sleep(0.3); os._exit(1)
"""
    assert isinstance(sandbox.run_code(lie, timeout=10).error, Died)
    assert sandbox.run_code("1").value == 1


LIAR = """
import gc, os, signal, socket, time
line = next(o for o in gc.get_objects() if type(o).__name__ == 'Checkpoints')._keeper
if os.fork() == 0:
    if os.fork(): os._exit(0)
    os.setsid()
    number, (mine,), _, _ = socket.recv_fds(line, 100, 1)
    line.send(b"copy 999999 " + number)
    os.execv("/bin/sleep", ["sleep", "4242"])
os.wait()
"""


def test_a_process_that_lies_about_being_a_checkpoint_ends_with_its_kernel(sandbox: Sandbox) -> None:
    run(sandbox, "x = 1", "x = 2", LIAR)
    look = "grep -lz '^[4]242$' /proc/[0-9]*/cmdline 2>/dev/null | wc -l"
    while sandbox.run_command(look).stdout.strip() != b"1":
        time.sleep(0.05)
    assert crash(sandbox).kept
    assert sandbox.run_code("x").value == 2
    assert sandbox.run_command(look).stdout.strip() == b"0"


HOLDS_UP = """
import array, ctypes, gc, os, socket, stat, struct, time
from agent_tools_guest.wire.framing import pack_parts

def connected():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return socket.create_connection(listener.getsockname()), listener.accept()[0]

def lingering():  # what waits in close() for the other end, which is closed after it
    one, other = connected()
    one.setblocking(False)
    try:
        while True: one.send(bytes(65536))
    except BlockingIOError: pass
    try: one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 600))
    except OSError: pass
    return [one.detach(), other.detach()]

def locked():  # a pipe that is locked at its other end
    reader, writer = os.pipe()
    lock(writer, reader)
    os.close(writer)
    return [reader]

def lock(writer, reader=None):
    if os.fork() == 0:
        os.setsid()
        if reader is not None: os.close(reader)
        one, other = connected()
        os.set_blocking(writer, True)
        ctypes.CDLL(None).sendfile(writer, one.fileno(), None, 1000)
        time.sleep(600)

def rights(descriptors): return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]

def nested(descriptors):
    one, other = socket.socketpair()
    one.sendmsg([b"x"], rights(descriptors))
    for each in descriptors: os.close(each)
    return [other.detach()]

kernel, sent = get_ipython().kernel, 0
message = pack_parts(2, kernel.session.parts_of(kernel.session.msg("status", {"execution_state": "busy"})))
words = [b"copy 1", b"copy 1 1", b"copy 1 2", b"copy 1 3", b"skipped time", b"awake", b"running", b"?"]
for number in map(int, os.listdir("/proc/self/fd")):
    try: mode = os.fstat(number).st_mode
    except OSError: continue
    if stat.S_ISFIFO(mode): lock(number)
    if not stat.S_ISSOCK(mode): continue
    end = socket.socket(fileno=os.dup(number))
    if end.family != socket.AF_UNIX: continue
    own = kernel.session._writer.socket.fileno() == number
    for text in [message] if own else words if end.type == socket.SOCK_SEQPACKET else []:
        for make in (lingering, locked, lambda: nested(lingering()), lambda: nested(locked())):
            descriptors = make()
            try: sent += end.sendmsg([text], rights(descriptors), socket.MSG_DONTWAIT)
            except OSError: pass
            for each in descriptors: os.close(each)
"""
NO_WAIT = 60.0  # seconds, of ten times as many that the descriptors above would be waited for


@pytest.mark.parametrize("place", ["the sandbox", "a fork"])
def test_nothing_that_code_holds_makes_pid_1_or_the_host_wait(sandbox: Sandbox, place: str) -> None:
    run(sandbox, "x = 1", "x = 2")
    with ExitStack() as stack:
        attacker = sandbox if place == "the sandbox" else stack.enter_context(sandbox.fork())
        began = time.monotonic()
        attacker.run_code(HOLDS_UP, timeout=5)
        assert attacker.run_code("1").ok
        attacker.run_code(f"{HOLDS_UP}\nos._exit(1)", timeout=5)
        assert attacker.run_code("1").ok
        attacker.run_code(f"{HOLDS_UP}\nimport signal; signal.signal(2, signal.SIG_IGN)\nwhile True: pass", timeout=2)
        assert attacker.run_code("1").ok
    assert sandbox.run_command("echo works").stdout == b"works\n"
    sandbox.restart()
    assert sandbox.run_code("1 + 1").value == 2
    assert time.monotonic() - began < NO_WAIT


@pytest.mark.parametrize("transport", ["sockets", "stdio"])
def test_a_killed_host_leaves_no_sandbox_whatever_its_code_holds(
    docker_engine: DockerEngine, work_dir: Path, transport: str
) -> None:
    script = f"""
import sys
from agent_tools import CodeInterpreter
tool = CodeInterpreter({{"transport": {transport!r}, "work_dir": {str(work_dir)!r}}})
tool.run("1")
tool.run({HOLDS_UP!r}, timeout=5)
print(tool.sandbox.id, flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout
        id_ = host.stdout.readline().strip()
        assert len(id_) == 64
        host.kill()
    deadline = time.monotonic() + NO_WAIT
    while id_ in {stray.id for stray, _ in docker_engine.strays(same_host())}:
        assert time.monotonic() < deadline, "it is still there"
        time.sleep(0.05)


@pytest.mark.parametrize("how", ["always", "error"])
def test_warnings_that_are_shown_or_raised_are_not_of_our_making(sandbox: Sandbox, how: str) -> None:
    run(sandbox, f"import os, warnings; warnings.simplefilter({how!r})")
    descriptors = []
    for _ in range(4):
        assert crash(sandbox) == Variables(kept=True, undone=1)
        execution = sandbox.run_code("len(os.listdir('/proc/self/fd'))")
        assert execution.stderr == ""
        assert not execution.notes
        descriptors.append(execution.value)
    assert descriptors == descriptors[:1] * 4
