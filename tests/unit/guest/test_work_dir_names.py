import errno
import os
from pathlib import Path

import pytest

from agent_tools.guest import work_dir_names
from agent_tools.guest.work_dir_names import link_names, rename_across_names


@pytest.fixture
def moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, object]]:
    """The renames that Linux would be asked for: it refuses those from one mount to another."""
    asked: list[tuple[object, object]] = []

    def rename(src: str, dst: str, **_: object) -> None:
        asked.append((src, dst))
        mounts = {os.path.abspath(os.fsdecode(each)).split("/")[1] for each in (src, dst)}
        if len(mounts) > 1:
            raise OSError(errno.EXDEV, "across mounts")

    for name in ("rename", "replace", "link"):
        monkeypatch.setattr(os, name, rename)
    monkeypatch.chdir("/")
    rename_across_names("/workspace")
    return asked


@pytest.mark.parametrize("name", ["rename", "replace", "link"])
def test_a_rename_from_name_to_name_is_done_within_work_dir(moves: list[tuple[object, object]], name: str) -> None:
    getattr(os, name)("/workspace/a", Path("/mnt/data/d/b"))
    getattr(os, name)("mnt/data/a", b"/home/user/b")
    assert moves[1::2] == [("/workspace/a", "/workspace/d/b"), ("/workspace/a", "/workspace/b")]


def test_other_renames_are_as_before(moves: list[tuple[object, object]]) -> None:
    os.rename("/mnt/data/a", "/mnt/data/b")
    assert moves == [("/mnt/data/a", "/mnt/data/b")]
    for src, dst in (("/mnt/data/a", "/tmp/b"), ("/mnt/database/a", "/workspace/b"), ("/mnt/data", "/workspace/b")):
        with pytest.raises(OSError, match="across mounts"):
            os.rename(src, dst)
    with pytest.raises(OSError, match="across mounts"):
        os.rename("/workspace/a", "/mnt/data/b", src_dir_fd=3)


def test_names_are_links_only_where_nothing_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(
        work_dir_names, "WORK_DIR_NAMES", (str(tmp_path / "folder"), str(tmp_path / "link"), "/no/such")
    )
    link_names("/workspace")
    assert not (tmp_path / "folder").is_symlink()
    assert os.readlink(tmp_path / "link") == "/workspace"
