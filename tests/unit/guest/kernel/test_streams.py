"""The streams of a kernel: text on its way from a pipe to the host."""

from __future__ import annotations

import os
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


def test_a_pipe_that_nobody_writes_any_more_is_over(captured: Captured) -> None:
    os.write(captured.descriptor, "gr\u00fcn".encode())
    assert captured.stream.take_from_pipe()
    os.close(captured.descriptor)
    assert not captured.stream.take_from_pipe()
    assert captured.published == ["gr\u00fcn"]
