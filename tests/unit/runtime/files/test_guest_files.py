"""The host's connections to the file service of a sandbox: kept for the next use, and not beyond their servers' end."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent_tools.errors import SandboxGone
from agent_tools.guest.wire.files import CONTENT, pack_head
from agent_tools.guest.wire.framing import HEADER, pack
from agent_tools.limits import Limits
from agent_tools.runtime.files import file_conversation as conversation
from agent_tools.runtime.files.file_conversation import Conversation
from agent_tools.runtime.files.guest_files import GuestFiles


class Service:
    """Servers that answer each request with {}, and can be ended."""

    def __init__(self) -> None:
        self.ends: list[socket.socket] = []
        self._pool = ThreadPoolExecutor()

    def connect(self, max_parts: int) -> Conversation:
        ours, theirs = socket.socketpair()
        self.ends.append(theirs)
        self._pool.submit(self._serve, theirs)
        return Conversation(ours, max_parts)

    def _serve(self, end: socket.socket) -> None:
        with end:
            while header := end.recv(HEADER.size):
                end.recv(HEADER.unpack(header)[1], socket.MSG_WAITALL)
                end.sendall(pack_head({}))

    def end_all(self) -> None:
        for end in self.ends:
            if end.fileno() >= 0:
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.end_all()
        self._pool.shutdown()


class Ready(Conversation):
    """A connection on which the next answer may lie ready before its request."""

    is_idle = True  # type: ignore[assignment]


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.close()


@pytest.fixture
def files(service: Service) -> Iterator[GuestFiles]:
    made = GuestFiles(Limits(), service.connect)
    yield made
    made.close()


def test_a_connection_is_used_again(files: GuestFiles, service: Service) -> None:
    for _ in range(3):
        files.make_dir("folder")
    assert len(service.ends) == 1


def test_one_whose_server_has_ended_is_not(files: GuestFiles, service: Service) -> None:
    files.make_dir("folder")
    service.end_all()
    files.make_dir("folder")
    assert len(service.ends) == 2


def test_one_that_says_what_nobody_asked_for_is_not(files: GuestFiles, service: Service) -> None:
    files.make_dir("folder")
    service.ends[0].sendall(pack_head({}))
    files.make_dir("folder")
    assert len(service.ends) == 2


def test_a_server_that_ends_in_the_middle_is_told() -> None:
    ours, theirs = socket.socketpair()
    files = GuestFiles(Limits(), lambda max_parts: Conversation(ours, max_parts))
    thread = threading.Thread(target=lambda: (theirs.recv(4), theirs.close()))
    thread.start()
    with pytest.raises(SandboxGone):
        files.make_dir("folder")
    thread.join()


def test_who_waits_for_an_answer_is_told_when_the_files_are_closed() -> None:
    ours, theirs = socket.socketpair()
    with theirs, ThreadPoolExecutor() as pool:
        files = GuestFiles(Limits(sync_timeout=1_000), lambda most: Conversation(ours, most))
        waiting = pool.submit(files.make_dir, "a")
        assert theirs.recv(1)  # it has asked, and waits
        files.close()
        with pytest.raises(SandboxGone, match="ended meanwhile"):
            waiting.result(60)


def test_content_that_cannot_be_read_to_its_end_is_an_error_and_the_connection_goes_on() -> None:
    ours, theirs = socket.socketpair()
    answers = (pack_head({}), pack(CONTENT, b"half"), pack_head({"errno": errno.EIO}), pack_head({}))
    with theirs:
        theirs.sendall(b"".join(answers))
        files = GuestFiles(Limits(), lambda most: Ready(ours, most))
        with pytest.raises(OSError, match="it could not be read to its end"):
            files.read("a")
        files.make_dir("b")
        files.close()


def test_a_server_that_is_silent_is_roused_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "SILENCE", 0.01)
    ours, theirs = socket.socketpair()
    roused: list[int] = []

    def rouse() -> None:
        roused.append(len(theirs.recv(1 << 20, socket.MSG_DONTWAIT)))
        theirs.sendall(pack_head({}))

    with theirs:
        files = GuestFiles(Limits(), lambda most: Conversation(ours, most, rouse))
        files.make_dir("a")
        assert len(roused) == 1
        files.close()


def test_a_server_that_stays_silent_is_told_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "SILENCE", 0.01)
    ours, theirs = socket.socketpair()
    roused: list[None] = []
    with theirs:
        files = GuestFiles(Limits(sync_timeout=0.2), lambda most: Conversation(ours, most, lambda: roused.append(None)))
        with pytest.raises(TimeoutError, match="sync_timeout"):
            files.write("a", b"x" * (8 << 20))  # more than the socket takes
    assert len(roused) > 1


def test_a_connection_that_is_made_while_they_are_closed_is_told_too() -> None:
    ours, theirs = socket.socketpair()

    def connect(most: int) -> Conversation:
        files.close()
        return Conversation(ours, most)

    files = GuestFiles(Limits(sync_timeout=1_000), connect)
    with theirs, pytest.raises(SandboxGone, match="ended meanwhile"):
        files.make_dir("a")
