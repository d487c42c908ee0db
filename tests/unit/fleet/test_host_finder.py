"""The way to a host: what is known of it while it is lost, found anew, and closed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from agent_tools.engines.engine import Isolation
from agent_tools.errors import SessionClosed
from agent_tools.fleet.placement import HostFinder
from agent_tools.fleet.protocol import RemoteSpec
from agent_tools.limits import Limits

SPEC = RemoteSpec(Isolation(), Limits())


class Link:
    """A host that does what it is asked."""

    def __init__(self, name: str = "host") -> None:
        self.name = name
        self.called: list[tuple[Any, ...]] = []

    def call(self, method: str, *arguments: Any, seconds: float | None = None) -> Any:
        self.called.append((method, *arguments))

    def tell(self, method: str, *arguments: Any) -> None:
        self.called.append((method, *arguments))


class Opening:
    """A host that opens a session when it may."""

    def __init__(self) -> None:
        self.link = Link()
        self.began, self.may_end = threading.Event(), threading.Event()
        self.raised: list[BaseException] = []
        self.reach = HostFinder(SPEC, self.open, bool, bool)
        self.thread = threading.Thread(target=self.use)

    def open(self, id_: str, spec: RemoteSpec) -> Any:
        self.began.set()
        self.may_end.wait(60)
        return self.link

    def use(self) -> None:
        try:
            self.reach.placed()
        except SessionClosed as exc:
            self.raised.append(exc)


def test_late_word_of_a_loss_changes_nothing_once_another_host_has_it() -> None:
    links = [Link("first"), Link("second")]
    reach = HostFinder(SPEC, lambda id_, spec: links.pop(0), bool, bool)  # type: ignore[arg-type,return-value]
    _, first = reach.placed()
    reach.note_lost(first, "it is gone")
    link, second = reach.placed()
    reach.note_lost(first, "it is gone")
    assert reach.place == (link, second)
    assert link.name == "second"
    assert reach.take_lost()
    assert not reach.take_lost()


def test_word_of_a_loss_does_not_wait_for_an_opening() -> None:
    opening = Opening()
    opening.thread.start()
    opening.began.wait(30)
    told = threading.Thread(target=opening.reach.note_lost, args=("another", "it is gone"))
    told.start()
    told.join(30)
    assert not told.is_alive()
    opening.may_end.set()
    opening.thread.join()
    assert opening.reach.place


def test_what_is_closed_while_it_is_opened_is_closed_at_its_host() -> None:
    opening = Opening()
    opening.thread.start()
    opening.began.wait(30)
    assert opening.reach.close()
    assert not opening.link.called
    opening.may_end.set()
    opening.thread.join()
    assert [method for method, *_ in opening.link.called] == ["close"]
    assert len(opening.raised) == 1
    with pytest.raises(SessionClosed):
        opening.reach.refuse_closed()
