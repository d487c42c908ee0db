"""Files that commands write where code may have planted links."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from agent_tools.cli.output_file import read, written


@pytest.fixture
def work_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (tmp_path / "precious").write_text("of the host")
    return folder


def write(path: Path, work_dir: Path) -> None:
    with written(path, work_dir) as file:
        file.write(b"new")


@pytest.mark.parametrize("name", ["out.ipynb", "sub/out.ipynb"])
def test_a_link_in_work_dir_is_replaced_and_not_followed(work_dir: Path, name: str) -> None:
    path = work_dir / name
    path.parent.mkdir(exist_ok=True)
    path.symlink_to("/../" * 20 + str(work_dir.parent / "precious"))
    write(path, work_dir)
    assert (path.is_symlink(), path.read_text()) == (False, "new")
    assert (work_dir.parent / "precious").read_text() == "of the host"
    assert os.listdir(path.parent) == ["out.ipynb"]


def test_a_folder_that_is_a_link_in_work_dir_is_refused(work_dir: Path) -> None:
    (work_dir / "sub").symlink_to(work_dir.parent)
    with pytest.raises(OSError, match="sub"):
        write(work_dir / "sub" / "precious", work_dir)
    assert (work_dir.parent / "precious").read_text() == "of the host"


def test_work_dir_is_known_on_any_path_to_it(work_dir: Path) -> None:
    (work_dir / "out").symlink_to(work_dir.parent / "precious")
    (work_dir.parent / "mine").symlink_to(work_dir)
    for top in (work_dir, work_dir.parent / "mine"):
        write(work_dir.parent / "mine" / "out", top)
        assert (work_dir.parent / "precious").read_text() == "of the host"
        assert (work_dir / "out").read_text() == "new"
        (work_dir / "out").unlink()


def test_elsewhere_links_are_the_users_own(work_dir: Path) -> None:
    (work_dir.parent / "newest").symlink_to("precious")
    write(work_dir.parent / "newest", work_dir)
    assert (work_dir.parent / "precious").read_text() == "new"
    assert (work_dir.parent / "newest").is_symlink()
    write(Path("/dev/null"), work_dir)
    assert not Path("/dev/null").is_file()


def test_a_pipe_is_written_to(work_dir: Path) -> None:
    ours, theirs = os.pipe()
    write(Path(f"/dev/fd/{theirs}"), work_dir)
    os.close(theirs)
    with open(ours, "rb") as file:
        assert file.read() == b"new"


@pytest.mark.parametrize("place", [".", "sub", "../elsewhere"])
def test_a_folder_is_not_replaced_by_a_file(work_dir: Path, place: str) -> None:
    (work_dir / place).mkdir(exist_ok=True)
    with pytest.raises(IsADirectoryError):
        write(work_dir / place, work_dir)
    with pytest.raises(OSError, match=r"directory|not a regular file"), read(work_dir / place, work_dir):
        pass
    assert (work_dir / place).is_dir()


@pytest.mark.parametrize("place", ["old", "../precious"])
def test_the_mode_of_an_old_file_is_kept(work_dir: Path, place: str) -> None:
    (work_dir / place).write_text("old")
    for mode in (0o600, 0o660):
        (work_dir / place).chmod(mode)
        write(work_dir / place, work_dir)
        assert ((work_dir / place).stat().st_mode & 0o7777, (work_dir / place).read_text()) == (mode, "new")


@pytest.mark.needs_root(reason="only root can make files of others")
def test_the_owner_of_an_old_file_is_kept(work_dir: Path) -> None:
    (work_dir / "old").write_text("old")
    os.chown(work_dir / "old", 23_456, 23_457)
    write(work_dir / "old", work_dir)
    assert ((work_dir / "old").stat().st_uid, (work_dir / "old").stat().st_gid) == (23_456, 23_457)


def test_what_fails_leaves_the_old_file(work_dir: Path) -> None:
    path = work_dir / "out"
    path.write_text("old")
    with pytest.raises(TypeError), written(path, work_dir) as file:
        file.writelines([b"half", None])  # type: ignore[list-item]
    assert path.read_text() == "old"
    assert os.listdir(work_dir) == ["out"]


def test_a_session_is_not_read_through_a_link_in_work_dir(work_dir: Path) -> None:
    (work_dir / "a.state").symlink_to(work_dir.parent / "precious")
    os.mkfifo(work_dir / "b.state")
    (work_dir / "c.state").mkdir()
    for name, code in (("a", errno.ELOOP), ("b", errno.EINVAL), ("c", errno.EINVAL), ("none", errno.ENOENT)):
        with pytest.raises(OSError, match=f"Errno {code}]"), read(work_dir / f"{name}.state", work_dir):
            pass
    (work_dir.parent / "mine").symlink_to(work_dir)
    for path in (work_dir.parent / "precious", work_dir / "own", work_dir.parent / "mine" / "own"):
        (work_dir / "own").write_text("of the host")
        for top in (work_dir, work_dir.parent / "mine"):
            with read(path, top) as file:
                assert file.read() == b"of the host"
