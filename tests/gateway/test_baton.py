"""The order in which threads compute."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from agent_tools.gateway.baton import PATIENCE, Baton
from tests.waiting import until

LONG = 30.0  # seconds


@contextmanager
def elsewhere(baton: Baton, name: str, order: list[str], *, is_urgent: bool = False) -> Iterator[None]:
    """A thread that wants to compute, and does once it can; it has ended at the end."""

    def compute() -> None:
        with baton.held(is_urgent=is_urgent):
            order.append(name)

    thread = threading.Thread(target=compute)
    before = waiting(baton)
    thread.start()
    until(lambda: waiting(baton) > before or order)
    yield
    thread.join(LONG)


def waiting(baton: Baton) -> int:
    return len(baton._urgent) + len(baton._others)


def is_free(baton: Baton) -> bool:
    return not baton._is_held and not waiting(baton)


@contextmanager
def elsewhere_held(baton: Baton) -> Iterator[threading.Event]:
    """A thread that computes until the event is set."""
    began, end = threading.Event(), threading.Event()

    def compute() -> None:
        with baton.held(is_urgent=False):
            began.set()
            end.wait(LONG)

    thread = threading.Thread(target=compute)
    thread.start()
    assert began.wait(LONG)
    yield end
    thread.join(LONG)


def test_one_computes_at_a_time_in_the_order_of_arrival_but_for_the_urgent() -> None:
    baton, order = Baton(LONG), list[str]()
    with ExitStack() as threads:
        end = threads.enter_context(elsewhere_held(baton))
        for name in ("first", "second", "urgent"):
            threads.enter_context(elsewhere(baton, name, order, is_urgent=name == "urgent"))
        assert order == []
        end.set()
    assert order == ["urgent", "first", "second"]
    assert is_free(baton)


def test_whoever_waits_lets_others_compute() -> None:
    baton, order = Baton(LONG), list[str]()
    with baton.held(is_urgent=False), elsewhere(baton, "other", order):
        with baton.put_down():
            until(lambda: order)
            with baton.put_down():  # in the middle of it: nothing more to put down
                order.append("waits")
        order.append("goes on")
    assert order == ["other", "waits", "goes on"]
    assert is_free(baton)


def test_the_urgent_go_first_where_a_new_stretch_begins() -> None:
    baton, order = Baton(LONG), list[str]()
    with ExitStack() as threads, baton.held(is_urgent=False):
        threads.enter_context(elsewhere(baton, "other", order))
        with baton.offered():
            assert order == []
        with elsewhere(baton, "urgent", order, is_urgent=True):
            with baton.offered():
                assert order == ["urgent"]
            order.append("goes on")
    assert order == ["urgent", "goes on", "other"]


def test_a_thread_without_a_baton_is_not_concerned() -> None:
    baton = Baton(LONG)
    with elsewhere_held(baton) as end:
        with baton.put_down(), baton.offered():
            assert baton._is_held
        end.set()
    assert is_free(baton)


def test_who_has_waited_long_enough_goes_on_without() -> None:
    baton = Baton(0.05)
    with elsewhere_held(baton) as end:
        with baton.held(is_urgent=True):
            assert baton._is_held  # by the other thread
            with baton.put_down():
                pass
        assert not waiting(baton)
        end.set()
    assert is_free(baton)
    assert PATIENCE < 1


def test_an_error_passes_it_on() -> None:
    baton = Baton(LONG)
    with pytest.raises(KeyError), baton.held(is_urgent=False), baton.put_down():
        raise KeyError
    assert is_free(baton)


def test_it_is_never_lost_and_never_two() -> None:
    baton, now, most = Baton(0.002), [0], [0]

    def compute(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(100):
            with baton.held(is_urgent=rng.random() < 0.3):
                for _ in range(rng.randrange(4)):
                    if baton._mine.holds:
                        now[0] += 1
                        most[0] = max(most[0], now[0])
                        time.sleep(rng.random() / 2000)
                        now[0] -= 1
                    with rng.choice([baton.put_down, baton.offered])():
                        pass

    threads = [threading.Thread(target=compute, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert is_free(baton)
    assert most == [1]
