"""Sandboxes of a framework's sessions: which are removed, and that no caller waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agent_tools.integrations.sessions import SessionSandboxes

SOON = 5.0  # seconds; only a failing test waits as long


class Box:
    """A sandbox whose end takes until `may_end`, and fails if `failure` is set."""

    def __init__(self, *, is_busy: bool = False, failure: Exception | None = None) -> None:
        self.is_busy, self.failure = is_busy, failure
        self.may_end, self.has_ended = threading.Event(), threading.Event()

    def close(self) -> None:
        self.may_end.wait(SOON)
        self.has_ended.set()
        if self.failure:
            raise self.failure


@pytest.fixture
def sessions() -> Iterator[SessionSandboxes]:
    made = SessionSandboxes({}, 2)
    yield made
    made.close()


def put(sessions: SessionSandboxes, id_: str, box: Any) -> Any:
    sessions.of(id_).sync = box
    return box


def test_a_new_session_does_not_wait_for_the_end_of_the_oldest(sessions: SessionSandboxes) -> None:
    oldest = put(sessions, "a", Box())
    sessions.of("b")
    sessions.of("c")
    assert not oldest.has_ended.is_set()
    oldest.may_end.set()
    assert oldest.has_ended.wait(SOON)
    assert sessions.of("a").sync is not oldest


def test_a_sandbox_that_runs_code_stays(sessions: SessionSandboxes) -> None:
    busy, idle = put(sessions, "a", Box(is_busy=True)), put(sessions, "b", Box())
    for box in (busy, idle):
        box.may_end.set()
    sessions.of("c")
    assert idle.has_ended.wait(SOON)
    assert not busy.has_ended.is_set()
    busy.is_busy = False
    sessions.of("d")
    assert busy.has_ended.wait(SOON)


def test_a_sandbox_that_cannot_be_removed_keeps_no_other() -> None:
    sessions = SessionSandboxes({}, 2)
    failing, other = put(sessions, "a", Box(failure=OSError("gone"))), put(sessions, "b", Box())
    for box in (failing, other):
        box.may_end.set()
    with pytest.raises(OSError, match="gone"):
        sessions.close()
    assert failing.has_ended.is_set()
    assert other.has_ended.is_set()
