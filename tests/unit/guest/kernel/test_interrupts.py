"""Interrupts that wait until what must not break is done."""

from __future__ import annotations

import threading

import pytest

from agent_tools.guest.kernel import interrupts


@pytest.fixture(autouse=True)
def a_state_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("was_noted", "rings", "shields"):
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
