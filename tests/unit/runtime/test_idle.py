"""When the processes of an idle sandbox are stopped, and what wakes them; on a clock of the test's own."""

from __future__ import annotations

from agent_tools.guest.wire.words import Pause, Resume
from agent_tools.runtime.idle import MIN_SECONDS, IdleStop


class Watched:
    """An idle stop of ten seconds whose thread is the test."""

    def __init__(self, seconds: float = 10.0) -> None:
        self.now, self.is_busy = 0.0, False
        self.orders: list[Pause | Resume] = []
        self.idle = IdleStop(seconds, self.orders.append, lambda: self.is_busy, lambda: self.now)

    def look(self, at: float) -> float:
        self.now = at
        return self.idle.look()


def test_it_stops_once_after_so_long_without_use() -> None:
    watched = Watched()
    assert watched.look(0.0) == 10.0
    assert watched.look(9.0) == MIN_SECONDS
    assert watched.orders == []
    watched.look(10.0)
    watched.look(100.0)
    assert watched.orders == [Pause()]
    assert watched.idle.is_stopped


def test_a_use_wakes_it_and_is_never_cut_short() -> None:
    watched = Watched()
    watched.look(10.0)
    with watched.idle.use(), watched.idle.use():
        assert watched.orders == [Pause(), Resume()]
        watched.look(1_000.0)
    assert watched.orders == [Pause(), Resume()]
    assert watched.look(1_005.0) == 5.0
    watched.look(1_010.0)
    assert watched.orders == [Pause(), Resume(), Pause()]
    watched.idle.close()


def test_what_goes_on_beside_it_counts_as_use() -> None:
    watched = Watched()
    watched.is_busy = True
    watched.look(100.0)
    watched.is_busy = False
    assert watched.look(105.0) == 5.0
    assert watched.orders == []


def test_without_a_time_nothing_is_stopped_and_no_thread_runs() -> None:
    watched = Watched(0.0)
    with watched.idle.use():
        pass
    assert watched.idle._thread is None
    watched.idle.close()
