"""Code that takes all it can get: it meets a limit of its own, and neither the host nor a neighbour feels it."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.limits import MIB
from agent_tools.results.execution import Died, TimedOut
from agent_tools.runtime.files.quota import CHECK_SECONDS, HIDDEN_SECONDS
from agent_tools.runtime.runtime import Runtime
from agent_tools.tools import CodeInterpreter
from tests.docker.lasting import begin_anew, lasting_tool

pytestmark = pytest.mark.docker
PATIENCE = 3.0


@pytest.fixture
def tool(fresh_tool: CodeInterpreter) -> CodeInterpreter:
    return fresh_tool


@pytest.fixture(scope="module")
def used_cramped(docker_runtime: Runtime) -> Iterator[CodeInterpreter]:
    """A tool with little of everything that tests have one after another: whatever runs out, the next call works."""
    little = {"memory": 256 * MIB, "pids": 64, "tmp": 8 * MIB, "shm": 8 * MIB, "home": 8 * MIB}
    with lasting_tool(docker_runtime, {"limits": {"max_work_dir_bytes": 50 * MIB}, **little}) as tool:
        yield tool


@pytest.fixture
def cramped(used_cramped: CodeInterpreter) -> CodeInterpreter:
    """The one with little of everything, with a fresh kernel and an empty folder."""
    used_cramped.start()  # it has ended, where what is unseen was too much
    begin_anew(used_cramped.as_sandbox)
    return used_cramped


def _printed(tool: CodeInterpreter, code: str, timeout: float = 30) -> str:
    return tool.run({"code": code}, timeout=timeout).stdout.strip()


def test_a_child_over_the_memory_limit_dies_alone(cramped: CodeInterpreter) -> None:
    eater = "open('/proc/self/oom_score_adj', 'w').write('1000')\nx = []\nwhile True: x.append(bytearray(16 << 20))"
    code = f"import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', {eater!r}]).returncode)"
    assert _printed(cramped, f"kept = 1\n{code}") == "-9"
    assert _printed(cramped, "print(kept)") == "1"


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_empty_files_in_memory_are_bounded_and_the_next_call_works(cramped: CodeInterpreter, folder: str) -> None:
    code = f"""import os
made = 0
try:
    while made < 200_000:
        os.close(os.open(f"{folder}/empty-{{made}}", os.O_CREAT | os.O_WRONLY))
        made += 1
except OSError as exc:
    print(exc.strerror, made < 20_000)"""
    assert _printed(cramped, code) == "No space left on device True"
    cramped.as_sandbox.restart()
    assert _printed(cramped, "print(6 * 7)") == "42"
    cramped.as_sandbox.run_command(["find", folder, "-name", "empty-*", "-delete"])


def test_a_kernel_that_ends_by_files_in_memory_says_where_they_are(docker_runtime: Runtime) -> None:
    with lasting_tool(docker_runtime, {"memory": 256 * MIB, "tmp": 256 * MIB}) as tool:
        done = tool.run("with open('/tmp/large', 'wb') as file:\n    while True: file.write(bytes(1 << 20))")
        assert re.search(r"files in /tmp take \d+ MiB \(.*reset the sandbox", done.outputs[-1].text)
        tool.as_sandbox.reset()
        assert _printed(tool, "print(6 * 7)") == "42"


def test_without_room_for_a_process_files_and_commands_are_refused_and_variables_live(
    fresh_tool: CodeInterpreter,
) -> None:
    filler = "import threading, time\nkept, over = 1, threading.Event()\ntry:\n    while True:"
    filler += " threading.Thread(target=over.wait).start()\nexcept RuntimeError as exc: print(exc)"
    assert "can't start new thread" in _printed(fresh_tool, filler)
    sandbox = fresh_tool.as_sandbox
    with pytest.raises(BlockingIOError, match=r"no room for one more process \(pids\): 'a'"):
        sandbox.write_file("a", "b")
    with pytest.raises(BlockingIOError):
        sandbox.read_file("b")
    refused = sandbox.run_command("true", timeout=10)
    assert (refused.exit_code, refused.reason) == (126, "true: Resource temporarily unavailable")
    assert _printed(fresh_tool, "over.set(); print(kept)") == "1"
    while sandbox.run_command("true").exit_code:
        time.sleep(0.1)
    sandbox.write_file("a", "b")


def test_one_huge_allocation_fails_or_ends_the_kernel_at_once(cramped: CodeInterpreter) -> None:
    execution = cramped.run("x = bytearray(50 << 30)", timeout=30)
    assert execution.duration < 30
    assert not execution.ok
    assert _printed(cramped, "print('alive')") == "alive"


FULL_CONNECTIONS = """
import socket
server = socket.create_server(('127.0.0.1', 0), backlog=500)
pairs, sent = [], 0
while len(pairs) < 100:
    client = socket.create_connection(server.getsockname())
    pairs.append((client, server.accept()[0]))
    client.setblocking(False)
    try:
        while True: sent += client.send(bytes(1 << 20))
    except BlockingIOError: pass
print(sent)
"""


def test_buffers_of_connections_are_bounded_and_connections_work_afterwards(cramped: CodeInterpreter) -> None:
    assert int(_printed(cramped, FULL_CONNECTIONS)) < 100 * MIB
    through = """
import threading
pairs.clear()
client = socket.create_connection(server.getsockname())
got, _ = server.accept()
sender = threading.Thread(target=lambda: (client.sendall(bytes(64 << 20)), client.close()))
sender.start()
total = 0
while piece := got.recv(1 << 20): total += len(piece)
print(total >> 20)
"""
    assert _printed(cramped, through) == "64"


@pytest.mark.parametrize(
    "folder", ["/tmp", "/var/tmp", "/dev/shm", "/home/sandbox"], ids=["tmp", "var-tmp", "shm", "home"]
)
def test_a_folder_in_memory_is_full_at_its_size(cramped: CodeInterpreter, folder: str) -> None:
    code = f"""
import os
try:
    for number in range(99):
        with open(f'{folder}/{{number}}', 'wb') as file:
            file.write(bytes(1 << 20))
except OSError as exc:
    print(exc.strerror)
print(sum(entry.stat().st_size for entry in os.scandir('{folder}') if entry.is_file()) <= 8 << 20)
"""
    assert _printed(cramped, code) == "No space left on device\nTrue"
    cramped.as_sandbox.run_command(f"rm {folder}/*")


def test_threads_are_limited(cramped: CodeInterpreter) -> None:
    code = """
import threading
stop, made = threading.Event(), []
try:
    while True:
        made.append(threading.Thread(target=stop.wait))
        made[-1].start()
except RuntimeError as exc:
    print(exc, len(made) < 64)
stop.set()
"""
    assert _printed(cramped, code) == "can't start new thread True"
    assert _printed(cramped, "print('alive')") == "alive"


def test_a_sparse_giant_is_refused_and_not_left(tool: CodeInterpreter) -> None:
    code = "file = open('giant', 'wb')\ntry: file.truncate(1 << 40)\nexcept OSError as exc: print(exc.strerror)"
    assert _printed(tool, code) == "File too large"
    assert os.stat(Path(tool.work_dir) / "giant").st_size == 0


FALLOCATING = """
import ctypes, os, sqlite3
import numpy as np
libc = ctypes.CDLL(None, use_errno=True)
def fallocate(fd, mode, offset, size):
    done = libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(size))
    return os.strerror(ctypes.get_errno()) if done else 'done'
with open('file', 'wb+') as file:
    fd = file.fileno()
    print({fallocate(fd, mode, 0, 1 << 24) for mode in (0, 1, 0x10, 0x11)}, os.fstat(fd).st_blocks)
    os.posix_fallocate(fd, 0, 1 << 20)
    os.fsync(fd)
    print(os.fstat(fd).st_size, os.fstat(fd).st_blocks * 512 >= 1 << 20)
np.zeros(24 << 20, np.uint8).tofile('array')  # of more than 16 MiB NumPy allocates the file first
print(os.path.getsize('array'))
base = sqlite3.connect('base')
base.execute('create table t (x)')
base.executemany('insert into t values (?)', [(n,) for n in range(1000)])
base.commit()
print(base.execute('select count(*) from t').fetchone())
"""


def test_disk_is_taken_by_writing_only_and_what_allocates_a_file_writes_it_instead(tool: CodeInterpreter) -> None:
    assert _printed(tool, FALLOCATING).splitlines() == [
        "{'Operation not supported'} 0",
        "1048576 True",
        "25165824",
        "(1000,)",
    ]


def test_a_hole_in_a_file_gives_its_disk_back(cramped: CodeInterpreter) -> None:
    code = """
import ctypes, os
with open('file', 'wb') as file:
    file.write(bytes(1 << 20)); file.flush(); os.fsync(file.fileno())
    before = os.fstat(file.fileno()).st_blocks
    done = ctypes.CDLL(None).fallocate(file.fileno(), 3, ctypes.c_long(0), ctypes.c_long(1 << 20))
    print(done, os.fstat(file.fileno()).st_size, os.fstat(file.fileno()).st_blocks < before)
"""
    assert _printed(cramped, code) == "0 1048576 True"


UNSEEN = {
    "deleted": "for n in range(6): fd = os.open('f', os.O_CREAT | os.O_RDWR); os.unlink('f'); fill(fd)",
    "deleted, mapped and closed": """
for n in range(6):  # mmap.mmap would keep the file open
    fd = os.open('f', os.O_CREAT | os.O_RDWR); os.unlink('f'); fill(fd)
    ctypes.CDLL(None).mmap(None, ctypes.c_size_t(10 << 20), 1, 1, fd, None); os.close(fd)
""",
    "deleted, in a process that hides": """
if os.fork() == 0:
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    for n in range(6): fd = os.open('f', os.O_CREAT | os.O_RDWR); os.unlink('f'); fill(fd)
    time.sleep(60)
""",
}


@pytest.mark.parametrize("code", UNSEEN.values(), ids=UNSEEN)
def test_files_that_no_folder_shows_count_in_work_dir(cramped: CodeInterpreter, code: str) -> None:
    _ends_for_what_no_folder_shows(cramped, code)


def test_files_that_no_folder_shows_count_over_stdio(new_tool: Callable[..., CodeInterpreter]) -> None:
    tool = new_tool(limits={"max_work_dir_bytes": 50 * MIB}, transport="stdio")
    _ends_for_what_no_folder_shows(tool, UNSEEN["deleted"])


def _ends_for_what_no_folder_shows(tool: CodeInterpreter, code: str) -> None:
    head = "import ctypes, os, time\ndef fill(fd):\n    for _ in range(10): os.write(fd, bytes(1 << 20))\n"
    execution = tool.run({"code": f"{head}{code}\ntime.sleep(60)"}, timeout=60)
    assert isinstance(execution.outputs[-1], Died), execution.outputs
    assert re.search(
        r"with deleted files it holds open \(max_work_dir_bytes\)|hid a process", execution.outputs[-1].text
    )
    assert _printed(tool, "print('alive')") == "alive"


def test_zombies_are_not_mistaken_for_hidden_processes(tool: CodeInterpreter) -> None:
    seconds = HIDDEN_SECONDS + 2 * CHECK_SECONDS
    code = f"import subprocess, time\np = subprocess.Popen(['true'])\ntime.sleep({seconds})\nprint(p.wait())"
    assert _printed(tool, code) == "0"


def test_files_without_a_name_cannot_be_made(tool: CodeInterpreter) -> None:
    code = "import os\ntry: os.open('.', os.O_TMPFILE | os.O_RDWR)\nexcept OSError as exc: print(exc.strerror)"
    assert _printed(tool, code) == "Operation not supported"


def test_a_core_is_dumped_nowhere(tool: CodeInterpreter) -> None:
    assert _printed(tool, "import resource\nprint(resource.getrlimit(resource.RLIMIT_CORE))") == "(0, 0)"
    assert isinstance(tool.run("import os\nos.abort()").outputs[-1], Died)
    assert os.listdir(tool.work_dir) == []


def test_the_containers_log_cannot_be_filled(tool: CodeInterpreter, docker_engine: DockerEngine) -> None:
    code = """
import os
for fd in (1, 2):
    for pid in (1, 'self'):
        try:
            with open(f'/proc/{pid}/fd/{fd}', 'wb') as log:
                for _ in range(4): log.write(b'x' * (1 << 20))
        except OSError:
            pass
"""
    tool.run(code, timeout=20)
    assert len(docker_engine.connection.api().logs(tool.sandbox.id)) <= 2 * MIB  # type: ignore[union-attr]
    assert _printed(tool, "print('alive')") == "alive"


def test_an_endless_print_keeps_its_head_and_tail(tool: CodeInterpreter) -> None:
    execution = tool.run("n = 0\nwhile True:\n    n += 1\n    print(n)", timeout=1)
    assert isinstance(execution.outputs[-1], TimedOut)
    assert execution.stdout.startswith("1\n2\n3\n")
    assert len(execution.stdout) <= 41_000
    assert any("left out" in output.text for output in execution.outputs)


OBEYS_SLOWLY = """
import time
kept, started = 1, time.process_time()
sum(range(1_000_000))
count = int(1_000_000 * 0.45 / (time.process_time() - started))
sum(range(count))  # looks at no signal for 0.45 s of processor time, which are 4.5 s of half a core beside four others
"""


def test_a_kernel_that_gets_little_processor_time_has_time_to_obey(new_tool: Callable[..., CodeInterpreter]) -> None:
    tool = new_tool(cpus=0.5, limits={"kill_grace": 20.0})  # which are 40 s at most, on a busy machine
    tool.run("1")
    busy = [tool.as_sandbox.start_command("while :; do :; done") for _ in range(4)]
    execution = tool.run(OBEYS_SLOWLY, timeout=0.5)
    for each in busy:
        each.kill()
    assert not any(isinstance(output, Died) for output in execution.outputs), execution
    assert _printed(tool, "print(kept)") == "1"


def test_busy_loops_on_all_cores_do_not_stop_a_neighbour(
    new_tool: Callable[..., CodeInterpreter], tool: CodeInterpreter
) -> None:
    greedy, neighbour = new_tool(), tool
    assert _printed(neighbour, "print(1)") == "1"
    greedy.run("1")
    burn = "import os\nfor _ in range(32): os.fork() or exec('while True: pass')\nwhile True: pass"
    thread = threading.Thread(target=greedy.run, args=({"code": burn},), kwargs={"timeout": 1.5})
    thread.start()
    started = time.monotonic()
    for number in range(20):
        assert _printed(neighbour, f"print({number})") == str(number)
    assert time.monotonic() - started < 20
    thread.join(30)
    assert not thread.is_alive()
