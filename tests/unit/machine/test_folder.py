"""A folder that somebody hostile writes to, looked at and changed without following anything."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_tools.machine import folder
from agent_tools.machine.folder import MAX_DEPTH, MAX_LEVELS, FolderUsage

ME = (os.getuid(), os.getgid())
BOUNDLESS = FolderUsage(2**63, 2**63, 2**63)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "work"
    path.mkdir()
    yield path
    subprocess.run(["rm", "-rf", str(path)], check=True)  # which has no trouble with depth


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    return secret


def facts_of(path: Path) -> folder.Facts:
    found = path.lstat()
    return found.st_size, found.st_mtime_ns, found.st_ino


def names(path: Path, limit: int = 1000) -> list[str]:
    return sorted(folder.snapshot(path, limit)[0])


def dig(path: Path, depth: int) -> None:
    """Nest folders, deeper than any path can name."""
    fd = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


def test_a_snapshot_names_regular_files_with_their_facts(path: Path) -> None:
    (path / "a").mkdir()
    (path / "a" / "ü 1.txt").write_text("12345")
    found, is_all = folder.snapshot(path, 10)
    assert is_all
    assert found == {"a/ü 1.txt": facts_of(path / "a" / "ü 1.txt")}


def test_links_fifos_sockets_and_folders_are_no_files(path: Path, secret: Path) -> None:
    (path / "link").symlink_to(secret)
    (path / "folder").symlink_to(secret.parent)
    (path / "loop").symlink_to(path)
    os.mkfifo(path / "fifo")
    with socket.socket(socket.AF_UNIX) as planted:
        planted.bind(str(path / "socket"))
        assert names(path) == []


def test_a_snapshot_stops_at_its_limit_and_says_so(path: Path) -> None:
    for number in range(5):
        (path / str(number)).touch()
    assert folder.snapshot(path, 5)[1]
    found, is_all = folder.snapshot(path, 4)
    assert not is_all
    assert len(found) == 4


def test_a_snapshot_of_a_folder_that_is_gone_or_a_link_is_empty(path: Path, tmp_path: Path) -> None:
    (path / "a").touch()
    (tmp_path / "link").symlink_to(path)
    assert names(tmp_path / "nothing") == names(tmp_path / "link") == []


def test_names_that_are_no_text_are_told_as_text(path: Path) -> None:
    (path / os.fsdecode(b"a\xff\x1b")).touch()
    assert names(path) == ["a\\xff\x1b"]


def test_folders_of_any_depth_are_survived(path: Path) -> None:
    dig(path, 5000)
    fds = len(os.listdir("/proc/self/fd"))
    assert names(path) == []
    found = folder.usage(path, BOUNDLESS)
    assert found.entries == found.levels == MAX_LEVELS + 1
    assert len(os.listdir("/proc/self/fd")) == fds


def test_a_file_below_the_deepest_listed_folder_is_not_listed(path: Path) -> None:
    deepest = path.joinpath(*["d"] * MAX_DEPTH)
    (deepest / "d").mkdir(parents=True)
    (deepest / "seen").touch()
    (deepest / "d" / "unseen").touch()
    assert names(path) == ["d/" * MAX_DEPTH + "seen"]


def test_usage_counts_entries_and_bytes_on_disk(path: Path) -> None:
    (path / "a").mkdir()
    (path / "a" / "full").write_bytes(os.urandom(1_000_000))
    with (path / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    found = folder.usage(path, BOUNDLESS)
    assert (found.entries, found.levels) == (3, 1)
    assert 1_000_000 <= found.bytes < 1_200_000


def test_a_file_with_several_names_counts_its_bytes_once(path: Path) -> None:
    (path / "one").write_bytes(os.urandom(1_000_000))
    for number in range(20):
        os.link(path / "one", path / f"again{number}")
    found = folder.usage(path, BOUNDLESS)
    assert found.entries == 21
    assert found.bytes < 1_200_000


@pytest.mark.parametrize("limit", [FolderUsage(0, 2**63, 64), FolderUsage(2**63, 3, 64)])
def test_counting_stops_at_the_limit(path: Path, limit: FolderUsage) -> None:
    for number in range(100):
        (path / str(number)).write_text("x")
    assert folder.usage(path, limit).entries <= 4


def test_a_file_is_opened_and_a_link_fifo_or_folder_is_not(path: Path, secret: Path) -> None:
    (path / "file").write_text("x")
    (path / "link").symlink_to(secret)
    (path / "linked").symlink_to(secret.parent)
    (path / "folder").mkdir()
    os.mkfifo(path / "fifo")
    with folder.opened(path, "file") as file:
        assert file
        assert file.read() == b"x"
    for name in ("link", "linked/secret", "folder", "fifo", "nothing", "file/below", "\ud800"):
        with folder.opened(path, name) as file:
            assert file is None, name


def test_a_file_is_replaced_whole_with_the_facts_it_then_has(path: Path) -> None:
    (path / "a").write_text("old")
    facts = folder.replace(path, "a", iter([b"new ", b"text"]), ME)
    assert (path / "a").read_text() == "new text"
    assert facts == facts_of(path / "a")
    assert os.listdir(path) == ["a"]


def test_folders_are_made_for_a_file(path: Path) -> None:
    folder.replace(path, "a/b/c.txt", iter([b"x"]), ME)
    assert (path / "a/b/c.txt").read_text() == "x"


def test_folders_that_are_made_belong_to_whom_the_file_is_for(path: Path) -> None:
    owner = (23_456, 23_457) if os.getuid() == 0 else ME
    folder.replace(path, "a/b/c.txt", iter([b"x"]), owner)
    found = [(path / name).stat() for name in ("a", "a/b", "a/b/c.txt")]
    assert [(each.st_uid, each.st_gid) for each in found] == [owner] * 3


def test_nothing_is_written_through_a_link(path: Path, secret: Path) -> None:
    (path / "link").symlink_to(secret)
    (path / "folder").symlink_to(secret.parent)
    folder.replace(path, "link", iter([b"x"]), ME)
    with pytest.raises(OSError):
        folder.replace(path, "folder/secret", iter([b"x"]), ME)
    assert secret.read_text() == "secret"
    assert not (path / "link").is_symlink()


def test_a_write_that_breaks_off_leaves_what_was_there(path: Path) -> None:
    (path / "a").write_text("old")

    def chunks() -> Iterator[bytes]:
        yield b"ne"
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        folder.replace(path, "a", chunks(), ME)
    assert (path / "a").read_text() == "old"
    assert os.listdir(path) == ["a"]


def test_a_file_takes_the_place_of_empty_folders_and_of_no_others(path: Path) -> None:
    (path / "empty" / "inner").mkdir(parents=True)
    (path / "full" / "inner").mkdir(parents=True)
    (path / "full" / "inner" / "file").touch()
    folder.replace(path, "empty", iter([b"x"]), ME)
    assert (path / "empty").read_text() == "x"
    with pytest.raises(OSError):
        folder.replace(path, "full", iter([b"x"]), ME)
    assert (path / "full" / "inner" / "file").exists()
    assert sorted(os.listdir(path)) == ["empty", "full"]


def test_only_the_known_file_is_deleted(path: Path, secret: Path) -> None:
    (path / "a").write_text("known")
    known = facts_of(path / "a")
    (path / "b").write_text("other")
    (path / "link").symlink_to(secret)
    folder.delete(path, "a", known)
    folder.delete(path, "a", known)
    folder.delete(path, "b", known)
    folder.delete(path, "link", facts_of(secret))
    assert sorted(os.listdir(path)) == ["b", "link"]
    assert secret.exists()


def test_a_folder_swapped_for_a_link_all_the_time_leads_nowhere(path: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("secret")
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            for make in (lambda: (path / "d").mkdir(), lambda: (path / "d").symlink_to(outside)):
                subprocess.run(["rm", "-rf", str(path / "d")], check=False, stderr=subprocess.DEVNULL)
                with contextlib.suppress(OSError):
                    make()

    swapper = threading.Thread(target=swap)
    swapper.start()
    deadline = time.monotonic() + 1.0
    try:
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                folder.replace(path, "d/file", iter([b"ours"]), ME)
            with folder.opened(path, "d/file") as file:
                assert file is None or file.read() == b"ours"
            folder.snapshot(path, 100)
    finally:
        done.set()
        swapper.join()
    assert (outside / "file").read_text() == "secret"
    assert os.listdir(outside) == ["file"]


def test_a_moment_divides_what_changed_before_from_what_changes_after(path: Path) -> None:
    changed, times = path / "file", facts_of(path)
    changed.write_text("before")
    before = changed.stat().st_ctime_ns
    moment = folder.moment(path)
    changed.write_text("after")
    assert moment.is_known
    assert before < moment.end
    assert before <= moment.ns <= changed.stat().st_ctime_ns
    assert moment.ns <= folder.moment(path).ns
    os.utime(path, ns=(0, 0))
    folder.moment(path)
    assert (path.stat().st_mtime_ns, facts_of(path)[2]) == (0, times[2])


def test_a_moment_is_not_known_of_a_folder_that_is_not_there(path: Path) -> None:
    moment = folder.moment(path / "none")
    assert not moment.is_known
    assert moment.ns < time.time_ns() < moment.end


CLOSED = """
import os, pathlib
from agent_tools.machine import folder
if os.getuid() == 0:  # who may read every folder
    os.chown(".", 12_345, 12_345)
    os.setgroups([]), os.setgid(12_345), os.setuid(12_345)
os.makedirs("closed/inner")
with open("closed/inner/big", "wb") as file:
    file.write(bytes(100_000))
for name in ("closed/inner", "closed"):
    os.chmod(name, 0o300)  # where code may write, and not list
print(folder.usage(pathlib.Path("."), folder.FolderUsage(2**63, 2**63, 2**63)).largest)
"""


def test_usage_counts_what_lies_in_folders_that_their_owner_has_closed(tmp_path: Path) -> None:
    told = subprocess.run([sys.executable, "-c", CLOSED], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert told.stdout.startswith("('closed/inner/big', 1")


def test_usage_names_the_largest_file_and_counts_what_changed_since_a_moment(path: Path) -> None:
    (path / "folder").mkdir()
    (path / "folder" / "large").write_bytes(os.urandom(100_000))
    with (path / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 30)
    (path / "small").write_bytes(os.urandom(5000))
    after = (path / "small").stat().st_ctime_ns + 1
    while (moment := folder.moment(path)).ns < after:  # until the clock of the file system ticks
        time.sleep(0.001)
    (path / "new").write_bytes(os.urandom(20_000))
    found = folder.usage(path, BOUNDLESS, moment.ns)
    assert found.largest == ("folder/large", (path / "folder" / "large").stat().st_blocks * 512)
    assert found.changed == (path / "new").stat().st_blocks * 512 < found.bytes
