"""The queue for sandboxes that run code: who enters, who waits, and whose turn it is."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agent_tools.containers.failures import NoSandbox
from agent_tools.containers.sandbox_queue import SandboxQueue, Ticket


class Scene:
    """Owners that ask for places, in order."""

    def __init__(self, places: int, most: int | None = None) -> None:
        self.queue = SandboxQueue(places, most or places)
        self.tickets: list[Ticket] = []
        self._left: set[Ticket] = set()

    def ask(self, owners: str, container: str = "") -> None:
        self.tickets += [self.queue.enter(owner, container) for owner in owners]

    def leave(self, owners: str) -> str:
        """Let each owner leave its oldest place; return who got the places that became free."""
        found = ""
        for owner in owners:
            before = self.entered
            oldest = next(each for each in before if each.owner == owner)
            self._left.add(oldest)
            self.queue.leave(oldest)
            found += "".join(each.owner for each in self.entered if each not in before)
        return found

    @property
    def entered(self) -> list[Ticket]:
        return [each for each in self.tickets if each.done() and not each.exception() and each not in self._left]

    @property
    def owners(self) -> str:
        return "".join(each.owner for each in self.entered)


def test_places_that_become_free_go_round_by_owner() -> None:
    scene = Scene(2)
    scene.ask("AAAAAABBC")
    assert scene.owners == "AA"
    assert scene.leave("AAABCAB") == "ABCABAA"
    assert scene.queue.waiting == 0


def test_an_owner_has_at_most_its_share_of_the_places() -> None:
    scene = Scene(4, most=3)
    scene.ask("AAAAA")
    assert (scene.owners, scene.queue.waiting) == ("AAA", 2)
    scene.ask("B")
    assert scene.owners == "AAAB"
    assert scene.leave("B") == ""
    assert scene.leave("A") == "A"


def test_uses_of_one_container_share_a_place() -> None:
    scene = Scene(1)
    scene.ask("AA", "a")
    scene.ask("A", "b")
    scene.ask("BB", "c")
    assert [each.container for each in scene.entered] == ["a", "a"]
    assert scene.leave("A") == ""
    assert scene.leave("A") == "A"
    assert scene.leave("A") == "BB"


def test_a_wait_that_is_given_up_takes_no_place() -> None:
    scene = Scene(1)
    scene.ask("ABBC")
    scene.queue.leave(scene.tickets[1])
    scene.queue.leave(scene.tickets[1])
    assert scene.leave("ABC") == "BC"
    scene.ask("D")
    assert scene.owners == "D"


def test_waits_are_ended_with_an_error() -> None:
    scene = Scene(1)
    scene.ask("AABB")
    scene.queue.refuse(scene.tickets[2], NoSandbox("not you"))
    scene.queue.refuse(scene.tickets[0], NoSandbox("it runs"))
    scene.queue.close(NoSandbox("the end"))
    assert [str(each.exception() or "") for each in scene.tickets] == ["", "the end", "not you", "the end"]
    assert scene.queue.waiting == 0


def test_a_thread_and_a_loop_wait_and_say_why_and_for_how_long() -> None:
    waits = list[float]()
    queue = SandboxQueue(2, 1)
    queue.waited = waits.append
    with queue.slot("A", "a", 0):
        with pytest.raises(NoSandbox, match="you use 1, the most that one key may"), queue.slot("A", "b", 0):
            raise AssertionError
        with queue.slot("B", "c", 0), pytest.raises(NoSandbox, match="every sandbox is in use, 0 of 2 by you"):
            asyncio.run(queue.wait(queue.enter("C"), 0.01))
        assert queue.waiting == 0
    assert len(waits) == 4


def test_a_thread_that_waits_goes_on_when_it_is_its_turn() -> None:
    queue = SandboxQueue(1, 1)
    first, done = queue.enter("A"), threading.Event()

    def wait() -> None:
        with queue.slot("B", "b", 60):
            done.set()

    thread = threading.Thread(target=wait)
    thread.start()
    while not queue.waiting:
        pass
    queue.leave(first)
    thread.join(60)
    assert done.is_set()
    with queue.slot("A", "", 0):
        pass
