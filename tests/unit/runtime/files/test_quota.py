"""The brake on a guest that fills its work_dir."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_tools.engines.isolation import Isolation
from agent_tools.errors import FileRejected
from agent_tools.guest.wire.words import Pause, Resume
from agent_tools.limits import MIB, Limits
from agent_tools.machine import folder
from agent_tools.machine.deleted_files import DeletedFiles
from agent_tools.machine.folder import FolderUsage
from agent_tools.machine.rounds import ROUND_SECONDS, Rounds
from agent_tools.results.execution import Notice, Result
from agent_tools.runtime.files.quota import (
    CHECK_SECONDS,
    HIDDEN_LOOKS,
    IDLE_CHECK_SECONDS,
    MOST_IDLE_SECONDS,
    PAUSE_FACTOR,
    Brake,
    Quota,
    QuotaWatch,
)
from agent_tools.runtime.sandbox.sandbox import LiveSandbox
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.runtime.session.session import Session
from tests.doubles import ProcessEngine

FOREVER = 20.0  # seconds: only a failing test waits this long
BOUNDLESS = FolderUsage(2**63, 2**63, 2**63)
HASTE = 50  # how many seconds of a watch pass in one of ours


class Guest:
    """Takes the watcher's orders. `when_paused` runs at each pause, as what a guest's last moments may do."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.reason = ""
        self.is_busy = True
        self.resumed = threading.Event()
        self.killed = threading.Event()
        self.when_paused: Callable[[], object] = lambda: None

    def tell(self, order: Pause | Resume) -> None:
        self.words.append(type(order).__name__.lower())
        if isinstance(order, Pause):
            self.when_paused()
        else:
            self.resumed.set()

    def kill(self, reason: str) -> None:
        self.words.append("kill")
        self.reason = reason
        self.is_busy = False
        self.killed.set()


class Clock:
    """A watch's clock that runs fast, and rounds that are as fast."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.rounds = Rounds(ROUND_SECONDS / HASTE)

    def __call__(self) -> float:
        return (time.monotonic() - self._began) * HASTE

    def reaches(self, seconds: float) -> bool:
        """Wait until so many seconds have passed."""
        while self() < seconds:
            time.sleep(0.01)
        return True

    def watch(self, quota: Quota, guest: Guest, held: Callable[[], DeletedFiles] = DeletedFiles) -> QuotaWatch:
        return QuotaWatch(quota, Brake(guest.tell, guest.kill), lambda: guest.is_busy, held, self, self.rounds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def guest() -> Guest:
    return Guest()


@pytest.fixture
def watch(tmp_path: Path, guest: Guest, clock: Clock) -> Iterator[Callable[..., Quota]]:
    watches: list[QuotaWatch] = []

    def make(quota: Quota | None = None, **limits: int) -> Quota:
        quota = quota or Quota(tmp_path, Limits(**{"min_disk_free": 0, **limits}))  # type: ignore[arg-type]
        watches.append(clock.watch(quota, guest))
        quota.refuse_excess()  # which waits until what is there was counted
        return quota

    yield make
    for each in watches:
        each.close()


def fill(path: Path, size: int, name: str = "big") -> Path:
    (path / name).write_bytes(os.urandom(size))
    return path / name


def test_bytes_over_the_limit_pause_and_then_kill_with_the_reason(
    watch: Callable[..., Quota], guest: Guest, tmp_path: Path
) -> None:
    watch(max_work_dir_bytes=MIB)
    fill(tmp_path, 2 * MIB)
    assert guest.killed.wait(FOREVER)
    assert guest.words == ["pause", "kill", "resume"]
    assert guest.reason == "it filled work_dir beyond 1,048,576 bytes (max_work_dir_bytes)"


def test_entries_over_the_limit_kill(watch: Callable[..., Quota], guest: Guest, tmp_path: Path) -> None:
    watch(max_work_dir_entries=10)
    for number in range(11):
        (tmp_path / str(number)).touch()
    assert guest.killed.wait(FOREVER)
    assert "10 entries (max_work_dir_entries)" in guest.reason


def test_folders_too_deep_to_count_kill(watch: Callable[..., Quota], guest: Guest, tmp_path: Path) -> None:
    watch()
    tmp_path.joinpath(*["d"] * 70).mkdir(parents=True)
    assert guest.killed.wait(FOREVER)
    assert "nested folders in work_dir more than 64 deep" in guest.reason


class Disk:
    """A disk of which `free` bytes are free, but for what lies in a folder; and a quota of that folder."""

    def __init__(self, path: Path, free: int, **limits: int) -> None:
        self.path = path
        self.free = free
        self.quota = Quota(path, Limits(**limits), self._free_now)  # type: ignore[arg-type]

    def _free_now(self, path: Path) -> int:
        return self.free - folder.usage(path, BOUNDLESS).bytes

    def write(self, size: int, name: str = "big") -> None:
        """Have code write a file."""
        fill(self.path, size, name)

    def fill(self, size: int) -> None:
        """Have another process fill the disk."""
        self.free -= size


def test_code_that_fills_the_disk_is_killed(watch: Callable[..., Quota], guest: Guest, tmp_path: Path) -> None:
    disk = Disk(tmp_path, 10 * MIB, min_disk_free=3 * MIB)
    watch(disk.quota)
    disk.write(8 * MIB)
    assert guest.killed.wait(FOREVER)
    assert guest.reason == (
        "it added 8,388,608 bytes and left less than 3,145,728 bytes free on the disk of work_dir (min_disk_free)"
    )
    with pytest.raises(FileRejected) as refusal:
        disk.quota.refuse_excess()
    assert str(refusal.value) == (
        "No code was run: earlier code added 8,388,608 bytes and left less than 3,145,728 bytes free on the disk of "
        f"work_dir (min_disk_free). Delete files in {tmp_path} (the largest is big, with 8,388,608 bytes on disk), "
        "or raise that limit."
    )


def test_code_is_not_killed_where_others_fill_the_disk(
    watch: Callable[..., Quota], guest: Guest, tmp_path: Path, clock: Clock
) -> None:
    disk = Disk(tmp_path, 10 * MIB, min_disk_free=3 * MIB)
    disk.write(MIB, "before")
    watch(disk.quota)
    disk.fill(8 * MIB)
    disk.write(4096, "note")
    assert clock.reaches(clock() + 4 * CHECK_SECONDS)
    assert guest.words == []
    disk.quota.refuse_excess()
    assert disk.quota.notice() == (
        "The disk of work_dir has less than 3,145,728 bytes free (min_disk_free); this code has added 4,096 bytes."
    )
    assert disk.quota.notice() == ""
    disk.write(MIB)  # now it makes the shortage worse
    assert guest.killed.wait(FOREVER)
    assert "it added 1,052,672 bytes and left less than 3,145,728 bytes" in guest.reason


def test_what_earlier_code_has_written_is_not_counted_against_later_code(tmp_path: Path) -> None:
    disk = Disk(tmp_path, 10 * MIB, min_disk_free=3 * MIB)
    disk.quota.count()
    for _ in range(2):  # of which no look was taken
        disk.write(MIB, "early")
        disk.quota.begin()
    disk.fill(8 * MIB)
    assert disk.quota.excess() == ""
    disk.fill(-8 * MIB)
    disk.quota.begin()
    disk.fill(8 * MIB)
    with (tmp_path / "early").open("ab") as file:
        file.write(b"x")
    assert disk.quota.excess() == ""


def test_many_runs_add_no_more_to_a_full_disk_than_one_may(tmp_path: Path) -> None:
    disk = Disk(tmp_path, 10 * MIB, min_disk_free=3 * MIB)
    disk.quota.count()
    disk.quota.begin()
    disk.fill(8 * MIB)
    disk.write(40_000, "one")
    assert disk.quota.excess() == ""
    disk.quota.begin()
    disk.write(40_000, "two")
    assert "added 81,920 bytes and left less than" in disk.quota.excess()


def test_a_disk_that_is_nearly_full_already_may_lose_half_of_the_rest_until_there_is_room(tmp_path: Path) -> None:
    disk = Disk(tmp_path, 2 * MIB, min_disk_free=3 * MIB)
    disk.quota.count()
    disk.write(MIB)
    assert disk.quota.excess() == ""
    disk.write(MIB // 4, "more")
    assert "left less than 1,048,576 bytes free" in disk.quota.excess()
    disk.fill(-20 * MIB)
    assert disk.quota.excess() == ""
    disk.quota.begin()
    disk.write(19 * MIB, "more")
    assert "left less than 3,145,728 bytes free" in disk.quota.excess()


def test_a_run_on_a_full_disk_goes_on_and_says_how_much_it_has_added(tmp_path: Path) -> None:
    disk = Disk(tmp_path, 10 * MIB, min_disk_free=3 * MIB)
    spec = SessionSpec("none", tmp_path, Isolation(), Limits(min_disk_free=3 * MIB))
    session = Session(ProcessEngine(), spec, start=lambda engine, spec, _: LiveSandbox(engine, spec, disk.quota))
    try:
        assert session.run("x = 1", FOREVER).ok
        disk.fill(8 * MIB)
        notice = "The disk of work_dir has less than 3,145,728 bytes free (min_disk_free); this code has added 0 bytes."
        assert session.run("x + 1", FOREVER).outputs == (Result({"text/plain": "2"}), Notice(notice))
        assert session.run("x + 1", FOREVER).outputs == (Result({"text/plain": "2"}),)
    finally:
        session.close()


def test_what_was_there_before_may_stay_but_not_grow(watch: Callable[..., Quota], guest: Guest, tmp_path: Path) -> None:
    fill(tmp_path, 3 * MIB, "before")
    quota = watch(max_work_dir_bytes=MIB)
    assert quota.excess() == ""
    fill(tmp_path, MIB, "more")
    assert guest.killed.wait(FOREVER)


def test_an_excess_that_is_gone_when_the_guest_stands_still_is_forgiven(
    watch: Callable[..., Quota], guest: Guest, tmp_path: Path
) -> None:
    big = tmp_path / "big"
    guest.when_paused = lambda: big.unlink(missing_ok=True)
    quota = watch(max_work_dir_bytes=MIB)
    fill(tmp_path, 2 * MIB)
    assert guest.resumed.wait(FOREVER)
    assert guest.words == ["pause", "resume"]
    quota.refuse_excess()


def test_no_code_runs_before_files_are_deleted_and_then_it_does(
    watch: Callable[..., Quota], guest: Guest, tmp_path: Path
) -> None:
    quota = watch(max_work_dir_bytes=MIB)
    big = fill(tmp_path, 2 * MIB)
    assert guest.killed.wait(FOREVER)
    with pytest.raises(FileRejected) as refusal:
        quota.refuse_excess()
    assert str(refusal.value) == (
        "No code was run: earlier code filled work_dir beyond 1,048,576 bytes (max_work_dir_bytes). "
        f"Delete files in {tmp_path} (the largest is big, with 2,097,152 bytes on disk), or raise that limit. "
        "The next code may run to delete some, as long as it adds nothing."
    )
    big.unlink()
    quota.refuse_excess()


def test_code_may_run_to_delete_what_is_too_much_but_adds_nothing(
    watch: Callable[..., Quota], guest: Guest, tmp_path: Path
) -> None:
    quota = watch(max_work_dir_bytes=MIB, max_work_dir_entries=10)
    big = fill(tmp_path, 2 * MIB)
    assert guest.killed.wait(FOREVER)
    with pytest.raises(FileRejected):
        quota.refuse_excess()
    quota.refuse_excess()
    assert quota.excess() == ""
    more = fill(tmp_path, MIB, "more")
    assert "filled work_dir" in quota.excess()
    for _ in range(2):  # which excuses nothing a second time
        with pytest.raises(FileRejected):
            quota.refuse_excess()
    more.unlink()
    quota.refuse_excess()
    big.unlink()
    quota.refuse_excess()
    assert not quota.has_stopped_one
    fill(tmp_path, 2 * MIB)
    assert "1,048,576 bytes" in quota.excess()


def test_what_excused_code_leaves_behind_is_watched_between_runs(guest: Guest, tmp_path: Path, clock: Clock) -> None:
    quota = Quota(tmp_path, Limits(max_work_dir_bytes=MIB, min_disk_free=0))
    quota.count()
    fill(tmp_path, 2 * MIB)
    quota.has_stopped_one = quota.is_shut = True
    with pytest.raises(FileRejected):
        quota.refuse_excess()
    quota.refuse_excess()
    guest.is_busy = False
    watched = clock.watch(quota, guest)
    try:
        assert clock.reaches(clock() + 3 * IDLE_CHECK_SECONDS)
        assert not guest.killed.is_set()
        fill(tmp_path, MIB, "more")
        assert guest.killed.wait(FOREVER)
    finally:
        watched.close()


def test_folders_that_were_deep_before_stay_where_they_are(
    watch: Callable[..., Quota], guest: Guest, tmp_path: Path
) -> None:
    deepest = tmp_path.joinpath(*["d"] * 70)
    deepest.mkdir(parents=True)
    quota = watch(max_work_dir_bytes=MIB)
    big = fill(tmp_path, 2 * MIB)
    assert guest.killed.wait(FOREVER)
    with pytest.raises(FileRejected, match="The next code may run to delete some"):
        quota.refuse_excess()
    big.unlink()
    quota.refuse_excess()
    assert deepest.is_dir()


def test_folders_that_are_too_deep_are_brought_up_and_nothing_is_lost(
    watch: Callable[..., Quota], guest: Guest, tmp_path: Path
) -> None:
    quota = watch()
    (tmp_path / "deep-1").write_text("mine")
    deepest = tmp_path
    for _ in range(3):
        deepest = deepest.joinpath(*["d"] * 60)
        deepest.mkdir(parents=True)
        (deepest / "file").write_text("kept")
    assert guest.killed.wait(FOREVER)
    with pytest.raises(FileRejected, match=r"more than 64 deep. The deeper folders are now in deep-2 and 1 more\."):
        quota.refuse_excess()
    quota.refuse_excess()
    assert (quota.excess(), quota.has_stopped_one) == ("", False)
    assert sorted(path.read_text() for path in tmp_path.rglob("*") if path.is_file()) == ["kept"] * 3 + ["mine"]


def test_a_disk_that_is_full_stays_closed_to_code(watch: Callable[..., Quota], guest: Guest, tmp_path: Path) -> None:
    disk = Disk(tmp_path, 10 * MIB, min_disk_free=3 * MIB)
    watch(disk.quota)
    disk.write(8 * MIB)
    assert guest.killed.wait(FOREVER)
    for _ in range(2):
        with pytest.raises(FileRejected, match="min_disk_free"):
            disk.quota.refuse_excess()
    (tmp_path / "big").unlink()
    disk.quota.refuse_excess()


def test_a_fresh_sandbox_does_not_make_the_excess_legal(
    watch: Callable[..., Quota], guest: Guest, tmp_path: Path
) -> None:
    quota = watch(max_work_dir_bytes=MIB)
    fill(tmp_path, 2 * MIB)
    assert guest.killed.wait(FOREVER)
    with pytest.raises(FileRejected):
        watch(quota)


def test_a_kernel_that_starts_over_an_excess_is_left_alone_until_a_run_is_let_through(
    guest: Guest, tmp_path: Path, clock: Clock
) -> None:
    quota = Quota(tmp_path, Limits(max_work_dir_bytes=MIB, min_disk_free=0))
    quota.count()
    fill(tmp_path, 2 * MIB)
    quota.has_stopped_one = quota.is_shut = True
    guest.is_busy = False
    watched = clock.watch(quota, guest)
    try:
        assert clock.reaches(clock() + 3 * IDLE_CHECK_SECONDS)
        assert guest.words == []
        guest.is_busy = True
        assert guest.killed.wait(FOREVER)
    finally:
        watched.close()


def test_a_guest_that_fills_work_dir_between_runs_is_stopped_too(
    watch: Callable[..., Quota], guest: Guest, tmp_path: Path, clock: Clock
) -> None:
    guest.is_busy = False
    watch(max_work_dir_bytes=MIB)
    fill(tmp_path, 2 * MIB)
    assert guest.killed.wait(FOREVER)
    assert clock() >= IDLE_CHECK_SECONDS


def test_idle_sandboxes_are_looked_at_the_less_often_the_more_their_looks_cost(tmp_path: Path, guest: Guest) -> None:
    class Costly(Rounds):
        cost = 2.0

    now = [0.0]
    quota, guest.is_busy = Quota(tmp_path, Limits(min_disk_free=0)), False
    watched = QuotaWatch(
        quota, Brake(guest.tell, guest.kill), lambda: guest.is_busy, DeletedFiles, lambda: now[0], Costly()
    )
    watched.close()
    watched.check()
    now[0] = 2.0 * PAUSE_FACTOR - 0.1
    assert not watched.is_due()
    guest.is_busy = True
    assert watched.is_due()
    guest.is_busy, now[0] = False, 2.0 * PAUSE_FACTOR
    assert watched.is_due()
    Costly.cost = 1e9
    watched.check()
    now[0] += MOST_IDLE_SECONDS
    assert watched.is_due()


def test_the_first_run_counts_what_is_there_if_nobody_has_begun_to(tmp_path: Path) -> None:
    fill(tmp_path, 3 * MIB, "before")
    quota = Quota(tmp_path, Limits(max_work_dir_bytes=MIB, min_disk_free=0))
    quota.refuse_excess()
    assert quota.excess() == ""


def test_a_count_that_fails_is_taken_by_the_next_run(tmp_path: Path) -> None:
    def free(_: Path) -> int:
        if not failed:
            failed.append(True)
            raise OSError(5, "Input/output error")
        return 2**40

    failed: list[bool] = []
    quota = Quota(tmp_path, Limits(), free)
    with pytest.raises(OSError, match="Input/output"):
        quota.count()
    started = time.monotonic()
    quota.refuse_excess()
    assert time.monotonic() - started < FOREVER


def test_deleted_files_that_are_held_open_count_like_those_that_are_there(tmp_path: Path) -> None:
    quota = Quota(tmp_path, Limits(max_work_dir_bytes=2 * MIB, min_disk_free=0))
    quota.count()
    fill(tmp_path, MIB)
    assert quota.excess(DeletedFiles(MIB // 2)) == ""
    assert quota.excess(DeletedFiles(2 * MIB)) == (
        "filled work_dir beyond 2,097,152 bytes with deleted files it holds open (max_work_dir_bytes)"
    )


def test_a_second_count_that_fails_leaves_no_code_paused(tmp_path: Path, guest: Guest) -> None:
    class NoRounds(Rounds):
        def add(self, watched: object) -> None:
            """Leave the checks to the test."""

    def held() -> DeletedFiles:
        if guest.words:
            raise OSError(24, "Too many open files")
        return DeletedFiles(2 * MIB)

    quota = Quota(tmp_path, Limits(max_work_dir_bytes=MIB, min_disk_free=0))
    watch = QuotaWatch(quota, Brake(guest.tell, guest.kill), lambda: True, held, within=NoRounds())
    watch.check()
    with pytest.raises(OSError, match="Too many"):
        watch.check()
    assert guest.words == ["pause", "resume"]


def test_a_process_that_cannot_be_looked_at_is_stopped_while_code_runs(
    tmp_path: Path, guest: Guest, clock: Clock
) -> None:
    quota = Quota(tmp_path, Limits(min_disk_free=0))
    hidden = DeletedFiles(0, is_hidden=True)
    watched = clock.watch(quota, guest, lambda: hidden)
    try:
        assert guest.killed.wait(FOREVER)
        assert guest.reason == "it hid a process, and so what it holds of deleted files (PR_SET_DUMPABLE)"
    finally:
        watched.close()


def test_a_process_that_is_hidden_for_a_moment_is_not_stopped(tmp_path: Path, guest: Guest, clock: Clock) -> None:
    looks = iter([*([DeletedFiles(0, is_hidden=True)] * (HIDDEN_LOOKS - 1) + [DeletedFiles()]) * 3])
    ended = threading.Event()

    def check() -> DeletedFiles:
        found = next(looks, None)
        if found is None:
            ended.set()
        return found or DeletedFiles()

    watched = clock.watch(Quota(tmp_path, Limits(min_disk_free=0)), guest, check)
    try:
        assert ended.wait(FOREVER)
        assert guest.words == []
    finally:
        watched.close()


def test_a_kernel_that_is_being_forked_between_runs_is_no_suspect(tmp_path: Path, guest: Guest, clock: Clock) -> None:
    looks = [threading.Event(), threading.Event()]

    def check() -> DeletedFiles:
        next(event for event in (*looks, threading.Event()) if not event.is_set()).set()
        return DeletedFiles(0, is_hidden=True)

    guest.is_busy = False
    watched = clock.watch(Quota(tmp_path, Limits(min_disk_free=0)), guest, check)
    try:
        assert all(event.wait(FOREVER) for event in looks)
        assert guest.words == []
    finally:
        watched.close()


def test_a_long_first_count_is_soon_followed_by_a_look(tmp_path: Path, guest: Guest) -> None:
    now = [0.0]

    class Slow(Quota):
        def count(self) -> None:
            super().count()
            now[0] += 30.0

    guest.is_busy = True
    rounds = Rounds(3_600.0)
    brake = Brake(guest.tell, guest.kill)
    watch = QuotaWatch(Slow(tmp_path, Limits()), brake, lambda: True, clock=lambda: now[0], within=rounds)
    watch.check()
    now[0] += CHECK_SECONDS
    assert watch.is_due()
    watch.close()


@pytest.mark.parametrize(
    ("given", "opened", "left"), [(0o700, 0o777, 0o700), (0o755, 0o777, 0o755), (0o750, 0o2500, 0o2500)]
)
def test_a_folder_that_code_opens_to_other_users_is_closed_again(
    tmp_path: Path, given: int, opened: int, left: int
) -> None:
    tmp_path.chmod(given)
    quota = Quota(tmp_path, Limits(min_disk_free=0))
    quota.count()
    for look in (quota.excess, quota.begin):
        tmp_path.chmod(opened)
        look()
        assert tmp_path.stat().st_mode & 0o7777 == left
