"""One session that a host has for a caller, with its folder, runs and lease."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

from agent_tools.errors import EngineError, FileRejected
from agent_tools.fleet.folder_sync import SyncedFolder
from agent_tools.fleet.host_run import GIVEN_UP, Abandoned, Batch, HostRun, Put
from agent_tools.fleet.protocol import (
    MAX_EARLY_ENDS,
    MAX_WAITING_ORDERS,
    CallMessage,
    Files,
    RemoteSpec,
    RunEnded,
)
from agent_tools.guest.wire.commands import CommandPrinted
from agent_tools.limits import CallLimits
from agent_tools.machine.folder import Facts
from agent_tools.machine.removal import remove_tree
from agent_tools.results.execution import CommandResult, Execution, HostCall, Omitted, finished
from agent_tools.runtime.commands.commands import Request
from agent_tools.runtime.files.guest_files import pieces
from agent_tools.runtime.files.work_dir import prepare_work_dir
from agent_tools.runtime.host_calls.function import Clock, HostFunction
from agent_tools.runtime.host_calls.wire import MAX_UNREAD, CallLoop, CallService, CallTransport, TakeOver
from agent_tools.runtime.pool import PRELOAD
from agent_tools.runtime.runtime import Runtime
from agent_tools.runtime.sandbox.kernels import SessionSpec
from agent_tools.runtime.session.session import Session

# The host's half of host calls: forwards the code's messages to its caller, and the answers to the code.
#
# The functions, with all limits, checks and approvals, stay with the caller, whose `HostCalls` works as with a local
# kernel. Here messages are bounded and parsed, and the code waits while too many bytes are in transit.
#
# An order of the caller is one message of several that may overtake each other; so they are numbered, from 1 in each
# run.

ACKNOWLEDGED_BYTES = MAX_UNREAD // 4  # bytes of answers after which the caller gets a report on received bytes

Order = Literal["answer", "hold", "go", "read_on"]
"""Of a caller: the bytes of an answer; let the run's clock stand, or go; read what the code sends, or leave it."""


class CallRelay:
    """Serves the calls of one session. Each run passes its own `hear`."""

    def __init__(self, limits: CallLimits) -> None:
        self.limits = limits
        self._service = CallService({}, limits)
        self._own = CallLoop(1)
        self._lock = threading.Lock()
        self._hear: Callable[[CallMessage], object] | None = None
        self._clock: Clock | None = None
        self._run = ""
        self._next = 1
        self._waiting: dict[int, tuple[Order, Any]] = {}
        self._unheard = 0  # bytes
        self._is_wanted = True
        self._given = self._told = 0  # bytes of answers of this run

    @property
    def is_calling(self) -> bool:
        """False: the caller's functions do not run here."""
        return False

    def sibling(self) -> CallRelay:
        """Return a relay for another session."""
        return CallRelay(self.limits)

    def add(self, functions: Mapping[str, HostFunction], *, others: bool = True) -> None:
        """Do nothing: the caller has the functions."""

    def begin(self, run: str, hear: Callable[[CallMessage], object]) -> None:
        """Pass messages of the code to `hear` from now on; accept only orders of this run."""
        with self._lock:
            self._run, self._hear = run, hear
            self._next, self._waiting = 1, {}
            self._unheard, self._is_wanted = 0, True
            self._given = self._told = 0
        self._service.read_on(True)

    def end(self, run: str) -> None:
        """Refuse further calls of the code, if this run is the latest; answers in transit are still delivered."""
        with self._lock:
            if run == self._run:
                self._hear = None

    def serve(self, wire: CallTransport) -> None:
        """Take the calls of another kernel."""
        self._service.hang_up()
        self._service.wire = wire
        own = self._own
        wire.start(lambda: own.loop, self._take, self._is_heard)

    @contextlib.contextmanager
    def run(self, clock: Clock) -> Iterator[TakeOver]:
        """During a run, let the caller pause its time limit."""
        self._clock = clock
        try:
            yield _nothing
        finally:
            self._clock = None

    def close(self) -> None:
        """Hang up."""
        self.end(self._run)
        self._service.hang_up()
        self._own.close()
        self._own = CallLoop(1)

    def heard(self, word: CallMessage) -> None:
        """A message is on its way to the caller."""
        with self._lock:
            self._unheard -= word.size
        self._read_on()

    def order(self, run: str, number: int, what: Order, data: Any) -> None:
        """Carry out the caller's orders, in the order of their numbers."""
        with self._lock:
            if run != self._run or number < self._next:
                return
            if len(self._waiting) >= MAX_WAITING_ORDERS and number != self._next:
                self._service.hang_up()
                return
            self._waiting[number] = (what, data)
            while due := self._waiting.pop(self._next, None):
                self._next += 1
                self._obey(*due)

    def _obey(self, what: Order, data: Any) -> None:
        clock = self._clock
        if what == "answer":
            self._service.send(bytes(data))
            self._give_account(len(data))
        elif what == "read_on":
            self._is_wanted = bool(data)
            self._service.read_on(self._is_wanted and self._has_room)
        elif clock and what in ("hold", "go"):
            (clock.hold if what == "hold" else clock.go)()

    def _give_account(self, sent: int) -> None:
        """Tell the caller, now and then, how many of its answers were read, so that it continues to send."""
        self._given += sent
        if self._given - self._told >= ACKNOWLEDGED_BYTES:
            self._told = self._given
            with contextlib.suppress(RuntimeError):  # closed: nothing is taken any more
                asyncio.run_coroutine_threadsafe(self._tell_taken(self._run, self._given), self._own.loop)

    @property
    def _has_room(self) -> bool:
        return self._unheard <= self.limits.max_open_bytes

    def _read_on(self) -> None:
        self._service.read_on(self._is_wanted and self._has_room)

    # -- in the loop --------------------------------------------------------------------------------------------------

    async def _tell_taken(self, run: str, count: int) -> None:
        await self._service.room_for(b"")
        with self._lock:
            hear = self._hear if run == self._run else None
        if hear:
            hear(CallMessage({"op": "taken", "bytes": count}, [], 0))

    def _is_heard(self, number: int, _name: str, _size: int) -> bool:
        """Return whether a call can be passed on; if not, answer it."""
        if self._hear is None:
            self._service.fail(number, "HostCallDenied", "Host functions answer only while a run goes on.")
        return self._hear is not None

    def _take(self, head: dict[str, Any], attachments: list[bytes], size: int) -> None:
        if head.get("op") not in ("call", "cancel"):  # "taken" is ours to say
            return
        with self._lock:
            hear = self._hear
            self._unheard += size if hear else 0
        if hear is None:
            if head.get("op") == "call" and isinstance(number := head.get("id"), int):
                self._is_heard(number, "", size)
            return
        hear(CallMessage(head, [bytes(each) for each in attachments], size))
        if not self._has_room:
            self._read_on()


def _nothing() -> list[HostCall | Omitted]:
    """The calls that are over: the caller tells them."""
    return []


MAX_SHOWN = 5  # names of files that cannot be had
END_SECONDS = 5.0  # for code to let go of its folder once its sandbox has ended
LOOK_SECONDS = 0.02
WARM_UP = "__import__('sandbox').warm_up()"


class LeasedSession:
    """A session in its own folder below `base`. Thread-safe."""

    def __init__(self, runtime: Runtime, base: Path, key: str, spec: RemoteSpec) -> None:
        self.spec = spec
        self.expires = float("inf")
        self._runtime, self._key = runtime, key
        folder = base / key
        guest = runtime.guest(folder)
        self.path = prepare_work_dir(folder, guest)
        self._relay = CallRelay(spec.call_limits) if spec.call_limits else None
        try:
            self._session = runtime.open(key, _session_spec(runtime, spec, self.path, self._relay))
        except BaseException:
            remove_tree(self.path)
            raise
        self._folder = SyncedFolder(self.path, guest.outside, spec.limits)
        self._runs: dict[str, HostRun] = {}
        self._spools = IncomingFiles(self.path.parent, lambda size: self._folder.refuse_excess([size]))
        self._early = UnstartedRuns()
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def session(self) -> Session:
        """The session itself."""
        return self._session

    def open(self, *, is_ahead: bool = False) -> None:
        """Start the sandbox; one made ahead is used once, since the first use takes longer."""
        self._session.open()
        if is_ahead:
            self._session.variables.define(WARM_UP)

    def hand_over(self, spec: RemoteSpec) -> None:
        """Become the session of a caller. Raises PreludeError."""
        self.spec = spec
        if spec.prelude:
            self._session.add_functions({}, spec.prelude)

    def close(self) -> None:
        """End the session and remove its folder."""
        with self._lock:
            self._is_closed = True
            host_runs = list(self._runs.values())
        for host_run in host_runs:  # first: one without a reader would delay the ends of the others
            host_run.abandon()
        self._spools.close()
        try:
            self._runtime.close(self._key)
            self._session.close()
            until = time.monotonic() + END_SECONDS
            while self._session.is_busy and time.monotonic() < until:  # its claim on the folder goes before that
                time.sleep(LOOK_SECONDS)
        finally:
            remove_tree(self.path)

    # -- files --------------------------------------------------------------------------------------------------------

    def take(self, files: Files) -> None:
        """Apply the caller's changes of files. Raises FileRejected."""
        self._folder.refuse_excess(len(data) for data in files.values() if data is not None)
        self._folder.take(files)

    def put_piece(self, name: str, facts: Facts, offset: int, data: bytes) -> None:
        """Write a piece of a larger file of the caller; a complete file is moved to its place.

        Raises:
            FileRejected: it is too large, cannot be written, or is not the piece that comes next.
        """
        self._spools.add(name, offset, data)
        if offset + len(data) >= facts[0]:
            with self._spools.whole(name, facts[0]) as whole:
                self._folder.put(name, iter(partial(whole.read, 1024 * 1024), b""))

    def spool(self, name: str, offset: int, data: bytes) -> None:
        """Store a piece of an archive. Raises FileRejected."""
        self._spools.add(name, offset, data)

    def piece(self, name: str, facts: Facts, offset: int) -> bytes:
        """Return a part of a larger file that the code wrote. Raises FileRejected."""
        data = self._folder.piece(name, facts, offset)
        if offset + len(data) >= facts[0]:
            self._folder.note(name, facts)
        return data

    # -- what goes on -------------------------------------------------------------------------------------------------

    def begin_code(self, run: str, code: str, timeout: float, files: Files) -> Batch:
        """Run code; its items are outputs and messages to the caller's functions, then `RunEnded`."""
        host_run = HostRun(lambda put: self._code(host_run, code, timeout, put))
        self.take(files)
        if self._relay:
            self._relay.begin(run, partial(_pass_on, host_run))
            host_run.at_end = partial(self._relay.end, run)
        return self._begun(run, host_run)

    def begin_command(self, run: str, request: Request) -> Batch:
        """Run a command; its items are its output, then its `CommandResult`."""
        host_run = HostRun(lambda put: put(self._command(request, put, host_run.cancelled)))
        return self._begun(run, host_run)

    def begin_save(self, run: str, path: str, most: int, variables: bool) -> Batch:
        """Save the state: an archive in pieces, then the `VariablesReport`."""
        save = self._session.variables.save
        return self._begun(run, HostRun(lambda put: put(save(path, most, put, variables=variables))))

    def begin_load(self, run: str, path: str, variables: bool) -> Batch:
        """Unpack the archive that came in pieces under the name of the run: the `VariablesReport`."""

        def load(put: Put) -> None:
            with self._spools.whole(run) as archive:
                put(self._session.variables.load(path, pieces(archive), variables=variables))

        return self._begun(run, HostRun(load))

    def more(self, run: str) -> Batch:
        """Wait for the next items of a run.

        Raises:
            EngineError: there is no run of this name, or it was cancelled.
        """
        host_run = self._runs.get(run)
        if host_run is None:
            raise EngineError(GIVEN_UP)
        return self._next(run, host_run)

    def cancel(self, run: str) -> None:
        """End a run or a command, even one that has not arrived yet."""
        with self._lock:
            if (host_run := self._runs.get(run)) is None:
                self._early.note(run, "cancel")
        if host_run:
            self._session.cancel(host_run.cancelled)

    def drop(self, run: str) -> None:
        """End a run without a reader, even one that has not arrived yet."""
        with self._lock:
            if (host_run := self._runs.pop(run, None)) is None:
                self._early.note(run, "drop")
        self._spools.drop(run)
        if host_run:
            self._finish(host_run)

    def order(self, run: str, number: int, what: Any, data: Any) -> None:
        """Forward an order to the relay."""
        if self._relay:
            self._relay.order(run, number, what, data)

    def _begun(self, run: str, host_run: HostRun) -> Batch:
        try:
            self._register(run, host_run)
            host_run.start()
        except BaseException:
            self._runs.pop(run, None)
            host_run.at_end()
            raise
        return self._next(run, host_run)

    def _register(self, run: str, host_run: HostRun) -> None:
        """Register a run, unless it was ended before it arrived. Raises EngineError if its caller is gone."""
        with self._lock:
            early = self._early.taken(run)
            if self._is_closed or early == "drop":
                raise EngineError(GIVEN_UP)
            if early == "cancel":
                host_run.cancelled.set()
            self._runs[run] = host_run

    def _next(self, run: str, host_run: HostRun) -> Batch:
        is_over = True
        try:
            items, is_over = host_run.next()
        finally:
            if is_over:
                self._runs.pop(run, None)
                self._finish(host_run)
        for item in items:
            if isinstance(item, RunEnded):  # what nobody has read comes back with the next run
                host_run.at_read()
            if isinstance(item, CallMessage) and self._relay:
                self._relay.heard(item)
        return items, is_over

    def _finish(self, host_run: HostRun) -> None:
        host_run.at_end()
        host_run.abandon()
        self._session.cancel(host_run.cancelled)

    def _code(self, host_run: HostRun, code: str, timeout: float, put: Put) -> None:
        execution = finished(self._session.stream(code, timeout, host_run.cancelled), put)
        host_run.at_end()
        put(self._ended(execution, host_run))

    def _ended(self, execution: Execution, host_run: HostRun) -> RunEnded:
        ended = RunEnded(execution.connections, execution.connections_left_out)
        try:
            news = self._folder.news()
            small = self._folder.small(news, noting=False)
        except FileRejected as exc:
            return replace(ended, missing=f"changes to files: {exc}")
        most = self.spec.limits.max_file_bytes
        larger = {name: facts for name, facts in news.items() if name not in small and facts is not None}
        huge = [name for name, facts in larger.items() if facts[0] > most]
        shown = {name: news[name] for name in (*small, *huge)}
        for name in huge:
            del larger[name]
        host_run.at_read = partial(self._folder.note_all, shown)
        return replace(ended, files=small, larger=larger, missing=_missing(huge, most))

    def _command(self, request: Request, put: Put, cancelled: threading.Event) -> CommandResult:
        return self._session.commands.run(request, lambda stream, data: put(CommandPrinted(stream, data)), cancelled)


def _session_spec(runtime: Runtime, spec: RemoteSpec, path: Path, relay: CallRelay | None) -> SessionSpec:
    shown = {PRELOAD: ",".join(spec.preload)} if spec.preload else {}
    return SessionSpec(
        spec.image or runtime.ensure_image(spec.recipe),
        path,
        replace(spec.isolation, env={**spec.isolation.env, **shown}),
        spec.limits,
        spec.transport,
        host_calls=relay,
        prelude=spec.prelude,
        idle_stop=spec.idle_stop,
        checkpoint=spec.checkpoint,
    )


def _pass_on(run: HostRun, word: CallMessage) -> None:
    """Have a word of the code read, if anybody still reads. In the relay's loop."""
    with contextlib.suppress(Abandoned):
        run.put(word)


def _missing(huge: list[str], most: float) -> str:
    if not huge:
        return ""
    shown = ", ".join(huge[:MAX_SHOWN]) + (f" and {len(huge) - MAX_SHOWN:,} more" if len(huge) > MAX_SHOWN else "")
    return f"changes to files: {shown} (larger than {most:,.0f} bytes, max_file_bytes)"


# Early arrivals at a session: incomplete files, and messages about runs that have not started.


Word = Literal["cancel", "drop"]


class IncomingFiles:
    """Incomplete files by name, each written from its beginning; a broken one is dropped. Thread-safe.

    `check` gets the bytes of one and raises if they are too many.
    """

    def __init__(self, folder: Path, check: Callable[[int], None]) -> None:
        self._folder, self._check = folder, check
        self._files: dict[str, BinaryIO] = {}
        self._lock = threading.Lock()

    def add(self, name: str, offset: int, data: bytes) -> None:
        """Write the next piece; the one at 0 begins anew. Raises FileRejected: it is not the next, or too large."""
        with self._lock:
            file = self._files.pop(name, None)
            try:
                if offset == 0:
                    _close(file)
                    file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115  (closed when it is whole, or dropped)
                if file is None or file.tell() != offset:
                    raise FileRejected(f"{name} broke off while it was brought over")
                self._check(offset + len(data))
                file.write(data)
            except BaseException:
                _close(file)
                raise
            self._files[name] = file

    def whole(self, name: str, size: int | None = None) -> BinaryIO:
        """Return a file from its beginning, to be closed. Raises FileRejected: it does not have `size` bytes."""
        with self._lock:
            file = self._files.pop(name, None)
        if file is None or size not in (None, file.tell()):
            _close(file)
            raise FileRejected(f"{name} broke off while it was brought over")
        file.seek(0)
        return file

    def drop(self, name: str) -> None:
        """Forget a file, if it is there."""
        with self._lock:
            _close(self._files.pop(name, None))

    def close(self) -> None:
        """Forget all of them."""
        with self._lock:
            while self._files:
                _close(self._files.popitem()[1])


class UnstartedRuns:
    """Messages about runs that have not started. Used under a lock."""

    def __init__(self) -> None:
        self._words: dict[str, Word] = {}

    def note(self, run: str, word: Word) -> None:
        """Store a message; a drop replaces a cancel."""
        if self._words.get(run) != "drop":
            self._words[run] = word
        while len(self._words) > MAX_EARLY_ENDS:
            del self._words[next(iter(self._words))]

    def taken(self, run: str) -> Word | None:
        """Return the message about a run, once."""
        return self._words.pop(run, None)


def _close(file: BinaryIO | None) -> None:
    if file is not None:
        file.close()
