"""The streams of a kernel: text on its way from a pipe to the host."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from agent_tools.guest.kernel.streams import Header, OutputStream, UnsentText


class Captured:
    """A stream over a descriptor of its own, and what it has published."""

    def __init__(self) -> None:
        self.published: list[str] = []
        reader, self.writer = os.pipe()
        os.set_blocking(reader, False)
        self.descriptor = os.dup(self.writer)
        unsent = UnsentText(threading.RLock(), self._take)
        self.stream = OutputStream("stdout", self.descriptor, (reader, self.writer), unsent)
        self.stream.set_parent({"msg_id": "1"})

    def _take(self, name: str, parent: Header, text: str, can_wait: bool) -> None:
        assert (name, parent, can_wait) == ("stdout", {"msg_id": "1"}, False)
        self.published.append(text)


@pytest.fixture
def captured() -> Iterator[Captured]:
    found = Captured()
    yield found
    os.close(found.stream.pipe)


@pytest.fixture
def ticks() -> Iterator[list[int]]:
    """A list that another thread makes longer whenever it runs, which it does when the first one lets it."""
    before, made, is_over = sys.getswitchinterval(), [0], threading.Event()
    sys.setswitchinterval(1000)

    def tick() -> None:
        while not is_over.wait(0.0001):
            made[0] += 1

    thread = threading.Thread(target=tick)
    thread.start()
    yield made
    sys.setswitchinterval(before)
    is_over.set()
    thread.join()


def test_no_other_thread_runs_from_the_reading_of_text_to_its_sending(captured: Captured, ticks: list[int]) -> None:
    os.set_blocking(captured.stream.pipe, True)  # so that the reading takes as long as the process
    with subprocess.Popen(["sh", "-c", "sleep 0.2; echo late"], stdout=captured.descriptor):
        os.close(captured.descriptor)
        before = ticks[0]
        assert not captured.stream.take_from_pipe()
        assert ticks[0] == before
    assert captured.published == ["late\n"]


def test_a_pipe_that_nobody_writes_any_more_is_over(captured: Captured) -> None:
    os.write(captured.descriptor, "gr\u00fcn".encode())
    assert captured.stream.take_from_pipe()
    os.close(captured.descriptor)
    assert not captured.stream.take_from_pipe()
    assert captured.published == ["gr\u00fcn"]
