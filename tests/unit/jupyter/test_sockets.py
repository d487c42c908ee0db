"""Sockets of clients that do not read."""

from __future__ import annotations

import time

import zmq

from agent_tools.jupyter.connection import ConnectionInfo
from agent_tools.jupyter.sockets import MAX_UNSENT_BYTES, KernelSockets
from agent_tools.limits import MIB


def test_what_waits_for_a_client_that_does_not_read_is_bounded(info: ConnectionInfo) -> None:
    with KernelSockets(info) as sockets, zmq.Context() as context, context.socket(zmq.SUB) as client:
        client.linger, client.rcvhwm = 0, 1
        client.connect(info.address("iopub"))
        client.subscribe(b"")
        assert sockets.await_input([], with_shell=True) == set()
        assert [channel for channel, _ in sockets.receive()] == ["iopub"]
        large = [b"topic", bytes(16 * MIB)]
        sent = [sockets.publish(large) for _ in range(40)]
        assert not all(sent)
        assert sum(sent) * 16 * MIB <= MAX_UNSENT_BYTES + 3 * 16 * MIB  # what is on its way is the socket's
        assert sockets.publish([b"topic", b"small"])
        deadline = time.monotonic() + 10
        while not sockets.publish(large):
            client.recv_multipart()
            assert time.monotonic() < deadline


def test_where_nobody_listens_nothing_waits(info: ConnectionInfo) -> None:
    with KernelSockets(info) as sockets:
        for _ in range(100):
            deadline = time.monotonic() + 10
            while not sockets.publish([b"topic", bytes(16 * MIB)]):
                assert time.monotonic() < deadline


def test_heartbeats_are_answered_by_themselves(info: ConnectionInfo) -> None:
    with KernelSockets(info), zmq.Context() as context, context.socket(zmq.REQ) as client:
        client.linger, client.rcvtimeo = 0, 10_000
        client.connect(info.address("hb"))
        client.send(b"ping")
        assert client.recv() == b"ping"
