"""The quota of a volume that several sandboxes share: it ends the sandboxes that have filled it, and no others."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from agent_tools.engines.volumes import Volume
from agent_tools.errors import InvalidParams
from agent_tools.guest.wire.words import Pause, Resume
from agent_tools.limits import MIB
from agent_tools.machine.rounds import Rounds
from agent_tools.runtime.files import volume_quota
from agent_tools.runtime.files.quota import Brake
from agent_tools.runtime.files.volume_quota import VolumeQuota, VolumeUser, quota_of


class NoRounds:
    """Rounds in which nothing is looked at: tests call `check`."""

    cost = 0.0

    def __init__(self) -> None:
        self.watched: set[object] = set()

    def add(self, watched: object) -> None:
        self.watched.add(watched)

    def remove(self, watched: object) -> None:
        self.watched.remove(watched)


class Writer:
    """A sandbox that writes to the volume, and what its watcher orders. A `hidden` one does not show what it writes."""

    def __init__(self, quota: VolumeQuota, folder: Path, *, is_hidden: bool = False) -> None:
        self.words: list[str] = []
        self.reason = ""
        self.deleted = 0
        self.when_paused: Callable[[], object] = lambda: None
        self.until_ended: Callable[[], object] = lambda: None
        self.written = 0
        self._folder = folder
        self._is_hidden = is_hidden
        user = VolumeUser(Brake(self._order, self._end), lambda: True, self._writes, lambda _: self.deleted)
        self.leave = quota.join(user)

    def write(self, size: int, name: str = "big") -> None:
        (self._folder / name).write_bytes(os.urandom(size))
        self.print(size)

    def print(self, size: int) -> None:
        self.written += size

    def _writes(self) -> tuple[int, bool]:
        return (0, False) if self._is_hidden else (self.written, True)

    def _order(self, order: Pause | Resume) -> None:
        self.words.append(type(order).__name__.lower())
        if isinstance(order, Pause):
            self.when_paused()

    def _end(self, reason: str) -> None:
        self.until_ended()
        self.words.append("end")
        self.reason = reason
        self.leave()


@pytest.fixture
def rounds() -> NoRounds:
    return NoRounds()


@pytest.fixture
def quota(tmp_path: Path, rounds: NoRounds) -> VolumeQuota:
    return quota_for(tmp_path, rounds)


def quota_for(path: Path, rounds: NoRounds, size: int = MIB) -> VolumeQuota:
    return VolumeQuota(Volume("shared", str(path), True, size), within=cast(Rounds, rounds))


def test_the_sandbox_that_fills_it_is_ended_with_a_reason_and_others_go_on(quota: VolumeQuota, tmp_path: Path) -> None:
    writer, reader = Writer(quota, tmp_path), Writer(quota, tmp_path)
    reader.print(MIB)
    quota.check()
    reader.print(100_000)  # less than its part
    writer.write(2 * MIB)
    quota.check()
    assert writer.words == ["pause", "end"]
    assert reader.words == []
    assert writer.reason == (
        "it filled the volume shared beyond 1 MiB or 100,000 entries, its quota. It may only shrink now, until files "
        "in it are deleted"
    )
    quota.check()
    reader.print(MIB)
    quota.check()
    assert reader.words == []


def test_what_is_written_before_a_pause_acts_is_no_second_excess(quota: VolumeQuota, tmp_path: Path) -> None:
    writer, other = Writer(quota, tmp_path), Writer(quota, tmp_path)
    writer.until_ended = lambda: writer.write(MIB, "late")
    writer.write(2 * MIB)
    quota.check()
    quota.check()
    assert other.words == []
    assert not quota.is_full()


def test_what_fills_it_again_makes_it_read_only_until_files_are_deleted(quota: VolumeQuota, tmp_path: Path) -> None:
    writer, other = Writer(quota, tmp_path), Writer(quota, tmp_path)
    writer.write(2 * MIB)
    quota.check()
    assert not quota.is_full()
    again = Writer(quota, tmp_path)
    again.write(MIB, "more")
    quota.check()
    assert (again.words, other.words) == (["pause", "end"], ["pause", "end"])  # any of them may have hidden it
    assert "read-only from now on" in again.reason
    assert quota.is_full()
    (tmp_path / "more").unlink()
    assert not quota.is_full()
    (tmp_path / "big").unlink()
    later = Writer(quota, tmp_path)
    quota.check()
    later.write(2 * MIB)
    quota.check()
    assert "may only shrink" in later.reason


def test_a_little_at_a_time_is_too_much_as_well(quota: VolumeQuota, tmp_path: Path) -> None:
    writer = Writer(quota, tmp_path)
    writer.write(MIB - 8192)
    quota.check()
    for number in range(10):
        writer.write(16_384, str(number))
        quota.check()
    assert writer.words[-1] == "end"


def test_code_that_hides_what_it_writes_is_ended_if_no_other_has_written(quota: VolumeQuota, tmp_path: Path) -> None:
    hidden, idle = Writer(quota, tmp_path, is_hidden=True), Writer(quota, tmp_path)
    hidden.write(2 * MIB)
    quota.check()
    assert (hidden.words, idle.words) == (["pause", "end"], [])


def test_files_of_another_program_end_no_sandbox(quota: VolumeQuota, tmp_path: Path) -> None:
    sandbox = Writer(quota, tmp_path)
    (tmp_path / "data").write_bytes(os.urandom(2 * MIB))
    for _ in range(2):
        quota.check()
    assert (sandbox.words, quota.is_full()) == ([], False)
    sandbox.write(MIB)
    quota.check()
    assert sandbox.words == ["pause", "end"]


def test_what_is_gone_when_the_sandbox_stands_still_is_forgiven(quota: VolumeQuota, tmp_path: Path) -> None:
    writer = Writer(quota, tmp_path)
    writer.when_paused = lambda: (tmp_path / "big").unlink()
    writer.write(2 * MIB)
    quota.check()
    assert writer.words == ["pause", "resume"]


def test_deleted_files_that_are_held_open_count(quota: VolumeQuota, tmp_path: Path) -> None:
    writer = Writer(quota, tmp_path)
    writer.print(2 * MIB)
    writer.deleted = 2 * MIB
    quota.check()
    assert writer.words == ["pause", "end"]


def test_entries_and_depth_have_limits(
    quota: VolumeQuota, tmp_path: Path, rounds: NoRounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = Writer(quota, tmp_path)
    deep.print(MIB)
    tmp_path.joinpath(*["d"] * 70).mkdir(parents=True)
    quota.check()
    assert deep.words == ["pause", "end"]
    assert quota.is_full()
    monkeypatch.setattr(volume_quota, "MAX_ENTRIES", 10)
    many_in = tmp_path / "many"
    many_in.mkdir()
    second = quota_for(many_in, rounds)
    many = Writer(second, many_in)
    for number in range(11):
        (many_in / str(number)).touch()  # which writes no byte
    second.check()
    assert many.words == ["pause", "end"]


def test_what_is_there_at_first_may_stay_and_costs_what_it_takes_on_disk(tmp_path: Path, rounds: NoRounds) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    (tmp_path / "before").write_bytes(os.urandom(2 * MIB))
    quota = quota_for(tmp_path, rounds)
    writer = Writer(quota, tmp_path)
    quota.check()
    assert writer.words == []
    writer.write(MIB)
    quota.check()
    assert writer.words == ["pause", "end"]


def test_a_folder_that_cannot_be_watched_is_refused(
    tmp_path: Path, rounds: NoRounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.joinpath(*["d"] * 70).mkdir(parents=True)
    with pytest.raises(InvalidParams, match=r"cannot be watched\. Make it read-only"):
        quota_for(tmp_path, rounds)


def test_links_are_not_followed(quota: VolumeQuota, tmp_path: Path, tmp_path_factory: Any) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "large").write_bytes(os.urandom(2 * MIB))
    writer = Writer(quota, tmp_path)
    writer.print(MIB)
    (tmp_path / "out").symlink_to(outside)
    (tmp_path / "file").symlink_to(outside / "large")
    os.mkfifo(tmp_path / "fifo")
    quota.check()
    assert writer.words == []


def test_it_is_watched_while_a_sandbox_has_it_and_is_one_for_all(quota: VolumeQuota, rounds: NoRounds) -> None:
    folder = Path(quota_path(quota))
    one, two = Writer(quota, folder), Writer(quota, folder)
    assert rounds.watched == {quota}
    one.leave()
    assert rounds.watched == {quota}
    two.leave()
    assert not rounds.watched
    volume = Volume("shared", str(folder), True)
    assert quota_of(volume) is quota_of(Volume("other", str(folder), True))


def test_a_sandbox_that_joins_while_the_last_one_leaves_is_watched(quota: VolumeQuota, rounds: NoRounds) -> None:
    class Joining(NoRounds):
        def remove(self, watched: object) -> None:
            joined.append(Writer(quota, Path(quota_path(quota))))
            super().remove(watched)

    joined: list[Writer] = []
    last = Writer(quota, Path(quota_path(quota)))
    quota._rounds = cast("Rounds", busy := Joining())
    busy.watched.add(quota)
    last.leave()
    assert busy.watched == {quota}
    quota._rounds = cast("Rounds", rounds)
    joined[0].leave()
    assert not rounds.watched


def test_a_sandbox_may_leave_in_the_rounds_thread_while_another_joins(quota: VolumeQuota) -> None:
    class Ending(NoRounds):
        def add(self, watched: object) -> None:
            ending = threading.Thread(target=first.leave, daemon=True)  # as a finalizer does
            ending.start()
            ending.join(20)
            assert not ending.is_alive()
            super().add(watched)

    folder = Path(quota_path(quota))
    first = Writer(quota, folder)
    quota._rounds = cast("Rounds", busy := Ending())
    second = Writer(quota, folder)
    assert busy.watched == {quota}
    second.leave()
    assert not busy.watched


def test_a_count_that_fails_leaves_no_sandbox_paused(quota: VolumeQuota, tmp_path: Path) -> None:
    writer = Writer(quota, tmp_path)
    writer.when_paused = lambda: setattr(writer, "deleted", None)  # which no count can add
    writer.write(2 * MIB)
    with pytest.raises(TypeError):
        quota.check()
    assert writer.words == ["pause", "resume"]


def quota_path(quota: VolumeQuota) -> str:
    return str(quota._path)
