"""Connections of clients that tests speak on themselves: bare sockets, and WebSockets of responses."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.gateway.asking import KEYS
from tests.gateway.conftest import Gateway

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
QUICK = {"head_timeout": 0.3, "body_timeout": 0.3}
TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error", "response.steer.failed")
Events = list[dict[str, Any]]


def counted(gateway: Gateway, event: str) -> int:
    found = gateway.services.metrics.registry.get_sample_value("agent_tools_security_events_total", {"event": event})
    assert found is not None
    return int(found)


def is_served(connection: socket.socket) -> bool:
    connection.sendall(HEALTH)
    found = b""
    while not found.endswith(b"}"):
        found += connection.recv(65536)
    return found.startswith(b"HTTP/1.1 200") and found.endswith(b'{"status":"ok"}')


@contextmanager
def connected(gateway: Gateway, key: str = KEYS[0], **headers: str) -> Iterator[ClientConnection]:
    url = gateway.url.replace("http", "ws", 1) + "/v1/responses"
    sent = {"Authorization": f"Bearer {key}", **headers}
    with connect(url, additional_headers=sent, open_timeout=60, close_timeout=5) as client:
        yield client


def send(client: ClientConnection, **fields: Any) -> None:
    client.send(json.dumps({"type": "response.create", "model": "m", "input": "Go.", **fields}))


def received(client: ClientConnection) -> Events:
    """The events up to the end of a response."""
    found: Events = []
    while not found or found[-1]["type"] not in TERMINAL:
        found.append(json.loads(client.recv(60)))
    return found


def asked(client: ClientConnection, **fields: Any) -> Events:
    send(client, **fields)
    return received(client)
