"""Deleted files that processes hold on to."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_tools.limits import MIB
from agent_tools.machine.deleted_files import DeletedFiles, deleted_files

STRANGER = 54321  # a uid of nobody's
Starts = Callable[..., int]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that anybody may write to."""
    with tempfile.TemporaryDirectory(prefix="agent-tools-test-") as path:
        os.chmod(path, 0o777)
        yield Path(path)


@pytest.fixture
def device(folder: Path) -> int:
    """The one that is looked at."""
    return os.stat(folder).st_dev


@pytest.fixture
def start(folder: Path) -> Iterator[Starts]:
    """Starts a process in the folder that has run some code, and stays; gives its pid."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str) -> int:
        command = [sys.executable, "-S", "-c", f"{BEGINNING}{code}\nprint('ready', flush=True)\nsys.stdin.read()"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        started.append(subprocess.Popen(command, cwd=folder, text=True, start_new_session=True, **pipes))  # type: ignore[call-overload]
        assert started[-1].stdout
        assert started[-1].stdout.readline() == "ready\n"
        return started[-1].pid

    yield run
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


BEGINNING = """
import ctypes, os, sys, threading
libc = ctypes.CDLL(None)
def mapped(fd, size=1 << 20):
    assert libc.mmap(None, ctypes.c_size_t(size), 1, 1, fd, None) != -1  # mmap.mmap would keep the file open
    os.close(fd)
def made(path='big', size=1 << 20):
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    os.write(fd, b'x' * size)
    os.fsync(fd)
    os.unlink(path)
    return fd
"""


COUNTED = {
    "open": ("made()", 1),
    "two of them": ("made(); made()", 2),
    "open twice": ("os.dup(made())", 1),
    "mapped and closed": ("mapped(made())", 1),
    "the mapping's name ends its line": ("mapped(made('a b (deleted)'))", 1),
    "their names have line breaks": (
        "for name in map(chr, (10, 11, 12, 13, 28, 29, 30, 0x85, 0x2028, 0x2029)):\n    mapped(made(f'a{name}b'))",
        10,
    ),
    "shared with a child": ("fd = made(); pid = os.fork(); pid or os.execlp('cat', 'cat')", 1),
    "by a child alone": (
        "pid = os.fork(); pid or (made(), os.set_inheritable(3, True), sys.stdin.read(), os._exit(0))",
        1,
    ),
    "without ever having a name": (
        "fd = os.open('.', os.O_TMPFILE | os.O_RDWR); os.write(fd, b'x' * (1 << 20)); os.fsync(fd)",
        1,
    ),
    "by a thread with descriptors of its own": (
        "def run():\n    libc.unshare(0x400); made(); done.set(); end.wait()\n"
        "done, end = threading.Event(), threading.Event()\n"
        "threading.Thread(target=run, daemon=True).start(); done.wait()",
        1,
    ),
    "with a name that is left": (
        "fd = os.open('x', os.O_CREAT | os.O_RDWR); os.write(fd, b'x' * 9999); os.link('x', 'y'); os.unlink('x')",
        0,
    ),
    "in memory": ("os.write(os.memfd_create('big'), b'x' * (1 << 20))", 0),
    "on another device": ("made('/dev/shm/agent-tools-test-' + str(os.getpid()))", 0),
    "a folder": ("os.mkdir('d'); fd = os.open('d', os.O_RDONLY); os.rmdir('d')", 0),
}


@pytest.mark.parametrize(("code", "expected"), COUNTED.values(), ids=COUNTED.keys())
def test_bytes_of_deleted_files_are_counted_once(start: Starts, device: int, code: str, expected: int) -> None:
    first = start(code)
    deadline = time.monotonic() + 10
    while (found := deleted_files(first, device)) != DeletedFiles(expected * MIB) and time.monotonic() < deadline:
        time.sleep(0.05)  # a child of the process may not be ready when it is
    assert found == DeletedFiles(expected * MIB)


def test_a_process_that_is_gone_holds_nothing(device: int) -> None:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    assert deleted_files(int(done.stdout), device) == DeletedFiles()


@contextlib.contextmanager
def as_an_ordinary_user() -> Iterator[None]:
    """Return what a caller without root's powers sees, whoever runs the tests."""
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        os.setegid(STRANGER)
        os.seteuid(STRANGER)
    try:
        yield
    finally:
        os.seteuid(uid)
        os.setegid(gid)


AS_USER = f"os.getuid() or (os.setgid({STRANGER}), os.setuid({STRANGER}), libc.prctl(4, 1, 0, 0, 0)); "
HIDE = "libc.prctl(4, 0, 0, 0, 0)"


def test_an_ordinary_user_counts_what_processes_of_its_own_hold(start: Starts, device: int) -> None:
    first = start(AS_USER + "made(); mapped(made())")
    with as_an_ordinary_user():
        assert deleted_files(first, device) == DeletedFiles(2 * MIB)


HIDING_CHILD = f"""
made()
child, out = os.pipe()
if os.fork() == 0:
    {HIDE}
    os.write(out, b'x')
    sys.stdin.read()
    os._exit(0)
os.read(child, 1)
"""


def test_a_process_that_hides_what_it_holds_is_noticed(start: Starts, device: int) -> None:
    first = start(AS_USER + HIDING_CHILD)
    with as_an_ordinary_user():
        assert deleted_files(first, device).is_hidden
    if os.getuid() == 0:
        assert deleted_files(first, device) == DeletedFiles(MIB)


ENDED = {
    "zombie": "child = os.fork(); child or os._exit(0); os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)",
    "killed": """
child = os.fork()
child or sys.stdin.read()
os.kill(child, 9)
os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
""",
    "leader of other threads": """
ended, out = os.pipe()
def run():
    state = ''
    while state != 'Z':
        with open(f'/proc/self/task/{os.getpid()}/stat') as file:
            state = file.read().rpartition(')')[2].split()[0]
    os.write(out, b'x')
    sys.stdin.read()
if os.fork() == 0:
    threading.Thread(target=run).start()
    libc.pthread_exit(None)
os.read(ended, 1)
""",
}


@pytest.mark.parametrize("code", ENDED.values(), ids=ENDED.keys())
def test_ended_processes_and_threads_hide_nothing(start: Starts, device: int, code: str) -> None:
    first = start(AS_USER + code)
    with as_an_ordinary_user():
        assert deleted_files(first, device) == DeletedFiles()


def test_files_count_though_the_leader_of_the_threads_has_ended(start: Starts, device: int) -> None:
    files = "made(); mapped(made())"
    code = ENDED["leader of other threads"].replace("    threading", f"    {files}\n    threading")
    first = start(AS_USER + code)
    with as_an_ordinary_user():
        assert deleted_files(first, device) == DeletedFiles(2 * MIB)
    assert deleted_files(first, device) == DeletedFiles(2 * MIB)


def test_a_file_with_holes_counts_what_it_has_on_disk_if_it_is_open_too(start: Starts, device: int) -> None:
    first = start(AS_USER + "fd = made(); os.ftruncate(fd, 1 << 30); mapped(os.dup(fd), 1 << 30)")
    with as_an_ordinary_user():
        assert deleted_files(first, device) == DeletedFiles(MIB)


def test_pid_1_may_hide(start: Starts, device: int) -> None:
    first = start(AS_USER + HIDE)
    with as_an_ordinary_user():
        assert deleted_files(first, device) == DeletedFiles()
