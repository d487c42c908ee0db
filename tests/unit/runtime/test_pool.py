"""One pool: when it makes sandboxes, which it gives away, and what it tells. No sandbox is real here."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from agent_tools.engines.isolation import Isolation
from agent_tools.errors import EngineUnavailable, PreludeError
from agent_tools.limits import Limits
from agent_tools.machine.background import do_now
from agent_tools.runtime.files.empty_work_dir import EmptyWorkDir
from agent_tools.runtime.files.quota import Quota
from agent_tools.runtime.pool.pool import Pool
from agent_tools.runtime.sandbox.sandbox import LiveSandbox
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.runtime.stoppable import StoppableEngine
from tests.doubles import ProcessEngine
from tests.waiting import until

ENOUGH = 20.0  # seconds for what takes milliseconds
LIMITS = Limits(pool_max_age=1_000.0)


@dataclass
class FakeKernel:
    alive: bool = True

    def is_alive(self) -> bool:
        return self.alive


@dataclass
class FakeSandbox:
    """Stands for a sandbox that is ready."""

    number: int
    kernel: FakeKernel = field(default_factory=FakeKernel)
    is_usable: bool = True
    bad_prelude: bool = False
    adopted: SessionSpec | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    end_failure: Exception | None = None

    def adopt(self, spec: SessionSpec, quota: Quota) -> None:
        if self.bad_prelude:
            raise PreludeError("The prelude failed: it")
        self.adopted = spec

    def end(self, behind: object) -> None:
        self.ended.set()
        if self.end_failure:
            raise self.end_failure

    def close(self) -> None:
        assert self.ended.is_set()


class Maker:
    """Makes fakes, and fails while it is told to; `now` is the clock of its pool."""

    def __init__(self, folder: Path) -> None:
        self.made: list[FakeSandbox] = []
        self.failure: Exception | None = None
        self.tries = 0
        self.now = 0.0
        self.folder = folder
        self.at_once = 0
        self.most_at_once = 0

    def __call__(self, engine: object, key: SessionSpec) -> tuple[LiveSandbox, EmptyWorkDir]:
        self.tries += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.failure:
                raise self.failure
            self.made.append(FakeSandbox(len(self.made)))
            return cast("LiveSandbox", self.made[-1]), EmptyWorkDir(self.folder, ProcessEngine().guest)
        finally:
            self.at_once -= 1


@pytest.fixture
def maker(work_dir: Path) -> Maker:
    return Maker(work_dir)


@pytest.fixture
def pool(maker: Maker, work_dir: Path) -> Iterator[Pool]:
    key = SessionSpec("none", work_dir, Isolation(), LIMITS, is_blank=True)
    pool = Pool(ProcessEngine(), key, do_now, lambda: maker.now, maker)
    yield pool
    pool.close()


def take(pool: Pool, name: str = "a") -> FakeSandbox | None:
    spec = SessionSpec("none", pool.key.work_dir / name, Isolation(), LIMITS)
    return cast("FakeSandbox | None", pool.take_sandbox(spec, Quota(spec.work_dir, LIMITS)))


def test_so_many_are_kept_ready_one_made_after_the_other(pool: Pool, maker: Maker) -> None:
    pool.keep(3)
    assert pool.wait(ENOUGH) == 3
    assert (len(maker.made), maker.most_at_once) == (3, 1)


def test_only_what_follows_a_take_waits_for_that_session_to_settle(
    pool: Pool, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_tools.runtime.pool.pool.SETTLE_SECONDS", 1e6)
    pool.keep(2)
    assert pool.wait(ENOUGH) == 2
    take(pool)
    assert pool.wait(0.2) == 1


def test_the_oldest_is_taken_and_another_made(pool: Pool, maker: Maker) -> None:
    pool.keep(2)
    pool.wait(ENOUGH)
    taken = take(pool)
    assert taken is maker.made[0]
    assert taken.adopted
    assert taken.adopted.work_dir.name == "a"
    assert (pool.key.work_dir / "a").is_dir()
    until(lambda: pool.ready == 2)
    assert len(maker.made) == 3
    assert pool.takes == {"hit": 1}


def test_one_that_nobody_asked_for_lately_is_not_made(pool: Pool, maker: Maker) -> None:
    pool.keep(1)
    pool.wait(ENOUGH)
    maker.now = 1_001.0  # older than pool_max_age, and as long since somebody asked
    with pool._changed:
        pool._changed.notify_all()
    until(lambda: maker.made[0].ended.is_set())
    assert (pool.ready, len(maker.made)) == (0, 1)
    assert take(pool) is None
    until(lambda: pool.ready == 1)


def test_one_that_is_too_old_is_replaced(pool: Pool, maker: Maker) -> None:
    pool.keep(1)
    pool.wait(ENOUGH)
    maker.now = 999.0
    pool.keep(1)  # somebody asks
    maker.now = 1_001.0
    with pool._changed:
        pool._changed.notify_all()
    until(lambda: len(maker.made) == 2 and pool.ready == 1)
    assert maker.made[0].ended.is_set()
    assert not maker.made[1].ended.is_set()


@pytest.mark.parametrize("how", ["kernel", "sandbox"])
def test_one_that_has_ended_is_dropped_and_the_next_one_given(pool: Pool, maker: Maker, how: str) -> None:
    pool.keep(2)
    pool.wait(ENOUGH)
    lost = maker.made[0]
    if how == "kernel":
        lost.kernel.alive = False
    else:
        lost.is_usable = False
    assert take(pool) is maker.made[1]
    until(lost.ended.is_set)
    until(lambda: pool.ready == 2)


def test_misses_are_counted_by_reason(pool: Pool, maker: Maker) -> None:
    assert take(pool) is None  # nothing is kept
    pool.keep(1)
    pool.wait(ENOUGH)
    (pool.key.work_dir / "users").mkdir()
    (pool.key.work_dir / "users" / "data.csv").write_text("1")
    assert take(pool, "users") is None
    maker.made[0].kernel.alive = False
    assert take(pool) is None
    assert pool.takes == {"empty": 1, "folder": 1, "ended": 1}


def test_one_whose_folder_did_not_fit_is_kept_for_the_next(pool: Pool, maker: Maker) -> None:
    pool.keep(1)
    pool.wait(ENOUGH)
    (pool.key.work_dir / "users").mkdir()
    (pool.key.work_dir / "users" / "data.csv").write_text("1")
    assert take(pool, "users") is None
    assert take(pool, "other") is maker.made[0]


def test_a_failing_prelude_is_left_to_a_cold_start_to_tell(pool: Pool, maker: Maker) -> None:
    pool.keep(1)
    pool.wait(ENOUGH)
    maker.made[0].bad_prelude = True
    assert take(pool) is None
    assert maker.made[0].ended.is_set()
    assert pool.takes == {"ended": 1}


def test_it_stops_at_a_failure_tells_it_once_and_tries_again_later(
    pool: Pool, maker: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    maker.failure = EngineUnavailable("No engine answers.")
    with caplog.at_level(logging.WARNING, "agent_tools.pool"):
        pool.keep(2)
        assert pool.wait(ENOUGH) == 0
        assert (take(pool), take(pool), maker.tries) == (None, None, 1)
        maker.now = 61.0
        pool.keep(2)
        until(lambda: maker.tries == 2)
        until(lambda: pool._failed_at == 61.0)
        maker.failure, maker.now = None, 122.0
        pool.keep(2)
        until(lambda: pool.ready == 2)
    assert pool.failure == ""
    assert pool.takes == {"failed": 2}
    assert [record.getMessage() for record in caplog.records] == [
        "No sandbox can be made ahead (No engine answers.); sessions start cold."
    ]


@pytest.mark.parametrize("failure", [RuntimeError("can't start new thread"), MemoryError()], ids=["threads", "memory"])
def test_any_failure_to_make_one_is_reported_and_retried_later(pool: Pool, maker: Maker, failure: Exception) -> None:
    maker.failure = failure
    pool.keep(1)
    assert pool.wait(ENOUGH) == 0
    assert pool.failure == (str(failure) or type(failure).__name__)
    maker.failure, maker.now = None, 61.0
    pool.keep(1)
    until(lambda: pool.ready == 1)


def test_a_failing_removal_does_not_keep_the_next_one_from_being_made(pool: Pool, maker: Maker) -> None:
    pool.keep(1)
    pool.wait(ENOUGH)
    maker.made[0].is_usable = False
    maker.made[0].end_failure = RuntimeError("can't start new thread")
    assert take(pool) is None
    until(lambda: pool.ready == 1)


def test_a_failure_while_its_process_stops_is_no_warning(
    maker: Maker, work_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = StoppableEngine(ProcessEngine())
    key = SessionSpec("none", work_dir, Isolation(), LIMITS, is_blank=True)
    maker.failure = EngineUnavailable("The sandbox that was being made has ended.")
    engine.stop()
    pool = Pool(engine, key, do_now, lambda: maker.now, maker)
    with closing(pool), caplog.at_level(logging.WARNING, "agent_tools.pool"):
        pool.keep(1)
        assert pool.wait(ENOUGH) == 0
    assert pool.failure
    assert caplog.records == []


def test_closing_removes_all_that_nobody_took(pool: Pool, maker: Maker) -> None:
    pool.keep(2)
    pool.wait(ENOUGH)
    taken = take(pool)
    assert taken
    pool.close()
    assert not taken.ended.is_set()
    assert all(each.ended.is_set() for each in maker.made if each is not taken)
    assert [path.name for path in pool.key.work_dir.iterdir()] == ["a"]
    pool.keep(2)
    assert pool.ready == 0


def test_one_that_comes_back_after_the_end_is_removed(
    pool: Pool, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.keep(1)
    pool.wait(ENOUGH)

    def refused(*_: object) -> None:
        pool.close()

    monkeypatch.setattr(pool, "_handed_over", refused)
    assert take(pool) is None
    assert maker.made[0].ended.is_set()


def test_one_that_is_still_being_made_at_the_end_is_not_waited_for_and_removed_later(
    maker: Maker, work_dir: Path
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def make(engine: object, key: SessionSpec) -> tuple[LiveSandbox, EmptyWorkDir]:
        begun.set()
        go_on.wait()
        return maker(engine, key)

    key = SessionSpec("none", work_dir, Isolation(), LIMITS, is_blank=True)
    pool = Pool(ProcessEngine(), key, do_now, lambda: maker.now, make)
    pool.keep(1)
    assert begun.wait(ENOUGH)
    pool.close(0)
    assert maker.made == []
    go_on.set()
    until(lambda: maker.made and maker.made[0].ended.is_set())
    pool.close()
    assert pool.ready == 0
