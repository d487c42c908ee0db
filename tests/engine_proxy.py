"""A unix socket in front of the engine's, on which an engine fails as engines do: late, midway, wrongly, or not there.

Point DOCKER_HOST at `EngineProxy.url`. Each connection carries one request (the proxy asks the engine to close after
it), so that a fault can be chosen by request and anything may follow, an upgraded connection too.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

ENGINE = "/var/run/docker.sock"
CHUNK = 65536


@dataclass
class Fault:
    """The fate of requests whose `METHOD path` matches, the next `times` of them.

    Kinds: "cut" hangs up before the engine hears of it, "deafen" after the engine has done it, "halve" in the middle of
    the answer; "answer" answers `status` itself; "delay" waits `seconds` first.
    """

    matches: str
    kind: Literal["cut", "deafen", "halve", "answer", "delay"]
    status: int = 500
    seconds: float = 0.0
    times: int = 1_000_000


class EngineProxy:
    """Serves `path` until closed. `requests` lists what was asked, as `METHOD path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None
        self.come_back()

    @property
    def url(self) -> str:
        """For DOCKER_HOST."""
        return f"unix://{self.path}"

    def heal(self) -> None:
        """Pass everything through from now on, and let go of what is delayed."""
        self.faults.clear()
        self._wake.set()
        self._wake = threading.Event()

    def come_back(self) -> None:
        """Listen (again), as an engine that has started."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._start(self._accept, self._listener)

    def refuse(self) -> None:
        """Stop listening and leave the socket's file, as an engine that crashed; cut what is open."""
        if self._listener:
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            self._listener.close()
            self._listener = None
        self.cut_all()

    def vanish(self) -> None:
        """As an engine that was stopped: its socket is gone."""
        self.refuse()
        self.path.unlink(missing_ok=True)

    def cut_all(self) -> None:
        """Hang up on everybody."""
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop everything and wait for it."""
        self.heal()
        self.vanish()
        for thread in self._threads:
            thread.join(10)

    def __enter__(self) -> EngineProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="engine proxy", daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        engine = socket.socket(socket.AF_UNIX)
        with self._lock:
            self._open |= {client, engine}
        try:
            with contextlib.suppress(OSError), client, engine:
                self._exchange(client, engine)
        finally:
            with self._lock:
                self._open -= {client, engine}

    def _exchange(self, client: socket.socket, engine: socket.socket) -> None:
        head, body = _read_head(client)
        if not head:
            return
        asked = " ".join(head.split(b"\r\n", 1)[0].decode("latin-1").split()[:2])
        self.requests.append(asked)
        fault = self._fault_for(asked)
        if fault and fault.kind == "delay":
            self._wake.wait(fault.seconds)
        if fault and fault.kind == "cut":
            return
        if fault and fault.kind == "answer":
            client.sendall(_answer(fault.status))
            return
        engine.connect(ENGINE)
        engine.sendall(_asking_to_close(head) + body)
        if fault and fault.kind in ("deafen", "halve"):
            engine.sendall(_rest_of_body(client, head, len(body)))
            answer = _read_all(engine)
            client.sendall(answer[: len(answer) // 2] if fault.kind == "halve" else b"")
            return
        _relay(client, engine)

    def _fault_for(self, asked: str) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.matches, asked):
                    fault.times -= 1
                    return fault
        return None


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    """A request's head, and what of its body came with it; empty if the client hung up."""
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = client.recv(CHUNK)
        if not chunk:
            return b"", b""
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n", body


def _rest_of_body(client: socket.socket, head: bytes, had: int) -> bytes:
    length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    rest = b""
    while length and had + len(rest) < int(length[1]) and (chunk := client.recv(CHUNK)):
        rest += chunk
    return rest


def _asking_to_close(head: bytes) -> bytes:
    """The same head for one request only, unless it asks for an upgrade, which ends with its connection anyway."""
    if re.search(rb"\r\nupgrade:", head, re.IGNORECASE):
        return head
    head = re.sub(rb"\r\nconnection:[^\r]*", b"", head, flags=re.IGNORECASE)
    return head[:-2] + b"Connection: close\r\n\r\n"


def _answer(status: int) -> bytes:
    body = json.dumps({"message": "the engine is out of order"}).encode()
    head = f"HTTP/1.1 {status} Fault\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body


def _read_all(engine: socket.socket) -> bytes:
    data = b""
    while chunk := engine.recv(CHUNK):
        data += chunk
    return data


def _relay(client: socket.socket, engine: socket.socket) -> None:
    """Both ways, until the engine hangs up, or the client does without having said that it only stops writing."""
    other = {client: engine, engine: client}
    reading = [client, engine]
    while engine in reading:
        for source in select.select(reading, [], [])[0]:
            data = source.recv(CHUNK)
            if data:
                other[source].sendall(data)
            else:
                reading.remove(source)
                with contextlib.suppress(OSError):
                    other[source].shutdown(socket.SHUT_WR)
