"""A folder on one side, and what the other side has of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent_tools.errors import FileRejected
from agent_tools.fleet.folder_sync import SyncedFolder, all_or_none
from agent_tools.fleet.protocol import MAX_INLINE_BYTES, PIECE_BYTES
from agent_tools.limits import Limits

ME = (os.getuid(), os.getgid())


def synced(path: Path, **limits: float) -> SyncedFolder:
    path.mkdir(exist_ok=True)
    return SyncedFolder(path, ME, Limits(**{"min_disk_free": 1, **limits}))  # type: ignore[arg-type]


def test_what_was_told_once_is_no_news(tmp_path: Path) -> None:
    side = synced(tmp_path)
    (tmp_path / "a").write_text("1")
    assert side.small(side.news()) == {"a": b"1"}
    assert side.news() == {}
    (tmp_path / "a").write_text("22")
    (tmp_path / "b").touch()
    assert side.small(side.news()) == {"a": b"22", "b": b""}
    (tmp_path / "a").unlink()
    assert side.small(side.news()) == {"a": None}
    side.forget()
    assert side.small(side.news()) == {"b": b""}


def test_what_came_from_the_other_side_is_no_news_for_it(tmp_path: Path) -> None:
    side = synced(tmp_path)
    side.take({"folder/a": b"1"})
    assert (tmp_path / "folder" / "a").read_bytes() == b"1"
    assert side.news() == {}
    side.take({"folder/a": None, "never there": None})
    assert not (tmp_path / "folder" / "a").exists()


def test_a_file_that_changed_here_is_not_deleted_for_the_other_side(tmp_path: Path) -> None:
    side = synced(tmp_path)
    side.take({"a": b"1"})
    (tmp_path / "a").write_text("mine, and longer")
    side.take({"a": None})
    assert (tmp_path / "a").read_text() == "mine, and longer"


def test_small_files_travel_together_up_to_a_bound_and_larger_ones_in_pieces(tmp_path: Path) -> None:
    side, other = synced(tmp_path / "here"), synced(tmp_path / "there")
    (tmp_path / "here" / "large").write_bytes(os.urandom(PIECE_BYTES + 5))
    (tmp_path / "here" / "half").write_bytes(b"h" * (MAX_INLINE_BYTES // 2 + 1))
    (tmp_path / "here" / "other half").write_bytes(b"h" * (MAX_INLINE_BYTES // 2 + 1))
    news = side.news()
    assert len(side.small(news)) == 1
    facts = news["large"]
    assert facts
    pieces = list(side.pieces("large", facts))
    assert [len(piece) for piece in pieces] == [PIECE_BYTES, 5]
    other.put("large", pieces)
    assert (tmp_path / "there" / "large").read_bytes() == (tmp_path / "here" / "large").read_bytes()
    assert "large" not in side.news()


def test_a_file_that_changes_on_its_way_is_told(tmp_path: Path) -> None:
    side = synced(tmp_path)
    (tmp_path / "a").write_bytes(b"x" * (MAX_INLINE_BYTES + 1))
    facts = side.news()["a"]
    assert facts
    (tmp_path / "a").write_bytes(b"y" * (MAX_INLINE_BYTES + 2))
    with pytest.raises(FileRejected, match="changed while"):
        side.piece("a", facts, 0)
    (tmp_path / "a").unlink()
    with pytest.raises(FileRejected, match="changed while"):
        side.piece("a", facts, 0)


@pytest.mark.parametrize(
    "name", ["../out", "/etc/out", "a/../../out", "", ".", "a\0b", "a\nb", "a//b", "x/" * 20 + "y"]
)
def test_a_name_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    side = synced(tmp_path / "inside")
    with pytest.raises(FileRejected, match="unusable name"):
        side.take({name: b"out"})
    assert [path.name for path in tmp_path.rglob("*")] == ["inside"]


def test_a_link_is_neither_followed_nor_told(tmp_path: Path) -> None:
    side = synced(tmp_path / "inside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "inside" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "inside" / "file").symlink_to("/etc/passwd")
    assert side.news() == {}
    with pytest.raises(FileRejected):
        side.take({"link/out": b"out"})
    assert list((tmp_path / "outside").iterdir()) == []


def test_too_much_is_refused(tmp_path: Path) -> None:
    side = synced(tmp_path, max_work_dir_bytes=10, max_work_dir_entries=2)
    side.refuse_excess([5, 5])
    with pytest.raises(FileRejected, match="max_work_dir_bytes"):
        side.refuse_excess([5, 6])
    with pytest.raises(FileRejected, match="min_disk_free"):
        synced(tmp_path, max_work_dir_bytes=2**62).refuse_excess([2**60])
    for number in range(3):
        (tmp_path / str(number)).touch()
    with pytest.raises(FileRejected, match="max_work_dir_entries"):
        side.news()


def test_an_exchange_that_fails_is_made_anew_from_the_beginning(tmp_path: Path) -> None:
    side = synced(tmp_path)
    (tmp_path / "a").write_text("1")
    news = side.news()

    def lose() -> None:
        with all_or_none(side):
            side.small(news)
            raise ConnectionError("lost on its way")

    with pytest.raises(ConnectionError):
        lose()
    assert list(side.news()) == ["a"]
