"""Interrupts that wait until what must not break is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from agent_tools.guest.kernel import interrupts


@pytest.fixture(autouse=True)
def a_state_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("was_noted", "raised", "rings", "shields"):
        monkeypatch.setattr(interrupts._State, name, type(getattr(interrupts._State, name))())


def test_an_interrupt_waits_for_the_main_threads_work_alone() -> None:
    thread = threading.Thread(target=interrupts.shield.__enter__)
    thread.start()
    thread.join()
    assert not interrupts.is_shielded()
    with interrupts.shield:
        thread = threading.Thread(target=interrupts.shield.__exit__)
        thread.start()
        thread.join()
        assert interrupts.is_shielded()
        interrupts._State.was_noted = False  # it would be raised here
    assert not interrupts.is_shielded()


@pytest.fixture
def expected() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    interrupts.expect()
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_raises_in_the_code_alone(expected: None) -> None:
    with interrupts.reaching_code(lambda _: False):
        with interrupts.reaching_code(lambda _: False):  # code that runs code
            pass
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert interrupts.raised()
    assert not interrupts._State.was_noted
    signal.raise_signal(signal.SIGINT)
    assert interrupts._State.was_noted


@pytest.mark.parametrize("is_users", [False, True])
def test_a_second_interrupt_reaches_the_users_frames_alone(expected: None, is_users: bool) -> None:
    with interrupts.reaching_code(lambda _: is_users):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt) if is_users else nullcontext():
            signal.raise_signal(signal.SIGINT)


def test_code_that_sets_a_handler_of_its_own_keeps_it(expected: None) -> None:
    with interrupts.reaching_code(lambda _: True):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    with interrupts.reaching_code(lambda _: True):  # of which nothing is changed
        signal.raise_signal(signal.SIGINT)
