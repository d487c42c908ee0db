"""The pipes of a server on stdin and stdout."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_tools.machine import pipes

Ends = dict[str, int]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    """A client's ends of pipes that stand for those of this process: `stdin`, `stdout` and `stderr`."""
    made = {name: os.pipe() for name in ("stdin", "stdout", "stderr")}
    monkeypatch.setattr(pipes, "STDIN", made["stdin"][0])
    monkeypatch.setattr(pipes, "STDOUT", made["stdout"][1])
    monkeypatch.setattr(pipes, "STDERR", made["stderr"][1])
    ends = {"stdin": made["stdin"][1], "stdout": made["stdout"][0], "stderr": made["stderr"][0]}
    yield ends
    for descriptor in {*ends.values(), pipes.STDIN, pipes.STDOUT, pipes.STDERR}:
        os.close(descriptor)


async def answered(ends: Ends, sent: bytes, most: int = 100) -> list[str]:
    """Send a client's bytes, then its end; answer each line with its length, and return the lines."""
    found = []
    async with pipes.own_pipes(most) as (lines, sink):
        os.write(ends["stdin"], sent)
        os.close(ends["stdin"])
        ends["stdin"] = os.dup(ends["stdout"])
        async for line in lines:
            found.append(line)
            await sink.write(f"{len(line)}\n")
            await sink.flush()
    return found


def test_lines_come_as_they_are_and_answers_go_out(ends: Ends) -> None:
    assert asyncio.run(answered(ends, "{“a”}\r\n".encode() + b"\xff\nlast")) == ["{“a”}\r\n", "\ufffd\n", "last"]
    assert os.read(ends["stdout"], 100) == b"7\n2\n4\n"


def test_a_line_that_is_too_long_is_an_empty_one_and_the_next_is_read(ends: Ends) -> None:
    found = asyncio.run(answered(ends, b"a" * 150 + b"\n" + b"b\n", most=100))
    assert [line for line in found if line != "\n"] == ["b\n"]
    assert "\n" in found


def test_nothing_else_reads_or_writes_the_client_s_pipes(ends: Ends) -> None:
    async def stray() -> bytes:
        async with pipes.own_pipes(100):
            os.write(pipes.STDOUT, b"printed")
            return os.read(pipes.STDIN, 10)

    assert asyncio.run(stray()) == b""
    assert os.read(ends["stderr"], 100) == b"printed"


def test_a_client_that_does_not_read_is_waited_for(ends: Ends) -> None:
    async def slow() -> bytes:
        async with pipes.own_pipes(100) as (_, sink):
            await sink.write("x" * 1_000_000)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(sink.flush(), 0.05)
            got = b""
            flushed = asyncio.ensure_future(sink.flush())
            while not flushed.done():
                got += await asyncio.to_thread(os.read, ends["stdout"], 65_536)
            os.set_blocking(ends["stdout"], False)
            while len(got) < 1_000_000:
                got += os.read(ends["stdout"], 65_536)
            return got

    assert asyncio.run(slow()) == b"x" * 1_000_000


def test_files_are_left_to_the_library(ends: Ends, tmp_path: Path) -> None:
    async def taken() -> tuple[object, object]:
        async with pipes.own_pipes(100) as (lines, sink):
            return lines, sink

    with open(tmp_path / "given", "wb+") as file:
        os.dup2(file.fileno(), pipes.STDIN)
    assert asyncio.run(taken()) == (None, None)


def test_one_socket_for_both_ways_is_left_to_the_library(ends: Ends) -> None:
    async def taken() -> tuple[object, object]:
        async with pipes.own_pipes(100) as (lines, sink):
            return lines, sink

    ours, theirs = socket.socketpair()
    with ours, theirs:
        for descriptor in (pipes.STDIN, pipes.STDOUT):
            os.dup2(ours.fileno(), descriptor)
        assert asyncio.run(taken()) == (None, None)
