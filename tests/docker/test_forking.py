"""Forks of a sandbox: kernels that go on from one state, beside one another, and end apart."""

import contextlib
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent_tools import AsyncSandbox, CodeInterpreter, Sandbox
from agent_tools.errors import CheckpointMissing, InvalidParams, SandboxGone, SessionClosed
from agent_tools.results.execution import Died, Error, TimedOut
from agent_tools.results.variables import Variables
from agent_tools.runtime.sandbox.sandbox import LiveSandbox
from tests.docker.crashing import LIMITS, crash, run

MIB = 1024 * 1024
DEAF = "import signal, time; signal.signal(2, signal.SIG_IGN); signal.signal(14, signal.SIG_IGN); time.sleep(600)"
STEADY = 5  # equal counts of processes, one after another
ENOUGH = 60.0  # seconds in which a call has ended, on the slowest of machines
SUPERVISORS = """
import os, signal
def parent(pid): return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
supervisor = os.getpid()
while parent(supervisor) != 1: supervisor = parent(supervisor)
"""


def processes(sandbox: Sandbox) -> int:
    """Return how many processes live in the sandbox, with those that look, or -1 while there is no room to look."""
    return int(sandbox.run_command("grep -L '^State:.[ZX]' /proc/[0-9]*/status 2>/dev/null | wc -l").stdout or -1)


def settled(sandbox: Sandbox) -> int:
    """Return how many processes live when as many checkpoints are kept as ever are, beside marks."""
    run(sandbox, "x = 1", "x = 1", "x = 1")
    sandbox.fork().close()
    return settled_without_forks(sandbox)


def settled_without_forks(sandbox: Sandbox) -> int:
    """Return how many processes live once their number no longer changes."""
    looks = [processes(sandbox)]
    while len(looks) < STEADY or len(set(looks[-STEADY:])) > 1:  # what the fork left may take a moment to end
        time.sleep(0.05)
        looks.append(processes(sandbox))
    return looks[-1]


def sleepers(sandbox: Sandbox) -> list[str]:
    """Return how long each `sleep` in the sandbox is to last."""
    told = sandbox.run_command("head -zqn2 /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '").stdout.decode()
    return sorted(re.findall(r"\bsleep (\d+)", told))


def of_one_sandbox() -> int:
    """Return how many threads there are, but those that come and go for all sandboxes."""
    return sum(each.name != "agent-tools-checks" for each in threading.enumerate())


def comes_to(look: Callable[[], object], wanted: object) -> bool:
    """Return whether something becomes what is wanted: what is being ended may take a moment."""
    deadline = time.monotonic() + ENOUGH
    while (found := look()) != wanted and time.monotonic() < deadline:
        time.sleep(0.05)
    return found == wanted


def test_both_go_on_from_one_state_and_apart(sandbox: Sandbox) -> None:
    run(sandbox, "x = [1]; f = open('log', 'w'); f.write('a'); f.flush()", "import random; random.seed(3)")
    with sandbox.fork() as fork:
        assert fork.run_code("x.append(2); x").value == [1, 2]
        assert sandbox.run_code("x.append(3); x").value == [1, 3]
        assert fork.run_code("x").value == [1, 2]
        assert fork.run_code("random.random()").value == sandbox.run_code("random.random()").value
        run(fork, "open('made', 'w').write('by the fork')", "f.seek(0); f.close()")
        assert sandbox.run_code("open('made').read(), f.tell()").value == ("by the fork", 1)
        assert fork.read_file("made") == b"by the fork"
        assert fork.run_command("cat made").stdout == b"by the fork"
        assert fork.container == sandbox.container
    assert sandbox.run_code("x").value == [1, 3]
    with pytest.raises(SessionClosed):
        fork.run_code("1")


def test_they_run_at_the_same_time(sandbox: Sandbox) -> None:
    meet = "import os, time\nopen('{}', 'w').close()\nwhile not os.path.exists('{}'): time.sleep(0.01)"
    sandbox.start()
    with sandbox.fork() as fork, ThreadPoolExecutor() as pool:
        here = pool.submit(sandbox.run_code, meet.format("a", "b"), timeout=ENOUGH)
        there = pool.submit(fork.run_code, meet.format("b", "a"), timeout=ENOUGH)
        assert here.result().ok
        assert there.result().ok


def test_an_interrupt_is_for_one_of_them(sandbox: Sandbox) -> None:
    run(sandbox, "import time")
    wait = "open({!r}, 'w').close(); time.sleep(600)"
    with sandbox.fork() as fork, ThreadPoolExecutor() as pool:
        here = pool.submit(sandbox.run_code, wait.format("here"), timeout=600)
        there = pool.submit(fork.run_code, wait.format("there"), timeout=600)
        assert comes_to(lambda: sandbox.exists("here") and sandbox.exists("there"), True)
        fork.interrupt()
        ended = there.result(ENOUGH)
        assert isinstance(ended.error, Error)
        assert ended.error.name == "KeyboardInterrupt"
        assert not here.done()
        sandbox.interrupt()
        assert here.result(ENOUGH).error


def test_a_fork_has_its_own_limits_and_checkpoints(sandbox: Sandbox) -> None:
    run(sandbox, "x = 1")
    with sandbox.fork() as fork:
        assert crash(fork, "x = 0; import os; os._exit(1)") == Variables(kept=True, undone=1)
        assert fork.run_code("x").value == 1
        run(fork, "x = 2", "x = 3")
        fork.undo()
        assert fork.run_code("x").value == 2
        mark = fork.checkpoint()
        run(fork, "x = 4")
        fork.rollback(mark)
        assert crash(fork, "x = 0; import os; os._exit(1)") == Variables(kept=True, undone=1)
        assert fork.run_code("x").value == 2
        with pytest.raises(CheckpointMissing, match="belongs to another sandbox"):
            sandbox.rollback(mark)
        began = time.monotonic()
        deaf = fork.run_code("x = 0\n" + DEAF, timeout=1)
        assert isinstance(deaf.error, TimedOut)
        assert deaf.error.variables == Variables(kept=True, undone=1)
        assert time.monotonic() - began < ENOUGH
        assert fork.run_code("x").value == 2
        obedient = fork.run_code("x = 9\nimport time; time.sleep(600)", timeout=2)
        assert isinstance(obedient.error, TimedOut)
        assert obedient.error.state_kept
        assert fork.run_code("x").value == 9
        fork.restart()
        assert fork.run_code("x").value == 1
    assert sandbox.run_code("x").value == 1


def test_without_a_checkpoint_a_fork_is_where_it_was_made(sandbox: Sandbox) -> None:
    run(sandbox, "x = 1")
    with sandbox.fork() as fork:
        run(fork, "import threading, time; threading.Thread(target=time.sleep, args=[600], daemon=True).start()")
        assert crash(fork, "x = 2; import os; os._exit(1)") == Variables(True, 2, "threads")
        assert fork.run_code("x").value == 1
        fork.undo()
        with pytest.raises(CheckpointMissing, match="nothing to undo"):
            fork.undo()
        assert crash(fork) == Variables(kept=True, undone=1)
        assert fork.run_code("x").value == 1


def test_the_end_of_one_kernel_spares_the_others(sandbox: Sandbox) -> None:
    run(sandbox, "x = 1")
    child = "import subprocess; child = subprocess.Popen(['sleep', '600'])"
    with sandbox.fork() as one, sandbox.fork() as two:
        run(one, "x = 'one'", child)
        run(two, "x = 'two'", child)
        assert isinstance(sandbox.run_code(DEAF, timeout=0.5).error, TimedOut)
        assert crash(sandbox).kept
        sandbox.restart()
        assert [one.run_code("x, child.poll()").value, two.run_code("x, child.poll()").value] == [
            ("one", None),
            ("two", None),
        ]
        assert crash(one).kept
        assert isinstance(one.run_code(DEAF, timeout=0.5).error, TimedOut)
        one.close()
        assert two.run_code("x, child.poll()").value == ("two", None)
        assert sandbox.run_code("'x' in globals()").value is False


def test_what_left_the_kernel_outlives_the_close_of_a_fork(sandbox: Sandbox) -> None:
    leave = (
        "import os\nif os.fork() == 0:\n    os.setsid()\n"
        "    if os.fork() == 0: os.execlp('sleep', 'sleep', '4242')\n    os._exit(0)"
    )
    with sandbox.fork() as fork:
        run(sandbox, leave, "os.wait()[1]")
        run(fork, leave.replace("4242", "4343"))
        assert comes_to(lambda: sleepers(sandbox), ["4242", "4343"])
        fork.close()
        assert comes_to(lambda: sleepers(sandbox), ["4242"])
    for _ in range(5):
        sandbox.fork().close()
    assert sleepers(sandbox) == ["4242"]


def test_what_both_buffer_is_written_once(sandbox: Sandbox) -> None:
    run(sandbox, "out = open('out.txt', 'w'); out.write('data')")
    sandbox.fork().close()
    sandbox.restart()
    assert sandbox.read_file("out.txt") == b"data"


def test_a_fresh_kernel_that_is_closed_finishes_as_a_program_does(sandbox: Sandbox) -> None:
    fresh = sandbox.fresh_kernel()
    run(fresh, "out = open('out.txt', 'w'); out.write('data')")
    fresh.close()
    assert sandbox.read_file("out.txt") == b"data"


def test_a_fork_is_forked(sandbox: Sandbox) -> None:
    run(sandbox, "x = [0]")
    with sandbox.fork() as one:
        run(one, "x.append(1)")
        with one.fork() as two:
            run(two, "x.append(2)")
            run(one, "x.append(-1)")
            with two.fork() as three:
                run(three, "x.append(3)")
                values = [each.run_code("x").value for each in (sandbox, one, two, three)]
                assert values == [[0], [0, 1, -1], [0, 1, 2], [0, 1, 2, 3]]
                assert crash(three).kept
                assert crash(two).kept
                assert crash(one).kept
                values = [each.run_code("x").value for each in (sandbox, one, two, three)]
                assert values == [[0], [0, 1, -1], [0, 1, 2], [0, 1, 2, 3]]
                one.close()
                for closed in (two, three):
                    with pytest.raises(SessionClosed):
                        closed.run_code("1")


@pytest.mark.parametrize("how", ["signal.SIGKILL", "signal.SIGSTOP"])
def test_a_fork_that_ends_its_supervisor_ends_itself(sandbox: Sandbox, how: str) -> None:
    before = settled(sandbox)
    with sandbox.fork() as fork:
        run(fork, SUPERVISORS)
        began = time.monotonic()
        ended = fork.run_code(f"os.kill(supervisor, {how})\nimport time; time.sleep(600)", timeout=1)
        assert isinstance(ended.error, (Died, TimedOut)), ended.outputs
        assert ended.error.variables == Variables()
        assert time.monotonic() - began < ENOUGH
        with pytest.raises(SandboxGone, match="Fork again"):
            fork.run_code("1")
        assert sandbox.run_code("x").value == 1
        assert comes_to(lambda: processes(sandbox), before)
    with sandbox.fork() as again:
        assert again.run_code("x").value == 1


BOMBS = {
    "of forks": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "of chains": "import os\nfor _ in range(9):\n    try:\n        if os.fork() == 0: break\n    except OSError: pass\n"
    "while True:\n    try:\n        if os.fork(): os._exit(0)\n        os.setsid()\n    except OSError: pass",
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_a_fork_bomb_in_a_fork_ends_in_time(sandbox: Sandbox, bomb: str) -> None:
    before = settled(sandbox)
    with sandbox.fork() as fork:
        began = time.monotonic()
        assert isinstance(fork.run_code(bomb, timeout=1).error, (Died, TimedOut))
        with contextlib.suppress(SandboxGone):  # it may have been given up
            fork.run_code("1")
        assert comes_to(lambda: 0 < processes(sandbox) < before + 20, True), "it ends before its fork is closed"
        assert time.monotonic() - began < ENOUGH
        assert sandbox.run_code("x").value == 1
    assert comes_to(lambda: processes(sandbox), before)


WITNESS = '''
import subprocess, sys
witness = """import signal, time
signal.signal(signal.SIGCONT, lambda *_: open('stood', 'w').close())
open('ready', 'w').close()
while True: time.sleep(0.05)"""
subprocess.Popen([sys.executable, "-c", witness])
'''


def test_every_process_stands_still_while_what_a_forks_kernel_left_is_killed(sandbox: Sandbox) -> None:
    # Or what forks would outrun a list of it. A process of other code hears that it was stopped and goes on.
    with sandbox.fork() as fork:
        run(fork, "1")
        run(sandbox, WITNESS)
        assert comes_to(lambda: sandbox.exists("ready"), True)
        run(fork, "1")
        assert not sandbox.exists("stood")
        assert crash(fork).kept
        assert comes_to(lambda: sandbox.exists("stood"), True)


def test_no_more_than_max_branches() -> None:
    with Sandbox({"limits": {**LIMITS, "max_branches": 2}}) as sandbox:
        run(sandbox, "x = 1")
        one, two = sandbox.fork(), sandbox.fork()
        for each in (sandbox, one):
            with pytest.raises(InvalidParams, match=r"2 forks already \(max_branches\)"):
                each.fork()
        two.close()
        assert one.fork().run_code("x").value == 1


def test_host_functions_are_called_from_each(sandbox: Sandbox) -> None:
    seen: list[str] = []
    lock = threading.Lock()

    def tell(word: str) -> int:
        """Note a word."""
        with lock:
            seen.append(word)
        return len(word)

    sandbox.add_functions([tell])
    with sandbox.fork() as fork, ThreadPoolExecutor() as pool:
        results = pool.map(
            lambda each: each[0].run_code(f"await tell({each[1]!r})").value, [(sandbox, "a"), (fork, "bb")]
        )
        assert list(results) == [1, 2]
        assert crash(fork).kept
        assert fork.run_code("await tell('ccc')").value == 3
    assert sorted(seen) == ["a", "bb", "ccc"]


def test_closing_leaves_nothing(sandbox: Sandbox) -> None:
    before, threads = settled(sandbox), of_one_sandbox()
    forks = [sandbox.fork() for _ in range(3)]
    run(forks[0], "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)")
    for fork in forks:
        fork.close()
        fork.close()
    assert comes_to(lambda: processes(sandbox), before)
    assert of_one_sandbox() <= threads
    left = sandbox.fork()
    with ThreadPoolExecutor() as pool:
        running = pool.submit(left.run_code, "import time; time.sleep(600)", timeout=600)
        assert comes_to(lambda: left._opening.session().is_busy, True)
        sandbox.close()
        with pytest.raises(SessionClosed):
            running.result(ENOUGH)
    with pytest.raises(SessionClosed):
        left.run_code("1")


def test_a_closed_fresh_kernel_leaves_nothing(sandbox: Sandbox) -> None:
    run(sandbox, "import subprocess, threading", "threading.Thread(target=threading.Event().wait, daemon=True).start()")
    before = settled_without_forks(sandbox)
    fresh = sandbox.fresh_kernel()
    run(fresh, "import subprocess; subprocess.Popen(['sleep', '601'], start_new_session=True)", "x = 1", "x = 2")
    fresh.close()
    assert comes_to(lambda: processes(sandbox), before)
    assert sleepers(sandbox) == []


def test_a_fresh_kernel_that_ends_its_supervisor_ends_itself(sandbox: Sandbox) -> None:
    run(sandbox, "x = 1")
    fresh = sandbox.fresh_kernel()
    run(fresh, "import subprocess; subprocess.Popen(['sleep', '602'], start_new_session=True)")
    assert isinstance(fresh.run_code(SUPERVISORS + "os.kill(supervisor, signal.SIGKILL)").error, Died)
    with pytest.raises(SandboxGone):
        fresh.run_code("1")
    assert comes_to(lambda: sleepers(sandbox), [])
    assert sandbox.run_code("x").value == 1


def test_each_of_many_fresh_kernels_ends_alone() -> None:
    with Sandbox({"limits": LIMITS, "transport": "stdio"}) as sandbox, ThreadPoolExecutor() as pool:
        run(sandbox, "x = 1")
        made = [each.result(ENOUGH) for each in [pool.submit(sandbox.fresh_kernel) for _ in range(6)]]
        for fresh in made:
            code = SUPERVISORS + "os.kill(supervisor, signal.SIGKILL); import time; time.sleep(600)"
            assert isinstance(fresh.run_code(code, timeout=600).error, Died)
        assert sandbox.run_code("x").value == 1


def test_no_fork_where_no_checkpoint_can_be_taken(sandbox: Sandbox) -> None:
    run(sandbox, "import threading, time; threading.Thread(target=time.sleep, args=[600], daemon=True).start()")
    with pytest.raises(CheckpointMissing, match="threads of the code"):
        sandbox.fork()


def test_no_fork_where_checkpoints_are_off() -> None:
    with Sandbox({"checkpoint": False}) as without, pytest.raises(CheckpointMissing, match="off"):
        without.fork()


def test_a_fork_cannot_be_reset(sandbox: Sandbox) -> None:
    with sandbox.fork() as fork, pytest.raises(InvalidParams, match="its files are the sandbox's"):
        fork.reset()


def test_a_reset_of_the_sandbox_ends_its_forks(sandbox: Sandbox) -> None:
    with sandbox.fork() as fork:
        sandbox.reset()
        with pytest.raises(SessionClosed):
            fork.run_code("1")
        assert sandbox.run_code("1").value == 1


def test_the_quota_of_work_dir_ends_the_code_of_all() -> None:
    limits = {**LIMITS, "max_work_dir_bytes": 20 * MIB}
    with Sandbox({"limits": limits}) as sandbox, sandbox.fork() as fork, ThreadPoolExecutor() as pool:
        fill = "import time\nf = open('big', 'wb')\nwhile True: f.write(bytes(10**6)); f.flush(); time.sleep(0.01)"
        others = pool.submit(sandbox.run_code, "open('begun', 'w').close()\nimport time; time.sleep(600)", timeout=600)
        assert comes_to(lambda: sandbox.exists("begun"), True)
        for error in (fork.run_code(fill, timeout=ENOUGH).error, others.result(ENOUGH).error):
            assert isinstance(error, Died)
            assert error.cause == "work_dir_quota"
            assert error.variables.kept
        fork.remove("big")
        assert fork.run_code("1").value == 1
        assert sandbox.run_code("1").value == 1


def test_the_tool_forks(tmp_path: object) -> None:
    with CodeInterpreter({"work_dir": str(tmp_path), "limits": LIMITS}) as tool:
        tool.call("x = 1")
        with tool.fork() as fork:
            assert fork.run("x += 1; x").value == 2
            assert tool.run("x").value == 1
            assert fork.sandbox == tool.sandbox


def test_a_fork_is_saved_and_loaded(sandbox: Sandbox) -> None:
    run(sandbox, "x = 1")
    with sandbox.fork() as fork:
        run(fork, "x = 2")
        saved = fork.save(variables=True)
        run(fork, "x = 3")
        fork.load(saved)
        assert (fork.run_code("x").value, sandbox.run_code("x").value) == (2, 1)


@pytest.mark.parametrize("transport", ["sockets", "stdio"])
def test_forks_go_on_after_their_sandbox_was_stopped_for_want_of_use(transport: str) -> None:
    with Sandbox({"transport": transport, "limits": LIMITS, "idle_stop": 1}) as sandbox:
        run(sandbox, "x = 1")
        with sandbox.fork() as fork:
            serving = sandbox._opening.session()._sandbox
            assert isinstance(serving, LiveSandbox)
            for _ in range(2):
                assert comes_to(lambda: serving._idle.is_stopped, True)
                assert fork.run_code("x").value == 1
            assert comes_to(lambda: serving._idle.is_stopped, True)
            assert crash(fork).kept
            assert comes_to(lambda: serving._idle.is_stopped, True)
        assert sandbox.run_code("x").value == 1


@pytest.mark.anyio
async def test_forks_are_awaited() -> None:
    async with AsyncSandbox({"limits": LIMITS}) as sandbox:
        await sandbox.run_code("x = 1")
        async with await sandbox.fork() as fork:
            assert (await fork.run_code("x += 1; x")).value == 2
        assert (await sandbox.run_code("x")).value == 1
