"""Commands against all that is in the sandbox with them, and the sandbox against commands: told, bounded, and over."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent_tools import Sandbox
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.errors import FileRejected, SandboxGone
from agent_tools.limits import MIB
from agent_tools.machine.owner import same_host
from agent_tools.results.commands import CommandResult
from agent_tools.results.execution import Died, TimedOut
from agent_tools.runtime.commands.process import Process
from agent_tools.runtime.runtime import Runtime

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]
SPAWNS = 400
GROWTH = 800  # KiB after so many: 2 for each
SLACK = 5  # descriptors and processes that come and go
AT_ONCE = 50
PATIENCE = 20.0  # seconds until what is on its way must have come, on a busy machine
LONG = "600"  # seconds that nothing here is waited for
COUNT = r"""
import glob, sys
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        if open(path).read().split(chr(0))[:-1] == sys.argv[1:]: print("found")
    except OSError: pass
"""
END_SLEEPERS = 'for each in /proc/[0-9]*; do [ "$(cat $each/comm)" = sleep ] && kill -9 ${each#/proc/}; done'
NewSandbox = Callable[..., Sandbox]


@pytest.fixture
def new_sandbox(docker_runtime: Runtime) -> Iterator[NewSandbox]:
    """Makes sandboxes; they are closed after the test."""
    made: list[Sandbox] = []

    def make(**cfg: object) -> Sandbox:
        made.append(Sandbox(cfg, runtime=docker_runtime))
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.close()
    docker_runtime.settle()


@pytest.fixture
def own_sandbox(new_sandbox: NewSandbox) -> Sandbox:
    """One that no other test has, with a variable by which its kernel is known."""
    made = new_sandbox()
    made.run_code("kept = 1")
    return made


@pytest.fixture(scope="module")
def used_sandbox(docker_runtime: Runtime) -> Iterator[Sandbox]:
    """One that tests have one after another: whatever a command does, the sandbox serves on."""
    with Sandbox(runtime=docker_runtime) as made:
        made.run_code("0")  # what it holds is the fixture's, and not the first test's
        yield made
    docker_runtime.settle()


@pytest.fixture(scope="module")
def used_cramped(docker_runtime: Runtime) -> Iterator[Sandbox]:
    """One with little room that tests have one after another: whatever runs into a limit of it, it serves on."""
    cfg = {"pids": 64, "memory": 256 * MIB, "limits": {"max_work_dir_bytes": 50 * MIB}}
    with Sandbox(cfg, runtime=docker_runtime) as made:
        made.run_code("0")
        yield made
    docker_runtime.settle()


@pytest.fixture
def cramped(used_cramped: Sandbox) -> Sandbox:
    """The one with little room, with a variable by which its fresh kernel is known."""
    used_cramped.restart()
    used_cramped.run_code("kept = 1")
    return used_cramped


@pytest.fixture
def sandbox(sandbox: Sandbox) -> Sandbox:
    """The shared one, with a variable by which its fresh kernel is known."""
    sandbox.run_code("kept = 1")
    return sandbox


def _lives(sandbox: Sandbox) -> None:
    """Commands, files and the kernel of before serve."""
    assert sandbox.run_command("echo lives").stdout == b"lives\n"
    sandbox.write_file("lives", b"yes")
    assert sandbox.read_file("lives") == b"yes"
    assert sandbox.run_code("print(kept)").stdout == "1\n"


def _eventually(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _running(sandbox: Sandbox, *argv: str) -> int:
    """Return the number of processes of this command line in the sandbox."""
    return sandbox.run_command(["python3", "-c", COUNT, *argv]).stdout.decode().split().count("found")


def _first_line(process: Process) -> str:
    """Return what a command printed first, once it has."""
    _eventually(lambda: process.read().stdout.endswith(b"\n") or process.is_over)
    return process.read().stdout.decode().strip()


# -- floods ---------------------------------------------------------------------------------------------------------

FORKS = "import os\nwhile True:\n try: os.fork() or os.setsid()\n except OSError: pass"
BOMBS = {
    "of a shell": "bomb() { bomb | bomb & }; bomb; sleep 600",
    "of sessions of their own": ["python3", "-c", FORKS],
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_fork_bomb_is_over_at_its_time_limit(cramped: Sandbox, bomb: str | list[str]) -> None:
    done = cramped.run_command(bomb, timeout=0.5)
    assert done.timed_out
    _eventually(lambda: cramped.run_command("true").ok)
    _lives(cramped)


def test_a_command_that_finds_no_room_for_a_process_is_told(cramped: Sandbox) -> None:
    flood = cramped.start_command(
        [
            "python3",
            "-c",
            "import os, time\ntry:\n while os.fork(): pass\nexcept OSError: print('full', flush=True)\ntime.sleep(600)",
        ]
    )
    assert _first_line(flood) == "full"
    refused = cramped.run_command(["true"])
    assert refused.exit_code == 126
    assert "Resource temporarily unavailable" in refused.reason
    flood.kill()
    _eventually(lambda: cramped.run_command("true").ok)
    _lives(cramped)


def test_code_leaves_pid_1_the_processor(sandbox: Sandbox) -> None:
    """A fork bomb that competes with it as an equal cannot be ended in time on a busy machine."""
    nice = "awk '{ print $19 }' /proc/1/stat /proc/$$/stat"
    assert sandbox.run_command(nice).stdout == b"0\n10\n"
    assert sandbox.run_code("import os; os.nice(0)").value == 10


def test_a_fork_bomb_in_a_cell_takes_no_command_with_it(cramped: Sandbox) -> None:
    ticking = cramped.start_command(["python3", "-uc", "import time\nprint('ready')\ntime.sleep(4)\nprint('done')"])
    assert _first_line(ticking) == "ready"
    execution = cramped.run_code(FORKS, timeout=0.5)
    assert isinstance(execution.outputs[-1], (TimedOut, Died))
    assert (ticking.wait(PATIENCE).exit_code, ticking.wait().stdout) == (0, b"ready\ndone\n")
    assert cramped.run_command("echo lives").stdout == b"lives\n"
    assert cramped.run_code("print('lives')").stdout == "lives\n"


# -- streams --------------------------------------------------------------------------------------------------------


def test_a_full_pipe_that_nobody_reads_ends_at_the_time_limit(sandbox: Sandbox) -> None:
    done = sandbox.run_command(f"yes | sleep {LONG}", timeout=1)
    assert done.timed_out
    assert _running(sandbox, "yes") + _running(sandbox, "sleep", LONG) == 0
    _lives(sandbox)


def test_a_host_that_is_slow_to_read_holds_up_its_own_command_only(sandbox: Sandbox) -> None:
    is_slow, may_go_on = threading.Event(), threading.Event()

    def listen(stream: str, data: bytes) -> None:
        is_slow.set()
        may_go_on.wait(PATIENCE)

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(sandbox.run_command, "head -c 20000000 /dev/zero", on_output=listen)
        assert is_slow.wait(PATIENCE)
        _lives(sandbox)
        may_go_on.set()
        assert slow.result().ok


def test_output_without_an_end_is_kept_up_to_its_bound(sandbox: Sandbox) -> None:
    done = sandbox.run_command("yes", timeout=1, max_output=MIB)
    assert done.timed_out
    assert len(done.stdout) == MIB
    assert done.omitted_stdout > 0
    _lives(sandbox)


@pytest.mark.parametrize("terminal", [None, (24, 80)], ids=["pipe", "terminal"])
def test_stdin_that_is_never_read_holds_up_nothing(sandbox: Sandbox, terminal: tuple[int, int] | None) -> None:
    process = sandbox.start_command(["sleep", LONG], stdin=bytes(50 * MIB), terminal=terminal, timeout=2)
    _lives(sandbox)
    with pytest.raises(TimeoutError):
        process.write_stdin(bytes(50 * MIB), timeout=0.2)
    assert process.wait(PATIENCE).timed_out
    assert sandbox.run_command("true", stdin=bytes(50 * MIB)).ok
    _lives(sandbox)


def test_an_orphan_that_keeps_stdout_open_holds_nothing_up(sandbox: Sandbox) -> None:
    done = sandbox.run_command(f"(sleep {LONG}; echo late) & echo early")
    assert (done.exit_code, done.stdout) == (0, b"early\n")
    assert _running(sandbox, "sleep", LONG) == 1
    _lives(sandbox)
    sandbox.run_command(END_SLEEPERS)
    assert _running(sandbox, "sleep", LONG) == 0


def test_an_orphan_that_prints_on_neither_waits_nor_breaks(sandbox: Sandbox) -> None:
    done = sandbox.run_command("(head -c 10000000 /dev/zero; echo $? > status) & echo early")
    assert b"early\n" in done.stdout
    _eventually(lambda: sandbox.exists("status") and sandbox.read_file("status"))
    assert sandbox.read_file("status") == b"0\n"


def test_a_daemon_outlives_its_command_and_not_the_sandbox(sandbox: Sandbox) -> None:
    assert sandbox.run_command(f"setsid sleep {LONG} >/dev/null 2>&1 &").ok
    _eventually(lambda: _running(sandbox, "sleep", LONG) == 1)
    sandbox.restart()
    assert _running(sandbox, "sleep", LONG) == 1
    sandbox.reset()
    assert _running(sandbox, "sleep", LONG) == 0


# -- growth ---------------------------------------------------------------------------------------------------------

SERVER = r"""
server=$PPID
echo $(ls /proc/$server/fd | wc -l) $(ls -d /proc/[0-9]* | wc -l) $(grep -oP 'VmRSS:\s+\K\d+' /proc/$server/status)
"""


def _held(sandbox: Sandbox) -> tuple[int, int, int, int]:
    """Descriptors here; descriptors and KiB of the process that runs the commands, and how many processes there are."""
    descriptors, processes, resident = map(int, sandbox.run_command(SERVER).stdout.split())
    return len(os.listdir("/proc/self/fd")), descriptors, processes, resident


def test_many_commands_leave_nothing_behind(sandbox: Sandbox) -> None:
    for _ in range(SPAWNS // 10):
        assert sandbox.run_command(["true"]).ok
    before = _held(sandbox)
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda number: sandbox.run_command(["true"]).ok, range(SPAWNS)))
    after = _held(sandbox)
    assert all(now <= then + SLACK for now, then in zip(after[:3], before[:3])), (before, after)
    assert after[3] - before[3] < GROWTH, "the process that runs commands grows"


# -- attacks on those who run the commands ----------------------------------------------------------------------------

OF_THE_SERVER = "import os, signal\nserver = int(open('/tmp/server').read())\n"


def _server_known(sandbox: Sandbox) -> Process:
    """A command that runs, after the code was told who runs it."""
    sandbox.run_command("echo $PPID > /tmp/server")
    running = sandbox.start_command(["sh", "-c", f"echo ready; exec sleep {LONG}"])
    assert _first_line(running) == "ready"
    return running


def test_a_cell_that_kills_who_runs_the_commands_is_told_to_them(sandbox: Sandbox) -> None:
    running = _server_known(sandbox)
    sandbox.run_code(OF_THE_SERVER + "os.kill(server, signal.SIGKILL)")
    lost = running.wait(PATIENCE)
    assert (lost.exit_code, lost.ok) == (137, False)
    assert "ended by code in the sandbox" in lost.reason
    _eventually(lambda: _running(sandbox, "sleep", LONG) == 0)  # what is told to have ended has
    _lives(sandbox)


def test_a_cell_that_stops_who_runs_the_commands_stops_the_next_one_not(sandbox: Sandbox) -> None:
    running = _server_known(sandbox)
    sandbox.run_code(OF_THE_SERVER + "os.kill(server, signal.SIGSTOP)")
    _lives(sandbox)
    assert running.poll() is None
    running.kill()
    sandbox.run_code(OF_THE_SERVER + "os.kill(server, signal.SIGKILL)")  # with the one that it runs
    _eventually(lambda: _running(sandbox, "sleep", LONG) == 0)


def test_a_time_limit_holds_while_who_runs_the_commands_is_stopped(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(limits={"command_grace": 0.5})
    sandbox.run_code("kept = 1")
    _server_known(sandbox).kill()
    limited = sandbox.start_command(["sleep", LONG], timeout=5)
    sandbox.run_code(OF_THE_SERVER + "os.kill(server, signal.SIGSTOP)")
    ended = limited.wait(PATIENCE)
    assert ended.timed_out
    assert ended.reason in (
        "it exceeded its time limit, and the sandbox did not end it",
        "",
    )  # '': it was woken, and told it
    _lives(sandbox)
    _eventually(lambda: _running(sandbox, "sleep", LONG) == 0)


@pytest.mark.parametrize("number", ["KILL", "STOP", "TERM", "HUP"])
def test_a_command_that_signals_all_it_can_leaves_a_sandbox_that_serves(sandbox: Sandbox, number: str) -> None:
    sandbox.write_file("before", b"kept")  # a server of files that the next use would take
    with contextlib.suppress(SandboxGone):
        assert isinstance(sandbox.run_command(f"kill -{number} -1", timeout=2), CommandResult)
    assert sandbox.run_command("echo lives").stdout == b"lives\n"
    assert sandbox.read_file("before") == b"kept"
    assert sandbox.run_code("print('lives')").stdout == "lives\n"


def test_files_are_served_though_code_has_stopped_who_serves_them(sandbox: Sandbox) -> None:
    sandbox.write_file("before", b"kept")
    sandbox.run_code("import os, signal; os.kill(-1, signal.SIGSTOP)")  # all but PID 1 and the kernel itself
    assert sandbox.read_file("before") == b"kept"
    sandbox.write_file("large", b"x" * (8 << 20))
    assert sandbox.stat("large").size == 8 << 20
    assert sandbox.run_command("echo lives").stdout == b"lives\n"


# -- limits -----------------------------------------------------------------------------------------------------------


def test_a_command_over_the_memory_limit_dies_alone(cramped: Sandbox) -> None:
    eater = "x = []\nwhile True: x.append(b'x' * (8 << 20))"
    done = cramped.run_command(["python3", "-c", eater], timeout=60)
    assert done.exit_code == 137
    _lives(cramped)


def test_a_command_that_fills_work_dir_is_stopped_and_told(cramped: Sandbox) -> None:
    bystander = cramped.start_command(["sleep", LONG])
    filler = "while true; do head -c 1000000 /dev/zero >> filled; sleep 0.01; done"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(cramped.run_command, filler, timeout=120)
        done = running.result()
    assert (done.exit_code, done.timed_out) == (137, False)
    assert "max_work_dir_bytes" in done.reason
    assert "max_work_dir_bytes" in bystander.wait(PATIENCE).reason
    size = cramped.stat("filled").size
    with pytest.raises(FileRejected, match="max_work_dir_bytes"):
        cramped.run_command("true")
    assert cramped.stat("filled").size == size
    cramped.remove("filled")
    assert cramped.run_command("echo lives").stdout == b"lives\n"


# -- the end ----------------------------------------------------------------------------------------------------------


def test_closing_ends_many_running_commands_soon(own_sandbox: Sandbox) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        waiting = [pool.submit(own_sandbox.run_command, ["sleep", LONG], timeout=600) for _ in range(AT_ONCE // 2)]
        background = [own_sandbox.start_command(["sleep", LONG]) for _ in range(AT_ONCE // 2)]
        _eventually(lambda: _running(own_sandbox, "sleep", LONG) == AT_ONCE)
        began = time.monotonic()
        own_sandbox.close()
        assert time.monotonic() - began < PATIENCE
        for each in waiting:
            with pytest.raises(SandboxGone):
                each.result(PATIENCE)
    assert {process.wait(PATIENCE).reason for process in background} == {"the sandbox was closed"}


HOST = """
import sys, threading
from agent_tools import Sandbox
sandbox = Sandbox({"transport": sys.argv[1]})
sandbox.start()
running = [sandbox.start_command(["sleep", "600"]) for _ in range(10)]
threading.Thread(target=sandbox.run_command, args=[["sleep", "600"]], daemon=True).start()
sandbox.run_command("setsid sleep 600 >/dev/null 2>&1 &")
print(sandbox.container.id, flush=True)
running[0].wait()
"""


@pytest.mark.parametrize("transport", ["sockets", "stdio"])
def test_a_killed_host_leaves_no_command_behind(docker_engine: DockerEngine, transport: str) -> None:
    with subprocess.Popen([sys.executable, "-c", HOST, transport], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout
        container = host.stdout.readline().strip()
        assert re.fullmatch("[0-9a-f]{64}", container)
        assert container in {sandbox.id for sandbox, _ in docker_engine.strays(same_host())}
        host.send_signal(signal.SIGKILL)
    _eventually(lambda: container not in {sandbox.id for sandbox, _ in docker_engine.strays(same_host())})
