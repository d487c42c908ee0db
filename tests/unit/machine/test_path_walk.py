"""The way to a folder: what it leads through, and where it goes into one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent_tools.machine.path_walk import folders_passed, parts_below


@pytest.fixture
def top(tmp_path: Path) -> Path:
    (tmp_path / "top" / "real").mkdir(parents=True)
    (tmp_path / "top" / "file").touch()
    return tmp_path / "top"


def identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("top", ()),
        ("top/real", ("real",)),
        ("top/file", ("file",)),
        ("top/none/at/all", ("none", "at", "all")),
        ("top/./real//x/", ("real", "x")),
        ("top/real/../x", ("x",)),
        ("top/none/../x", ("x",)),
        ("top/../top/x", ("x",)),
        ("top/..", None),
        ("other", None),
        ("other/none", None),
        ("other/file", None),
        ("other/file/below", None),
        ("topmost", None),
    ],
)
def test_a_path_goes_on_from_a_folder(tmp_path: Path, top: Path, path: str, parts: tuple[str, ...] | None) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    assert parts_below(Path(f"{tmp_path}/{path}"), top) == parts


def test_a_relative_path_goes_on_from_where_we_are(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(top / "real")
    assert parts_below(Path("x"), top) == ("real", "x")
    assert parts_below(Path("../x"), top) == ("x",)


def test_links_below_a_folder_have_no_say(top: Path, tmp_path: Path) -> None:
    (top / "out").symlink_to("/")
    (top / "loop").symlink_to("loop")
    assert parts_below(top / "out" / "etc", top) == ("out", "etc")
    assert parts_below(top / "loop" / "x", top) == ("loop", "x")


def test_nothing_leads_into_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert parts_below(tmp_path / "none" / "x", tmp_path / "none") is None


def test_a_way_that_cannot_be_told_is_an_error(top: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        parts_below(tmp_path / "loop" / "x", top)
    with pytest.raises(FileNotFoundError):
        parts_below(tmp_path / "none" / ".." / "top", top)
    with pytest.raises(PermissionError):
        parts_below(top / "real" / ".." / "..", top)


def test_all_folders_on_the_way_are_told_those_of_links_too(top: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (top / "link").symlink_to(tmp_path / "elsewhere")
    passed = folders_passed(top / "link")
    assert passed[0] == identity(Path("/"))
    assert passed[-1] == identity(tmp_path / "elsewhere")
    assert {identity(top), identity(tmp_path)} <= set(passed)


def test_one_descriptor_at_a_time_is_open_and_none_is_left(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * 500)
    deep.mkdir(parents=True)
    before = len(os.listdir("/proc/self/fd"))
    assert len(folders_passed(deep)) > 500
    assert len(os.listdir("/proc/self/fd")) == before
