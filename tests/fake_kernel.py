"""A sandbox played by threads of this process: PID 1's words, and a kernel that answers as a test tells it to.

It speaks the real wire (the lifeline's words, Jupyter's messages as frames) and shares no code with the host's side of
it, so that a mistake there cannot hide here. It isolates nothing, and runs no code: the code of a request is a name.
`ATTACK` has the engine's script answer; anything else is answered honestly, with the number of the run in the life of
its kernel.
"""

from __future__ import annotations

import contextlib
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

from agent_tools.engines.engine import EngineContainer, SandboxSpec
from agent_tools.engines.guest import Guest
from agent_tools.guest.wire.words import NO_COPY, Failed, write

ATTACK = "attack"
SHELL, IOPUB, CONTROL, STDIN = 1, 2, 3, 4
CHANNELS = {"shell": SHELL, "iopub": IOPUB, "control": CONTROL, "stdin": STDIN}
PATIENCE = 10.0  # seconds a thread of a sandbox that ended may take to see it

Script = Callable[["Turn"], None]
Opening = Callable[["FakeKernel"], None]


def sizes(channel: int, *of_parts: int) -> bytes:
    """The beginning of a message: its channel, its length, the number of its parts, and their sizes."""
    count = len(of_parts)
    length = min(4 + 4 * count + sum(of_parts), 2**32 - 1)
    return struct.pack(f">{3 + count}I", channel, length, count, *of_parts)


def message(channel: int, parts: Sequence[bytes]) -> bytes:
    """One message, of however many parts."""
    return sizes(channel, *map(len, parts)) + b"".join(parts)


def is_readable(connected: socket.socket, wait: float | None) -> bool:
    """Return whether something comes, or the other side hangs up, within so many seconds."""
    poller = select.poll()
    poller.register(connected, select.POLLIN)
    return bool(poller.poll(None if wait is None else wait * 1000))


class Wire:
    """The kernel's end of its socket. Writing after a hang-up, by whomever, is an OSError."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._turn = threading.Lock()

    def send_bytes(self, data: bytes) -> None:
        with self._turn:
            self._socket.sendall(data)

    def send(self, channel: int, parts: Sequence[bytes]) -> None:
        self.send_bytes(message(channel, parts))

    def receive(self) -> list[bytes]:
        """The parts of the next message."""
        _, _, count = struct.unpack(">3I", self._read(12))
        lengths = struct.unpack(f">{count}I", self._read(4 * count))
        return [self._read(length) for length in lengths]

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
    """Do what a kernel does when it starts."""
    kernel.wire.send(IOPUB, kernel.pack("status", {"execution_state": "starting"}, parent={}))


def answer_honestly(turn: Turn) -> None:
    turn.publish("status", {"execution_state": "busy"})
    turn.publish("stream", {"name": "stdout", "text": f"run {turn.kernel.runs}\n"})
    turn.finish()


class FakeKernel:
    """One kernel: a thread that answers requests until it is ended. It makes no host calls."""

    def __init__(self, init: FakeSandbox, sockets: list[socket.socket], opening: Opening) -> None:
        self.init = init
        self.runs = 0
        self.interrupted = threading.Event()
        messages, self._calls = sockets
        self.wire = Wire(messages)
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
        self.wire.hang_up()
        for thread in self._threads:
            thread.join(PATIENCE)
        self.wire.close()
        self._calls.close()

    def pack(self, kind: str, content: object, **parts: Any) -> list[bytes]:
        """The parts of a message; each is JSON to be, or the bytes to put in its place."""
        header = parts.get("header", {})
        if isinstance(header, dict):
            header = {"msg_type": kind, "version": "5.3", "msg_id": os.urandom(8).hex(), "session": "s", **header}
        return [_packed(part) for part in (header, parts["parent"], parts.get("metadata", {}), content)]

    def _live(self) -> None:
        self._opening(self)
        while not self.ended.is_set():
            self._serve(self.wire.receive())

    def _serve(self, parts: list[bytes]) -> None:
        header, content = json.loads(parts[0]), json.loads(parts[3])
        if header["msg_type"] == "execute_request":
            self.runs += 1
            self.interrupted.clear()
            answer = self.init.engine.script if content["code"] == ATTACK else answer_honestly
            answer(Turn(self, header))


def _packed(part: object) -> bytes:
    return part if isinstance(part, bytes) else json.dumps(part).encode()


class Turn:
    """One request to execute code, and every way to answer it."""

    def __init__(self, kernel: FakeKernel, request: dict[str, Any]) -> None:
        self.kernel = kernel
        self.request = request
        self.wire = kernel.wire

    def pack(self, kind: str, content: object, **parts: Any) -> list[bytes]:
        """The parts of a message that belongs to this request, unless `parts` says otherwise."""
        return self.kernel.pack(kind, content, **{"parent": self.request, **parts})

    def say(self, channel: int, kind: str, content: object, **parts: Any) -> None:
        self.wire.send(channel, self.pack(kind, content, **parts))

    def publish(self, kind: str, content: object, **parts: Any) -> None:
        self.say(IOPUB, kind, content, **parts)

    def reply(self, content: object = None, **parts: Any) -> None:
        content = {"status": "ok", "execution_count": 1} if content is None else content
        self.say(SHELL, "execute_reply", content, **parts)

    def idle(self) -> None:
        self.publish("status", {"execution_state": "idle"})

    def finish(self) -> None:
        self.reply()
        self.idle()

    def flood(self, kind: str, contents: Iterable[bytes], channel: int = IOPUB) -> None:
        """Send one message for each content, many at a time, until all are out or the host hangs up."""
        made = self._made(kind, contents, channel)
        while chunk := b"".join(itertools.islice(made, 100)):
            self.wire.send_bytes(chunk)

    def _made(self, kind: str, contents: Iterable[bytes], channel: int) -> Iterator[bytes]:
        *parts, _ = self.pack(kind, b"")
        for content in contents:
            yield message(channel, [*parts, content])


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
        sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        if not self.is_deaf:
            self._obey(data.decode().split(), sockets)
        else:
            for each in sockets:
                each.close()
        return bool(data)

    def _obey(self, words: list[str], sockets: list[socket.socket]) -> None:
        match words:
            case ["start", generation]:
                self._end_kernel()
                self._generation = int(generation)
                self._start_kernel(sockets)
            case ["wake", generation, _]:
                for each in sockets:
                    each.close()
                self._host.send(write(Failed(int(generation), NO_COPY)), socket.MSG_DONTWAIT)
            case ["arm", interrupt, kill]:
                first = time.monotonic() + float(interrupt)
                self._alarms = [(first, self._interrupt), (first + float(kill), self._end_kernel)]
            case ["disarm"]:
                self._alarms = []
            case ["interrupt", *_]:
                self._interrupt()
            case ["kill"]:
                self._end_kernel()

    def _start_kernel(self, sockets: list[socket.socket]) -> None:
        opening = self.engine.openings.pop(0) if self.engine.openings else open_honestly
        self._kernel = FakeKernel(self, sockets, opening)
        self._kernel.start()

    def _interrupt(self) -> None:
        if self._kernel:
            self._kernel.interrupted.set()

    def _end_kernel(self) -> None:
        kernel, self._kernel, self._alarms = self._kernel, None, []
        if kernel:
            kernel.end()
            with contextlib.suppress(OSError):
                self._host.send(f"exit {self._generation} 0 9 0 /tmp 0 0".encode(), socket.MSG_DONTWAIT)


class FakeEngine:
    """Implements the Engine protocol with threads.

    Attributes:
        script: how every kernel answers `ATTACK`.
        openings: what the next kernels do instead of saying that they are ready, one each; later ones are honest.
        started: how many sandboxes were started.
    """

    def __init__(self, script: Script, openings: Sequence[Opening] = ()) -> None:
        self.script = script
        self.openings = list(openings)
        self.started = 0
        self._sandboxes: dict[str, FakeSandbox] = {}

    def guest(self, work_dir: Path | None = None) -> Guest:
        me = (os.getuid(), os.getgid())
        return Guest(container_ids=me, host_ids=me)

    def start(self, spec: SandboxSpec) -> EngineContainer:
        self.started += 1
        sandbox = EngineContainer(str(self.started))
        self._sandboxes[sandbox.id] = FakeSandbox(self, spec)
        return sandbox

    def remove(self, sandbox: EngineContainer) -> None:
        if found := self._sandboxes.pop(sandbox.id, None):
            found.remove()

    def last_words(self, sandbox: EngineContainer, spec: SandboxSpec) -> str | None:
        found = self._sandboxes.get(sandbox.id)
        return None if found and found.is_running else "it ended"

    def strays(self, host: Mapping[str, str]) -> Sequence[tuple[EngineContainer, Mapping[str, str]]]:
        return []
