"""The uids of work_dirs, and what happens to a folder that gets another one."""

from __future__ import annotations

import os
import stat
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

import pytest

from agent_tools.machine.access_lists import grant, granted
from agent_tools.machine.folder import OPEN_DIR, open_folder
from agent_tools.machine.guest_ids import GUEST_UIDS, GuestIds, hand_over, is_account

ROOT = 0
A, B = Path("/srv/a"), Path("/srv/b")
ONE, TWO, THREE = 20_001, 20_002, 20_003


def ids(owners: dict[Path, int], picks: Iterable[int] = (), accounts: tuple[int, ...] = ()) -> GuestIds:
    """With the owners of the folders that are there, and the numbers that chance gives."""
    chance = iter([*picks, *[GUEST_UIDS[-1]] * 2000])
    return GuestIds(lambda: next(chance), lambda uid: uid in accounts, lambda folder: owners.get(folder, -1))


def test_a_new_folder_gets_any_uid_that_is_no_accounts() -> None:
    chosen = {GuestIds().of(Path("/nowhere") / str(number)) for number in range(20)}
    assert len(chosen) > 15
    assert chosen <= set(GUEST_UIDS)
    assert not any(map(is_account, chosen))
    assert ids({A: ROOT}, [ONE, TWO], accounts=(ONE,)).of(A) == TWO


def test_the_uids_fit_into_a_user_namespace() -> None:
    assert (GUEST_UIDS[0], GUEST_UIDS[-1]) == (10_001, 59_999)


def test_a_folder_has_the_same_uid_each_time_it_is_asked_for() -> None:
    found = ids({}, [ONE, TWO])
    assert [found.of(A), found.of(A)] == [ONE, ONE]


def test_a_folder_is_compared_with_few_others() -> None:
    compared = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal compared
        compared += event == "call" and frame.f_code.co_name == "__eq__"

    found = ids({}, GUEST_UIDS)
    for number in range(1000):
        found.of(Path("/srv") / str(number))
    sys.setprofile(note)
    try:
        assert found.of(Path("/srv/7")) == GUEST_UIDS[7]
        assert found.of(A) == GUEST_UIDS[1000]
    finally:
        sys.setprofile(None)
    assert compared < 10


def test_a_folder_keeps_the_uid_it_has() -> None:
    assert ids({A: TWO}, [ONE]).of(A) == TWO


@pytest.mark.parametrize("owner", [ROOT, 1000, 10_000, 60_000, 65_534])
def test_a_folder_of_somebody_else_gets_a_uid_of_its_own(owner: int) -> None:
    assert ids({A: owner}, [ONE]).of(A) == ONE


def test_a_folder_of_an_account_in_the_same_range_gets_a_uid_of_its_own() -> None:
    assert ids({A: TWO}, [ONE], accounts=(TWO,)).of(A) == ONE


def test_no_two_folders_that_stand_have_the_same_uid() -> None:
    found = ids({A: ONE, B: ROOT}, [ONE, TWO])
    assert [found.of(A), found.of(B)] == [ONE, TWO]


def test_the_second_of_two_folders_with_one_uid_gets_another() -> None:
    found = ids({A: ONE, B: ONE}, [ONE, TWO])
    assert [found.of(A), found.of(B), found.of(A)] == [ONE, TWO, ONE]


def test_the_uid_of_a_folder_that_is_gone_is_free_again() -> None:
    owners = {A: ONE, B: ROOT}
    found = ids(owners, [ONE])
    assert found.of(A) == ONE
    del owners[A]
    assert found.of(B) == ONE


def test_one_folder_on_two_paths_has_one_uid(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    found = GuestIds(lambda: TWO, owner_of=lambda folder: ONE)
    assert found.of(tmp_path / "real") == found.of(tmp_path / "link") == ONE


def test_where_none_is_free_the_first_is_shared() -> None:
    owners = {A: GUEST_UIDS[-1], B: ROOT}
    found = ids(owners)
    assert [found.of(A), found.of(B)] == [GUEST_UIDS[-1], GUEST_UIDS[0]]


# -- a folder that goes over to another uid ----------------------------------------------------------------------------

ME = os.getuid()
FORMER, NEXT = (ONE, TWO) if ME == 0 else (ME, ME)  # who is not root gives nothing away


def given(folder: Path) -> None:
    fd = os.open(folder, OPEN_DIR)
    try:
        hand_over(fd, (NEXT, NEXT if ME == 0 else os.getgid()))
    finally:
        os.close(fd)


def of_former(path: Path) -> Path:
    os.chown(path, FORMER, -1, follow_symlinks=False)
    return path


@pytest.mark.needs_root(reason="only root gives folders to another user")
def test_what_a_former_guest_left_is_given_with_the_folder(tmp_path: Path) -> None:
    inner = tmp_path / "locked" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    everything = [tmp_path, tmp_path / "locked", inner, inner / "file"]
    for path in everything:
        of_former(path)
    (tmp_path / "locked").chmod(0)
    given(tmp_path)
    assert {path.stat().st_uid for path in everything} == {NEXT}


def test_links_are_given_and_not_followed(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    folder.mkdir()
    of_former(outside)
    (outside / "file").touch()
    of_former(outside / "file")
    (folder / "to a folder").symlink_to(outside)
    (folder / "to a file").symlink_to(outside / "file")
    for path in (folder, folder / "to a folder", folder / "to a file"):
        of_former(path)
    given(folder)
    assert {os.lstat(path).st_uid for path in (folder, folder / "to a folder", folder / "to a file")} == {NEXT}
    assert {path.stat().st_uid for path in (outside, outside / "file")} == {FORMER}


def test_files_of_others_in_it_stay_theirs(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    of_former(tmp_path)
    given(tmp_path)
    assert (tmp_path.stat().st_uid, (tmp_path / "mine").stat().st_uid) == (NEXT, ME)


def test_an_empty_folder_of_root_is_given(tmp_path: Path) -> None:
    given(tmp_path)
    assert tmp_path.stat().st_uid == NEXT


@pytest.mark.needs_root
def test_root_itself_is_given_no_access(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file"):
        os.chown(path, 1_001, 1_001)
    with open_folder(tmp_path) as fd:
        hand_over(fd, (0, 0))
    assert [*granted(tmp_path), *granted(tmp_path / "file")] == []


# name -> mode before, and whether a guest may write it then
MODES = {"data.csv": (0o644, True), "run.sh": (0o755, True), "shared": (0o664, True), "old": (0o444, False)} | {
    "private": (0o600, False),
    "of the group": (0o660, False),
    "runs as its owner": (0o4755, False),
}


@pytest.mark.parametrize("former", [[], [ONE]], ids=["at first", "after another guest"])
def test_a_guest_may_write_what_root_shows_to_all_and_owns_nothing(tmp_path: Path, former: list[int]) -> None:
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    for name, (mode, _) in MODES.items():
        (folder / "sub" / name).touch()
        (folder / "sub" / name).chmod(mode)
    (folder / "sub" / "locked").mkdir(mode=0o700)
    (folder / "sub" / "locked" / "file").touch(0o644)
    for name in ("linked", "outside"):
        (tmp_path / name).touch(0o644)
    os.link(tmp_path / "linked", folder / "linked")
    (folder / "to").symlink_to(tmp_path / "outside")
    for uid in (*former, THREE):
        with open_folder(folder) as fd:
            assert grant(fd, uid, GUEST_UIDS)
    granted_to = {path.name: list(granted(path)) for path in [folder, tmp_path / "outside", *folder.rglob("*")]}
    for name, (mode, may_write) in MODES.items():
        path = folder / "sub" / name
        assert granted_to[name] == ([THREE] if may_write or name == "old" else []), name
        assert stat.S_IMODE(path.stat().st_mode) == mode | (mode >> 3 & 0o070 if may_write else 0), name
    assert [granted_to[name] for name in ("project", "sub", "locked", "file", "linked", "outside")] == [
        *([THREE], [THREE]),
        *([], [], [], []),
    ]
    assert {path.stat().st_uid for path in (folder, *folder.rglob("*"))} == {ME}


def test_an_access_list_that_is_there_gives_nobody_more_than_before(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch(0o644)
    nobody, r, rw = 0xFFFFFFFF, 4, 6
    before = [(1, rw, nobody), (2, rw, TWO), (4, r, nobody), (16, r, nobody), (32, r, nobody)]  # the mask lets TWO read
    os.setxattr(path, "system.posix_acl_access", b"\2\0\0\0" + b"".join(struct.pack("<HHI", *each) for each in before))
    with open_folder(tmp_path) as fd:
        grant(fd, THREE, [ONE])
    after = list(struct.iter_unpack("<HHI", os.getxattr(path, "system.posix_acl_access")[4:]))
    assert after == [(1, rw, nobody), (2, r, TWO), (2, rw, THREE), (4, r, nobody), (16, rw, nobody), (32, r, nobody)]


def test_the_access_list_of_a_folder_is_the_record_of_its_uid(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with open_folder(tmp_path) as fd:
        grant(fd, THREE, GUEST_UIDS)
    assert GuestIds(lambda: ONE, lambda uid: False).of(tmp_path) == THREE


def test_folders_nested_without_end_are_given_up_to_a_depth(tmp_path: Path) -> None:
    of_former(tmp_path)
    folder = os.open(tmp_path, OPEN_DIR)
    for _ in range(100):
        os.mkdir("d", dir_fd=folder)
        os.chown("d", FORMER, -1, dir_fd=folder)
        folder, outer = os.open("d", OPEN_DIR, dir_fd=folder), folder
        os.close(outer)
    os.close(folder)
    given(tmp_path)
    owners = [tmp_path.joinpath(*["d"] * level).stat().st_uid for level in (64, 90)]
    assert owners == [NEXT, FORMER]
