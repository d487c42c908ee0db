"""The rename that hands a blank folder over: what may be replaced, and that all is as it was where it may not."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent_tools.engines.guest import Guest
from agent_tools.machine.path_walk import identity
from agent_tools.machine.removal import remove_tree
from agent_tools.runtime.files.claims import Claim
from agent_tools.runtime.files.empty_work_dir import EmptyWorkDir
from agent_tools.runtime.files.new_work_dirs import forget_made
from agent_tools.runtime.files.work_dir import prepare_work_dir
from agent_tools.runtime.pool.folder_swap import MOST_ENTRIES, swap_in_folder

ME = Guest(container_ids=(os.getuid(), os.getgid()), host_ids=(os.getuid(), os.getgid()))
FIRST, SECOND = (Guest((uid, uid), (uid, uid)) if os.getuid() == 0 else ME for uid in (20_001, 20_002))


@pytest.fixture
def blank(work_dir: Path) -> Iterator[EmptyWorkDir]:
    blank = EmptyWorkDir(work_dir, lambda _: FIRST)
    yield blank
    blank.remove()


def taken(blank: Path, work_dir: Path) -> bool:
    with ExitStack() as after:
        return swap_in_folder(blank, work_dir, after)


def made(work_dir: Path, *names: str) -> Path:
    """A folder that this process made and staged files into."""
    path = prepare_work_dir(work_dir / "mine", SECOND)
    for name in names:
        (path / name).write_text(name)
        if os.getuid() == 0:
            os.chown(path / name, *SECOND.host_ids)
    return path


def test_a_name_that_is_free_is_taken(blank: EmptyWorkDir, work_dir: Path) -> None:
    was = identity(blank.path)
    assert taken(blank.path, work_dir / "new")
    assert identity(work_dir / "new") == was
    assert not blank.path.exists()


def test_the_folder_that_was_there_is_held_until_nobody_waits(blank: EmptyWorkDir, work_dir: Path) -> None:
    (work_dir / "empty").mkdir()
    with os.scandir("/proc/self/fd") as before, ExitStack() as after:
        held = len(list(before))
        assert swap_in_folder(blank.path, work_dir / "empty", after)
        with os.scandir("/proc/self/fd") as now:
            assert len(list(now)) > held


def test_an_empty_folder_is_replaced_and_its_mode_kept(blank: EmptyWorkDir, work_dir: Path) -> None:
    (work_dir / "empty").mkdir()
    (work_dir / "empty").chmod(0o750)
    was = identity(blank.path)
    assert taken(blank.path, work_dir / "empty")
    assert identity(work_dir / "empty") == was
    assert (work_dir / "empty").stat().st_mode & 0o7777 == 0o750


def test_files_staged_into_a_folder_made_here_come_along_as_they_are(blank: EmptyWorkDir, work_dir: Path) -> None:
    path = made(work_dir, "a.csv", "b.csv")
    was = identity(path / "a.csv")
    assert taken(blank.path, path)
    assert sorted(os.listdir(path)) == ["a.csv", "b.csv"]
    assert identity(path / "a.csv") == was


def test_they_belong_to_the_guest_whose_folder_it_is_now(blank: EmptyWorkDir, work_dir: Path) -> None:
    path = made(work_dir, "a.csv")
    assert taken(blank.path, path)
    assert {(found.st_uid, found.st_gid) for found in (os.stat(path), os.stat(path / "a.csv"))} == {FIRST.host_ids}


def stays(blank: EmptyWorkDir, path: Path) -> bool:
    """Whether the hand-over is refused and nothing has changed by it."""

    def seen() -> object:
        folders = [path, blank.path]
        return [(identity(each), os.stat(each).st_mode, os.stat(each).st_uid, os.listdir(each)) for each in folders]

    before = seen()
    return not taken(blank.path, path) and seen() == before


def test_a_folder_with_files_that_others_may_know_stays(blank: EmptyWorkDir, work_dir: Path) -> None:
    (work_dir / "users").mkdir()
    (work_dir / "users" / "data.csv").write_text("1")
    assert stays(blank, work_dir / "users")


def test_a_folder_that_a_sandbox_has_had_stays_if_it_has_files(blank: EmptyWorkDir, work_dir: Path) -> None:
    path = made(work_dir, "a.csv")
    forget_made(path)
    assert stays(blank, path)


def test_a_folder_made_here_with_very_many_files_stays(blank: EmptyWorkDir, work_dir: Path) -> None:
    assert stays(blank, made(work_dir, *map(str, range(MOST_ENTRIES + 1))))


def test_a_folder_that_a_live_sandbox_has_stays(blank: EmptyWorkDir, work_dir: Path) -> None:
    (work_dir / "shared").mkdir()
    claim = Claim(work_dir / "shared")
    try:
        assert stays(blank, work_dir / "shared")
    finally:
        claim.release()
    assert taken(blank.path, work_dir / "shared")


def test_a_folder_with_attributes_of_its_own_stays(blank: EmptyWorkDir, work_dir: Path) -> None:
    (work_dir / "marked").mkdir()
    os.setxattr(work_dir / "marked", "user.mark", b"1")
    assert stays(blank, work_dir / "marked")


def test_a_link_is_not_replaced_and_not_followed(blank: EmptyWorkDir, work_dir: Path) -> None:
    (work_dir / "to").mkdir()
    (work_dir / "link").symlink_to(work_dir / "to")
    assert not taken(blank.path, work_dir / "link")
    assert (work_dir / "link").is_symlink()
    assert blank.path.is_dir()


def test_what_was_moved_is_moved_back_where_the_rename_fails(work_dir: Path) -> None:
    path, missing = made(work_dir, "a.csv"), EmptyWorkDir(work_dir, lambda _: FIRST)
    inner = path / "blank"  # a folder that would replace the one it lies in: refused, at the last step
    os.rename(missing.path, inner)
    try:
        before = (identity(path), os.stat(path).st_uid, sorted(os.listdir(path)))
        assert not taken(inner, path)
        assert (identity(path), os.stat(path).st_uid, sorted(os.listdir(path))) == before
        assert (path / "a.csv").read_text() == "a.csv"
    finally:
        missing.forget()


def test_another_file_system_is_none_to_rename_to(blank: EmptyWorkDir) -> None:
    other = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        assert os.stat(other).st_dev != os.stat(blank.path).st_dev
        assert stays(blank, other)
    finally:
        remove_tree(other)
