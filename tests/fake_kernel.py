"""A sandbox played by threads of this process: PID 1's words, and a kernel that answers as a test tells it to.

It speaks the real wire (lifeline, ZMTP, signed Jupyter messages) and shares no code with the host's side of it, so that
a mistake there cannot hide here. It isolates nothing, and runs no code: the code of a request is a name. `ATTACK` has
the engine's script answer; anything else is answered honestly, with the number of the run in the life of its kernel.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import json
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_tools.runtime.engine import Container, Guest, SandboxSpec

ATTACK = "attack"
DELIMITER = b"<IDS|MSG>"
MORE, LONG, COMMAND = 1, 2, 4
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + b"\1" + bytes(31)
PATIENCE = 10.0  # seconds a thread of a sandbox that ended may take to see it

Script = Callable[["Turn"], None]
Opening = Callable[["FakeKernel"], None]


def frame(body: bytes, flags: int = 0) -> bytes:
    """One ZMTP frame."""
    if len(body) < 256:
        return bytes((flags, len(body))) + body
    return bytes((flags | LONG,)) + struct.pack(">Q", len(body)) + body


def is_readable(connected: socket.socket, wait: float | None) -> bool:
    """Whether something comes, or the other side hangs up, within so many seconds."""
    poller = select.poll()
    poller.register(connected, select.POLLIN)
    return bool(poller.poll(None if wait is None else wait * 1000))


def wire(parts: Sequence[bytes]) -> bytes:
    """One ZMTP message."""
    return b"".join(frame(part, MORE if index < len(parts) - 1 else 0) for index, part in enumerate(parts))


class Channel:
    """The kernel's end of one connection. Writing after a hang-up, by whomever, is an OSError."""

    def __init__(self, listener: socket.socket) -> None:
        self._socket, _ = listener.accept()  # the host has connected already
        self._turn = threading.Lock()
        listener.close()

    def greet(self, kind: bytes) -> None:
        """Shake hands, as libzmq does."""
        ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
        self.send_bytes(GREETING + frame(ready, COMMAND))
        self._read(len(GREETING))

    def send_bytes(self, data: bytes) -> None:
        with self._turn:
            self._socket.sendall(data)

    def send(self, parts: Sequence[bytes]) -> None:
        self.send_bytes(wire(parts))

    def receive(self) -> list[bytes]:
        """The next message; commands are passed over."""
        parts: list[bytes] = []
        while True:
            (flags,) = self._read(1)
            size = int.from_bytes(self._read(8 if flags & LONG else 1), "big")
            body = self._read(size)
            if not flags & COMMAND:
                parts.append(body)
                if not flags & MORE:
                    return parts

    def await_input(self) -> None:
        """Wait until the host has sent something more, or hung up."""
        is_readable(self._socket, PATIENCE)

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionResetError
            data += piece
        return data


def open_honestly(kernel: FakeKernel) -> None:
    """What a kernel does when it starts."""
    kernel.shell.greet(b"ROUTER")
    kernel.iopub.greet(b"XPUB")
    kernel.iopub.send([b"iopub_welcome", *kernel.pack("iopub_welcome", {"subscription": ""}, parent={})])


def answer_honestly(turn: Turn) -> None:
    turn.publish("status", {"execution_state": "busy"})
    turn.publish("stream", {"name": "stdout", "text": f"run {turn.kernel.runs}\n"})
    turn.finish()


class FakeKernel:
    """One kernel: a thread that serves its shell channel until it is ended."""

    def __init__(self, init: FakeSandbox, key: bytes, listeners: list[socket.socket], opening: Opening) -> None:
        self.init = init
        self.key = key
        self.runs = 0
        self.interrupted = threading.Event()
        self.shell, self.iopub = map(Channel, listeners)
        self.ended = threading.Event()
        self._opening = opening
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        self.spawn(self._live)

    def spawn(self, work: Callable[[], object]) -> None:
        """Have a thread of the kernel do this until it is done or the host hangs up."""

        def do() -> None:
            with contextlib.suppress(OSError):
                work()

        self._threads.append(threading.Thread(target=do, name="fake kernel", daemon=True))
        self._threads[-1].start()

    def end(self) -> None:
        """As SIGKILL would."""
        self.ended.set()
        self.shell.hang_up()
        self.iopub.hang_up()
        for thread in self._threads:
            thread.join(PATIENCE)
        self.shell.close()
        self.iopub.close()

    def pack(self, kind: str, content: object, **parts: Any) -> list[bytes]:
        """A message with a valid signature; each part is JSON to be, or the bytes to put in its place."""
        header = parts.get("header", {})
        if isinstance(header, dict):
            header = {"msg_type": kind, "version": "5.3", "msg_id": os.urandom(8).hex(), "session": "s", **header}
        packed = [_packed(part) for part in (header, parts["parent"], parts.get("metadata", {}), content)]
        return [DELIMITER, sign(self.key, packed), *packed]

    def _live(self) -> None:
        self._opening(self)
        while not self.ended.is_set():
            self._serve(self.shell.receive())

    def _serve(self, parts: list[bytes]) -> None:
        header, content = (json.loads(parts[parts.index(DELIMITER) + place]) for place in (2, 5))
        if header["msg_type"] == "execute_request":
            self.runs += 1
            self.interrupted.clear()
            answer = self.init.engine.script if content["code"] == ATTACK else answer_honestly
            answer(Turn(self, header))


def sign(key: bytes, parts: Sequence[bytes]) -> bytes:
    return hmac.new(key, b"".join(parts), "sha256").hexdigest().encode()


def _packed(part: object) -> bytes:
    return part if isinstance(part, bytes) else json.dumps(part).encode()


class Turn:
    """One request to execute code, and every way to answer it."""

    def __init__(self, kernel: FakeKernel, request: dict[str, Any]) -> None:
        self.kernel = kernel
        self.request = request
        self.shell, self.iopub = kernel.shell, kernel.iopub

    def pack(self, kind: str, content: object, **parts: Any) -> list[bytes]:
        """A signed message that belongs to this request, unless `parts` says otherwise."""
        return self.kernel.pack(kind, content, **{"parent": self.request, **parts})

    def publish(self, kind: str, content: object, **parts: Any) -> None:
        self.iopub.send([b"topic", *self.pack(kind, content, **parts)])

    def reply(self, content: object = None, **parts: Any) -> None:
        content = {"status": "ok", "execution_count": 1} if content is None else content
        self.shell.send(self.pack("execute_reply", content, **parts))

    def idle(self) -> None:
        self.publish("status", {"execution_state": "idle"})

    def finish(self) -> None:
        self.reply()
        self.idle()

    def flood(self, kind: str, contents: Iterable[bytes]) -> None:
        """Publish one message for each content, many at a time, until all are out or the host hangs up."""
        made = self._made(kind, contents)
        while chunk := b"".join(itertools.islice(made, 100)):
            self.iopub.send_bytes(chunk)

    def _made(self, kind: str, contents: Iterable[bytes]) -> Iterator[bytes]:
        parts = self.pack(kind, b"")[2:5]
        head = b"".join(frame(part, MORE) for part in parts)
        signer = hmac.new(self.kernel.key, b"".join(parts), "sha256")
        before = frame(b"topic", MORE) + frame(DELIMITER, MORE)
        for content in contents:
            signed = signer.copy()
            signed.update(content)
            yield before + frame(signed.hexdigest().encode(), MORE) + head + frame(content)


class FakeSandbox:
    """PID 1, as a thread: obeys the host, starts and ends kernels, until the host hangs up or it is removed.

    Attributes:
        is_deaf: it obeys no more, and sends no signal that is due.
    """

    def __init__(self, engine: FakeEngine, spec: SandboxSpec) -> None:
        self.engine = engine
        self._host = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._host.connect(str(spec.run_dir / "init.sock"))
        self._kernel: FakeKernel | None = None
        self._generation = 0
        self._alarms: list[tuple[float, Callable[[], None]]] = []
        self.is_deaf = False
        self._thread = threading.Thread(target=self._live, name="fake PID 1", daemon=True)
        self._thread.start()

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self.hang_up()
        self._thread.join(PATIENCE)

    def say(self, words: bytes) -> None:
        """Send the host one datagram."""
        self._host.send(words)

    def hang_up(self) -> None:
        """Close the lifeline, as the end of the sandbox would."""
        self._host.shutdown(socket.SHUT_RDWR)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _live(self) -> None:
        with self._host:
            while True:
                due = max(0.0, self._alarms[0][0] - time.monotonic()) if self._alarms else None
                if is_readable(self._host, due):
                    if not self._listen():
                        break
                elif not self.is_deaf:
                    self._alarms.pop(0)[1]()
                else:
                    self._alarms = []
            self._end_kernel()

    def _listen(self) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._host, 4096, 2)
        except OSError:
            return False
        listeners = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        if not self.is_deaf:
            self._obey(data.decode().split(), listeners)
        for listener in listeners:
            listener.close()
        return bool(data)

    def _obey(self, words: list[str], listeners: list[socket.socket]) -> None:
        match words:
            case ["start", generation, key]:
                self._end_kernel()
                self._generation = int(generation)
                self._start_kernel(key.encode(), listeners)
            case ["arm", interrupt, kill]:
                first = time.monotonic() + float(interrupt)
                self._alarms = [(first, self._interrupt), (first + float(kill), self._end_kernel)]
            case ["disarm"]:
                self._alarms = []
            case ["interrupt"]:
                self._interrupt()
            case ["kill"]:
                self._end_kernel()

    def _start_kernel(self, key: bytes, listeners: list[socket.socket]) -> None:
        opening = self.engine.openings.pop(0) if self.engine.openings else open_honestly
        self._kernel = FakeKernel(self, key, listeners, opening)
        self._kernel.start()

    def _interrupt(self) -> None:
        if self._kernel:
            self._kernel.interrupted.set()

    def _end_kernel(self) -> None:
        kernel, self._kernel, self._alarms = self._kernel, None, []
        if kernel:
            kernel.end()
            with contextlib.suppress(OSError):
                self._host.send(f"exit {self._generation} signal 9".encode(), socket.MSG_DONTWAIT)


class FakeEngine:
    """Implements the Engine protocol with threads.

    Attributes:
        script: how every kernel answers `ATTACK`.
        openings: what the next kernels do instead of shaking hands, one each; the ones after these are honest.
        started: how many sandboxes were started.
    """

    def __init__(self, script: Script, openings: Sequence[Opening] = ()) -> None:
        self.script = script
        self.openings = list(openings)
        self.started = 0
        self._sandboxes: dict[str, FakeSandbox] = {}

    def guest(self, work_dir: Path | None = None) -> Guest:
        me = (os.getuid(), os.getgid())
        return Guest(inside=me, outside=me)

    def start(self, spec: SandboxSpec) -> Container:
        self.started += 1
        sandbox = Container(str(self.started))
        self._sandboxes[sandbox.id] = FakeSandbox(self, spec)
        return sandbox

    def remove(self, sandbox: Container) -> None:
        if found := self._sandboxes.pop(sandbox.id, None):
            found.remove()

    def last_words(self, sandbox: Container, spec: SandboxSpec) -> str | None:
        found = self._sandboxes.get(sandbox.id)
        return None if found and found.is_running else "it ended"

    def strays(self, host: Mapping[str, str]) -> Sequence[tuple[Container, Mapping[str, str]]]:
        return []
