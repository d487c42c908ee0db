import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from agent_tools.engines.docker.attached_stdio import OutputFrames, conversation

FOREVER = 10.0


def frame(kind: int, text: bytes) -> bytes:
    return struct.pack(">BxxxL", kind, len(text)) + text


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_input_is_sent_and_output_taken_to_its_end(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    heard: list[bytes] = []

    def command() -> None:
        heard.append(theirs.recv(100))
        theirs.sendall(b"one")
        theirs.sendall(b"two")
        theirs.close()

    thread = threading.Thread(target=command)
    thread.start()
    assert conversation(ours, b"input", FOREVER, 100) == b"onetwo"
    thread.join()
    assert heard == [b"input"]


def test_a_command_that_prints_before_it_reads_is_heard(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    output, data, heard = b"x" * 1_000_000, b"y" * 1_000_000, bytearray()

    def command() -> None:
        theirs.sendall(output)
        while len(heard) < len(data):
            heard.extend(theirs.recv(65_536))
        theirs.close()

    thread = threading.Thread(target=command, daemon=True)
    thread.start()
    assert conversation(ours, data, FOREVER, len(output)) == output
    thread.join()
    assert heard == data


def test_a_command_that_has_printed_and_reads_nothing_is_heard(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"bye")
    theirs.close()
    assert conversation(ours, b"input", FOREVER, 100) == b"bye"


def test_a_command_that_does_not_end_is_heard_for_a_while(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"so far")
    assert conversation(ours, b"", 0.05, 100) == b"so far"
    theirs.sendall(b"late")
    assert conversation(ours, b"", 0.0, 100) == b"late"


def test_a_command_that_floods_is_not_heard_out(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"x" * 50_000)
    assert 1000 < len(conversation(ours, b"", FOREVER, 1000)) <= 1000 + 65_536


def test_a_command_that_is_gone_says_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.close()
    assert conversation(ours, b"input", FOREVER, 100) == b""


FRAMES = {
    "one": (frame(1, b"out"), b"out"),
    "two with errors between": (frame(1, b"a") + frame(2, b"err") + frame(1, b"b"), b"ab"),
    "cut in its text": (frame(1, b"a") + frame(1, b"bcd")[:-1], b"abc"),
    "cut in its header": (frame(1, b"a") + b"\x01\0\0", b"a"),
    "a length that lies": (struct.pack(">BxxxL", 1, 2**32 - 1) + b"rest", b"rest"),
    "empty": (b"", b""),
}


@pytest.mark.parametrize(("raw", "said"), FRAMES.values(), ids=FRAMES.keys())
def test_standard_output_is_taken_out_of_the_frames(raw: bytes, said: bytes) -> None:
    assert OutputFrames().stdout_of(raw) == said
