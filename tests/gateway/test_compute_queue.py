"""The order in which threads compute."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from agent_tools.gateway.compute_queue import TURN_TIMEOUT, ComputeQueue
from tests.waiting import until

LONG = 30.0  # seconds


@contextmanager
def elsewhere(queue: ComputeQueue, name: str, order: list[str], *, is_urgent: bool = False) -> Iterator[None]:
    """A thread that wants to compute, and does once it can; it has ended at the end."""

    def compute() -> None:
        with queue.computing(is_urgent=is_urgent):
            order.append(name)

    thread = threading.Thread(target=compute)
    before = waiting(queue)
    thread.start()
    until(lambda: waiting(queue) > before or order)
    yield
    thread.join(LONG)


def waiting(queue: ComputeQueue) -> int:
    return len(queue._waiting)


def is_free(queue: ComputeQueue) -> bool:
    return not queue._is_taken and not waiting(queue)


@contextmanager
def computing_elsewhere(queue: ComputeQueue) -> Iterator[threading.Event]:
    """A thread that computes until the event is set."""
    began, end = threading.Event(), threading.Event()

    def compute() -> None:
        with queue.computing(is_urgent=False):
            began.set()
            end.wait(LONG)

    thread = threading.Thread(target=compute)
    thread.start()
    assert began.wait(LONG)
    yield end
    thread.join(LONG)


def test_threads_compute_one_at_a_time_in_the_order_of_arrival_urgent_ones_first() -> None:
    queue, order = ComputeQueue(LONG), list[str]()
    with ExitStack() as threads:
        end = threads.enter_context(computing_elsewhere(queue))
        for name in ("first", "second", "urgent"):
            threads.enter_context(elsewhere(queue, name, order, is_urgent=name == "urgent"))
        assert order == []
        end.set()
    assert order == ["urgent", "first", "second"]
    assert is_free(queue)


def test_a_waiting_thread_lets_others_compute() -> None:
    queue, order = ComputeQueue(LONG), list[str]()
    with queue.computing(is_urgent=False), elsewhere(queue, "other", order):
        with queue.waiting():
            until(lambda: order)
            with queue.waiting():  # in the middle of it: nothing more to put down
                order.append("waits")
        order.append("goes on")
    assert order == ["other", "waits", "goes on"]
    assert is_free(queue)


def test_urgent_threads_go_first_where_a_new_stretch_begins() -> None:
    queue, order = ComputeQueue(LONG), list[str]()
    with ExitStack() as threads, queue.computing(is_urgent=False):
        threads.enter_context(elsewhere(queue, "other", order))
        with queue.yielding():
            assert order == []
        with elsewhere(queue, "urgent", order, is_urgent=True):
            with queue.yielding():
                assert order == ["urgent"]
            order.append("goes on")
    assert order == ["urgent", "goes on", "other"]


def test_a_thread_that_never_joined_does_not_wait() -> None:
    queue = ComputeQueue(LONG)
    with computing_elsewhere(queue) as end:
        with queue.waiting(), queue.yielding():
            assert queue._is_taken
        end.set()
    assert is_free(queue)


def test_a_thread_that_has_waited_long_enough_goes_on() -> None:
    queue = ComputeQueue(0.05)
    with computing_elsewhere(queue) as end:
        with queue.computing(is_urgent=True):
            assert queue._is_taken  # by the other thread
            with queue.waiting():
                pass
        assert not waiting(queue)
        end.set()
    assert is_free(queue)
    assert TURN_TIMEOUT < 1


def test_an_error_passes_the_turn_on() -> None:
    queue = ComputeQueue(LONG)
    with pytest.raises(KeyError), queue.computing(is_urgent=False), queue.waiting():
        raise KeyError
    assert is_free(queue)


def test_the_turn_is_never_lost_and_never_with_two() -> None:
    queue, now, most = ComputeQueue(0.002), [0], [0]

    def compute(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(100):
            with queue.computing(is_urgent=rng.random() < 0.3):
                for _ in range(rng.randrange(4)):
                    if queue._mine.has_turn:
                        now[0] += 1
                        most[0] = max(most[0], now[0])
                        time.sleep(rng.random() / 2000)
                        now[0] -= 1
                    with rng.choice([queue.waiting, queue.yielding])():
                        pass

    threads = [threading.Thread(target=compute, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert is_free(queue)
    assert most == [1]
