"""Removal of folders as a guest may have left them, and of folders it still writes to."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import socket
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_tools.machine.removal import BATCH, remove_tree
from tests.unit.machine.test_folder import dig

NOBODY = 65534
_DUMPABLE = 4  # PR_SET_DUMPABLE: without it /proc/self is not ours after a change of user


@pytest.fixture
def top() -> Iterator[Path]:
    """A folder in memory: a disk takes minutes for as many folders."""
    home = Path(tempfile.mkdtemp(prefix="agent-tools-test-", dir="/dev/shm"))
    home.chmod(0o755)
    (home / "top").mkdir()
    yield home / "top"
    subprocess.run(["rm", "-rf", str(home)], check=True)


@pytest.fixture
def outside(top: Path) -> Path:
    """A folder beside it, with a file."""
    (top.parent / "outside").mkdir()
    (top.parent / "outside" / "kept").write_text("kept")
    return top.parent / "outside"


def grow(top: Path) -> None:
    """A small tree of everything there is."""
    (top / "a" / "b" / "c").mkdir(parents=True)
    (top / "a" / "b" / "file").write_text("x")
    (top / os.fsdecode(b"\xff\n\x1b")).write_text("x")
    (top / "a" / ".hidden").mkdir()
    os.mkfifo(top / "a" / "fifo")
    (top / "a" / "loop").symlink_to(top)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(top / "s"))


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Without root's rights, as who owns the files."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
        ctypes.CDLL(None).prctl(_DUMPABLE, 1, 0, 0, 0)
    try:
        yield
    finally:
        os.seteuid(before)


def test_everything_is_removed(top: Path) -> None:
    grow(top)
    assert remove_tree(top)
    assert not top.exists()
    assert remove_tree(top)


def test_a_folder_is_removed_by_its_name_below_a_descriptor(top: Path) -> None:
    grow(top)
    parent = os.open(top.parent, os.O_RDONLY)
    try:
        assert remove_tree("top", dir_fd=parent)
    finally:
        os.close(parent)
    assert not top.exists()


def test_folders_of_any_depth_are_removed(top: Path) -> None:
    dig(top, 50_000)
    assert remove_tree(top, seconds=1e9)
    assert not top.exists()


def test_depth_takes_few_descriptors_and_little_memory(top: Path) -> None:
    dig(top, 5_000)
    most = 0

    def look(frame: object, event: str, called: object) -> None:
        nonlocal most
        if event == "c_call" and called is os.rename and next(calls) % 100 == 0:
            most = max(most, len(os.listdir("/proc/self/fd")))

    calls, before = itertools.count(), len(os.listdir("/proc/self/fd"))
    tracemalloc.start()
    sys.setprofile(look)
    try:
        assert remove_tree(top, seconds=1e9)
    finally:
        sys.setprofile(None)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert 0 < most <= before + 4
    assert peak < 500_000


def test_any_number_of_entries_is_removed_in_little_memory(top: Path) -> None:
    for number in range(5 * BATCH + 1):
        (top / str(number)).mkdir()
    (top / "wide").mkdir()
    for number in range(2 * BATCH):
        (top / "wide" / f"{number}").mkdir()
        (top / "wide" / f"file{number}").touch()
    tracemalloc.start()
    assert remove_tree(top, seconds=1e9)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000
    assert not top.exists()


@pytest.mark.parametrize("planted", ["link", "a/link", "a/b/link"])
def test_no_link_is_followed(top: Path, outside: Path, planted: str) -> None:
    (top / "a" / "b").mkdir(parents=True)
    (top / planted).symlink_to(outside)
    assert remove_tree(top)
    assert (outside / "kept").read_text() == "kept"


def test_a_link_or_file_in_place_of_the_folder_is_removed_alone(top: Path, outside: Path) -> None:
    (top / "link").symlink_to(outside)
    (top / "file").touch()
    assert remove_tree(top / "link")
    assert remove_tree(top / "file")
    assert os.listdir(top) == []
    assert (outside / "kept").exists()


@pytest.mark.parametrize("locked", ["top", "top/a", "top/a/b"])
def test_folders_without_permissions_are_removed_by_their_owner(top: Path, locked: str) -> None:
    home = top.parent
    (home / "top" / "a" / "b" / "c").mkdir(parents=True)
    (home / "top" / "a" / "b" / "file").touch()
    for path in (home, *home.rglob("*")):
        os.chown(path, NOBODY if os.getuid() == 0 else -1, -1)
    (home / locked).chmod(0)
    with unprivileged():
        assert remove_tree(top)
    assert not top.exists()


def test_what_may_not_be_removed_is_told_and_the_rest_is_gone(top: Path) -> None:
    (top / "theirs").mkdir()
    (top / "theirs" / "file").touch()
    (top / "ours").mkdir()
    for path in (top.parent, top, top / "ours"):
        os.chown(path, NOBODY if os.getuid() == 0 else -1, -1)
    if os.getuid() == 0:
        with unprivileged():
            assert not remove_tree(top)
        assert [path.name for path in top.rglob("file")] == ["file"]
        assert not (top / "ours").exists()
    assert remove_tree(top)


def test_what_is_left_when_the_time_is_over_is_removed_the_next_time(top: Path) -> None:
    dig(top, 100)
    ticks = itertools.count()
    assert not remove_tree(top, seconds=50, clock=lambda: float(next(ticks)))
    assert top.exists()
    assert remove_tree(top)


@pytest.mark.needs_root(reason="only root can mount")
def test_what_is_mounted_inside_is_not_entered(top: Path, outside: Path) -> None:
    (top / "a" / "mounted").mkdir(parents=True)
    (top / "a" / "file").touch()
    code = (
        "import subprocess, sys\nfrom agent_tools.machine.removal import remove_tree\n"
        "subprocess.run(['mount', '--bind', sys.argv[2], sys.argv[1] + '/a/mounted'], check=True)\n"
        "print(remove_tree(sys.argv[1]))\n"
        "subprocess.run(['umount', '-R', '-l', sys.argv[1] + '/a/mounted'])"
    )
    command = ["unshare", "--mount", sys.executable, "-c", code, str(top), str(outside)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "False"
    assert (outside / "kept").read_text() == "kept"
    assert not list(top.rglob("file"))


def _swap(top: Path, outside: Path) -> None:
    (top / "d").mkdir(exist_ok=True)
    (top / "d" / "kept").touch()
    (top / "d").rename(top / "moved")
    (top / "d").symlink_to(outside)


def _pull_down(top: Path, outside: Path) -> None:
    (top / "p" / "p").mkdir(parents=True, exist_ok=True)
    for name in os.listdir(top):
        (top / name).rename(top / "p" / "p" / name)


def _replace(top: Path, outside: Path) -> None:
    for name in os.listdir(top):
        (top / name).rename(top / f"{name}x"[-200:])
        (top / name).symlink_to(outside)


@pytest.mark.parametrize("disturb", [_swap, _pull_down, _replace])
def test_whoever_still_writes_there_can_keep_files_and_reaches_nothing_else(
    top: Path, outside: Path, disturb: Callable[[Path, Path], None]
) -> None:
    done, enough, rounds = threading.Event(), threading.Event(), itertools.count()

    def work() -> None:
        while not done.is_set():
            with contextlib.suppress(OSError):
                disturb(top, outside)
            if next(rounds) > 20:
                enough.set()

    dig(top, 500)
    worker = threading.Thread(target=work)
    worker.start()
    try:
        for number in range(10_000):  # 20 times, and more only where the other thread has yet to come to it
            top.mkdir(exist_ok=True)
            remove_tree(top, seconds=0.1)
            if number >= 20 and enough.wait(0.01):
                break
    finally:
        done.set()
        worker.join()
    assert enough.is_set()
    assert remove_tree(top)
    assert not top.exists()
    assert os.listdir(outside) == ["kept"]
