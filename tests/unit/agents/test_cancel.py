"""The token that ends a turn."""

from __future__ import annotations

from agent_tools.agents.cancel import Cancel


def test_what_began_last_is_ended_first() -> None:
    cancel, inner, ended = Cancel(), Cancel(), list[bool]()
    with cancel.ending(lambda: ended.append(inner.is_set())), cancel.ending(inner.set):
        cancel.set()
    assert ended == [True]


def test_what_begins_too_late_is_ended_at_once_and_nothing_twice() -> None:
    cancel, ended = Cancel(), list[str]()
    cancel.set()
    with cancel.ending(lambda: ended.append("late")):
        cancel.set()
    assert ended == ["late"]


def test_what_is_over_is_not_ended() -> None:
    cancel, ended = Cancel(), list[str]()
    with cancel.ending(lambda: ended.append("over")):
        pass
    cancel.set()
    assert ended == []
