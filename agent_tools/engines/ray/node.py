"""A node: starts sandboxes for callers and joins each to the caller's connection. It knows no session and no Ray.

Theory of operation
    One thread accepts connections; each has a thread until its sandbox runs: it agrees on TLS, compares the token,
    reads the request, and sends empty messages while another thread starts the sandbox. From then on the process's
    event loop (machine/event_loop.py) copies bytes between the connection and the sandbox's stdio, both ways, as far as
    the receiver takes them. When one side ends, the sandbox is removed and the connection closed: a caller that is gone
    has no sandboxes, and the end of this process ends them all, since their stdin closes.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agent_tools.engines.engine import Engine, EngineContainer, SandboxSpec, Stdio
from agent_tools.engines.ray.greeting import read_exactly, read_message, send_message
from agent_tools.engines.ray.link import BEAT_SECONDS, GREETING_SECONDS, MAX_REQUEST, LinkStdio
from agent_tools.engines.ray.node_keys import TOKEN_BYTES, new_token, prepare, serving_tls
from agent_tools.engines.ray.request import read_spec, write_error
from agent_tools.engines.recipe import Recipe
from agent_tools.errors import AgentToolsError, HostFull, InvalidParams
from agent_tools.limits import MIB
from agent_tools.machine.background import begin, start_thread
from agent_tools.machine.event_loop import READ, WRITE, EventLoop, WatchedDescriptors, join, leave
from agent_tools.machine.fork_hook import abandon_after_fork
from agent_tools.machine.owner import NAME_LABEL, Owner
from agent_tools.version import __version__

STARTS_AT_ONCE = 4  # sandboxes that start: more make each of them slower
MAX_STRANGERS = 128  # connections that have not shown the token; the oldest makes room for another
MAX_WAITING = MIB  # bytes read from one side that the other has not taken; then reading pauses
PIECES_PER_STEP = 4

log = logging.getLogger("agent_tools.ray")


@dataclass(frozen=True)
class NodeEndpoint:
    """The address of a node, its token and its certificate. `name` is the same while the machine is there."""

    name: str
    host: str
    port: int
    token: str
    certificate: str
    slots: int
    release: str = __version__

    def __repr__(self) -> str:
        return f"NodeEndpoint({self.name!r}, {self.host!r}, {self.port})"


class NodeServer:
    """Serves callers from now on, until `close`. Thread-safe.

    Args:
        engine: starts the sandboxes.
        ensure_image: returns the tag of a recipe's image, after building it if it is missing.
        name: the node's name.
        host: the address to listen on.
        slots: the most sandboxes at a time.
    """

    def __init__(self, engine: Engine, ensure_image: Callable[[Recipe], str], name: str, host: str, slots: int) -> None:
        self._engine, self._ensure_image = engine, ensure_image
        self._tls, certificate = serving_tls()
        self._listener = socket.create_server((host, 0), backlog=MAX_STRANGERS)
        self._starts = threading.Semaphore(STARTS_AT_ONCE)
        self._strangers: dict[socket.socket, None] = {}  # the oldest first
        self._lock = threading.Lock()
        self._taken = 0
        self._is_retired = False
        self._carried: set[StreamCarrier] = set()
        self.used_at = time.monotonic()
        """When a sandbox last started or ended."""
        port = self._listener.getsockname()[1]
        self.endpoint = NodeEndpoint(name, host, port, new_token(), certificate, slots)
        abandon_after_fork(self)
        threading.Thread(target=self._accept, name="agent-tools-node", daemon=True).start()

    @property
    def taken(self) -> int:
        """The number of slots that are taken."""
        return self._taken

    def retire(self, idle: float) -> bool:
        """Take no more sandboxes, if none has been here for `idle` seconds; return whether."""
        with self._lock:
            self._is_retired = not self._taken and time.monotonic() - self.used_at >= idle
            return self._is_retired

    def close(self) -> None:
        """Accept no more callers, and end all sandboxes."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # `close` alone does not wake the thread that accepts
        self._listener.close()
        with self._lock:
            carried = list(self._carried)
        for each in carried:
            each.fail()

    def abandon(self) -> None:
        """In a forked child: close the inherited descriptor."""
        self._listener.close()

    # -- callers ------------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._listener.fileno() < 0:
                    return
                time.sleep(0.1)  # too many descriptors
                continue
            if not start_thread(partial(self._greet, connection), "agent-tools-caller"):
                connection.close()

    def _greet(self, connection: socket.socket) -> None:
        try:
            with contextlib.ExitStack() as undo:
                undo.callback(connection.close)
                deadline = time.monotonic() + GREETING_SECONDS
                prepare(connection)
                connection.settimeout(GREETING_SECONDS)
                caller = self._tls.wrap_socket(
                    connection, server_side=True, suppress_ragged_eofs=False, do_handshake_on_connect=False
                )
                undo.callback(caller.close)
                with self._stranger(caller):
                    caller.do_handshake()
                    given = read_exactly(caller, TOKEN_BYTES, deadline)
                if not hmac.compare_digest(given, self.endpoint.token.encode()):
                    return
                request = read_message(caller, MAX_REQUEST, deadline)
                caller.settimeout(GREETING_SECONDS)
                if self._serve(caller, request or {}):
                    undo.pop_all()
        except OSError as exc:  # ssl.SSLError is one
            log.debug("a caller was not served: %r", exc)

    @contextlib.contextmanager
    def _stranger(self, caller: ssl.SSLSocket) -> Iterator[None]:
        """Count a connection until its token has come; end the oldest one if there are too many."""
        with self._lock:
            self._strangers[caller] = None
            oldest = next(iter(self._strangers)) if len(self._strangers) > MAX_STRANGERS else None
            if oldest:
                del self._strangers[oldest]
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(oldest, socket.SHUT_RDWR)  # its thread closes it
        try:
            yield
        finally:
            with self._lock:
                self._strangers.pop(caller, None)

    def _serve(self, caller: ssl.SSLSocket, request: dict[str, Any]) -> bool:
        """Do what a caller asks for; return whether the connection is a sandbox's from now on."""
        try:
            spec = self._spec(request.get("spec"))
            match request:
                case {"op": "start"}:
                    return self._start(caller, spec)
                case {"op": "last_words", "id": str(id_)}:
                    words = _awaited(caller, lambda: self._engine.last_words(EngineContainer(id_), spec()))
                    send_message(caller, {"words": words and words[-2000:]})
                case _:
                    raise InvalidParams("The node knows no such request.")
        except AgentToolsError as exc:
            send_message(caller, write_error(exc))
        return False

    def _spec(self, given: object) -> Callable[[], SandboxSpec]:
        labels = {**Owner.current().labels, NAME_LABEL: secrets.token_hex(8)}
        spec, recipe = read_spec(given, self._engine.guest(), labels)
        return lambda: replace(spec, image=self._ensure_image(recipe)) if recipe else spec

    # -- sandboxes ----------------------------------------------------------------------------------------------------

    def _start(self, caller: ssl.SSLSocket, spec: Callable[[], SandboxSpec]) -> bool:
        with contextlib.ExitStack() as undo:
            undo.enter_context(self._slot())
            container = _awaited(caller, lambda: self._started(spec), self._remove)
            undo.callback(self._remove, container)
            send_message(caller, {"id": container.id})
            assert container.stdio
            carrier = StreamCarrier(LinkStdio(caller, "the caller"), container.stdio, self._ended)
            carrier.undo = undo.pop_all()  # before `close` may end it
            with self._lock:
                self._carried.add(carrier)
        carrier.begin()
        return True

    def _started(self, spec: Callable[[], SandboxSpec]) -> EngineContainer:
        asked = spec()
        with self._starts:
            return self._engine.start(asked)

    def _remove(self, container: EngineContainer) -> None:
        if container.stdio:
            container.stdio.close()
        with contextlib.suppress(AgentToolsError):  # it ends with its stdin, then
            self._engine.remove(container)

    def _ended(self, carrier: StreamCarrier) -> None:
        with self._lock:
            self._carried.discard(carrier)
        carrier.undo.close()

    @contextlib.contextmanager
    def _slot(self) -> Iterator[None]:
        """Take a slot while this context is open. Raises HostFull."""
        with self._lock:
            if self._taken >= self.endpoint.slots:
                raise HostFull(f"All {self.endpoint.slots:,} slots are taken.")
            if self._is_retired:
                raise HostFull("The node ends, since it was idle. Try again.")
            self._taken += 1
            self.used_at = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._taken -= 1
                self.used_at = time.monotonic()


def _awaited(caller: ssl.SSLSocket, work: Callable[[], Any], undo: Callable[[Any], object] = lambda _: None) -> Any:
    """Do work in a thread, and tell the caller now and then that it goes on; undo it if the caller is gone."""
    done = begin(work, "agent-tools-start")
    while not wait([done], BEAT_SECONDS).done:
        try:
            send_message(caller, None)
        except OSError:
            undo(done.result())
            raise
    return done.result()


class StreamCarrier:
    """Copies bytes between a caller and a sandbox until one of them ends. `at_end` is then called in a thread."""

    def __init__(self, caller: LinkStdio, guest: Stdio, at_end: Callable[[StreamCarrier], object]) -> None:
        self.undo = contextlib.ExitStack()
        """Removes the sandbox and gives back its slot."""
        self._sides = (caller, guest)
        self._caller = caller
        self._at_end = at_end
        self._waiting = (bytearray(), bytearray())  # by the side that they are for
        self._lock = threading.RLock()
        self._loop: EventLoop | None = None
        self._watched: WatchedDescriptors | None = None
        self._is_new = True
        self._guest_ended = self._has_ended = False
        abandon_after_fork(self)

    def begin(self) -> None:
        """Begin to copy."""
        with self._lock:
            if self._has_ended:
                return
            self._loop = join(self)
            self._watched = WatchedDescriptors(self._loop)
            try:
                self._watched.want(self._wanted(), self)
            except OSError:
                self.fail()

    def advance(self, ready: set[int]) -> bool:
        """Do a bounded step of work; return whether there is more to do. Called in the loop's thread."""
        with self._lock:
            if self._has_ended:
                return False
            try:
                has_more = self._step()
                if self._watched:
                    self._watched.want(self._wanted(), self)
            except (OSError, EOFError):
                self.fail()
                return False
            return has_more

    def fail(self) -> None:
        """End both sides."""
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
            if self._watched:
                self._watched.forget_all()
            if self._guest_ended:
                self._caller.say_goodbye()
            self._caller.close()
            if self._loop:
                leave(self._loop, self)
        if start_thread(lambda: self._at_end(self), "agent-tools-end") is None:
            self._at_end(self)

    def abandon(self) -> None:
        """In a forked child: close the inherited descriptors."""
        for side in self._sides:
            side.close()

    def _step(self) -> bool:
        self._is_new = False
        caller, guest = self._sides
        for_caller, for_guest = self._waiting
        _pass_on(for_caller, caller)  # first, so that there is room for what TLS has read on already
        if not self._guest_ended:
            _pass_on(for_guest, guest)
        has_more = _taken(caller, for_guest)
        if not self._guest_ended:
            try:
                has_more |= _taken(guest, for_caller)
            except EOFError:
                self._guest_ended = True
            else:
                _pass_on(for_guest, guest)
        _pass_on(for_caller, caller)
        if self._guest_ended and not for_caller:
            raise EOFError
        return has_more and all(len(waiting) < MAX_WAITING for waiting in self._waiting)

    def _wanted(self) -> dict[int, int]:
        wanted: dict[int, int] = {}
        for side, waiting, others in zip(self._sides, self._waiting, reversed(self._waiting)):
            if side is not self._caller and self._guest_ended:
                continue
            if len(others) < MAX_WAITING:
                wanted[side.fileno()] = wanted.get(side.fileno(), 0) | READ
            if waiting or self._is_new:  # what TLS has read on already makes no descriptor ready
                wanted[side.writer()] = wanted.get(side.writer(), 0) | WRITE
        return wanted


def _taken(side: LinkStdio | Stdio, into: bytearray) -> bool:
    """Read what is there, but not forever; return whether there may be more. Raises EOFError at the end."""
    for _ in range(PIECES_PER_STEP):
        if len(into) >= MAX_WAITING:
            return True
        data = side.receive()
        if data is None:
            return False
        if not data:
            raise EOFError
        into += data
    return True


def _pass_on(waiting: bytearray, side: LinkStdio | Stdio) -> None:
    while waiting and (sent := side.send(waiting)):
        del waiting[:sent]
