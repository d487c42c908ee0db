"""The values sent between a caller and a host: frozen dataclasses of plain data.

Data from user code is sent as text, bytes and JSON values in these, never as pickled objects of the code.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, Union

from agent_tools.engines.engine import Isolation, Recipe, RecipeLike, recipe_of
from agent_tools.engines.network import NetworkPolicy
from agent_tools.errors import AgentToolsError, InvalidParams
from agent_tools.guest.wire.commands import CommandPrinted
from agent_tools.limits import KIB, MIB, CallLimits, Limits
from agent_tools.machine.folder import Facts
from agent_tools.machine.rounds import begun
from agent_tools.results.execution import CommandResult, NetworkConnection, Output
from agent_tools.results.variables import VariablesReport
from agent_tools.runtime.sandbox.kernels import SessionSpec
from agent_tools.runtime.transport.transport import TransportName

# The limits of a fleet, the same for callers and hosts, which are of one release. Seconds and bytes.

# The defaults of the arguments of `connect`.
LEASE_SECONDS = 20.0
WAIT_SECONDS = 60.0

# Of a lease, and of a host that is not used.
RENEWALS = 4  # while a lease lasts: three may be lost
IDLE_END_SECONDS = 600.0  # without a session, a reservation or a renewal, after which a host ends
END_SECONDS = 30.0  # in which a host that `agent-tools fleet down` ends may close its sandboxes

# Of one node and one host.
MAX_HOSTS_PER_NODE = 16
STARTS_AT_ONCE = 4  # sandboxes that start: more make each of them slower
RUNS_AT_ONCE = 64  # runs, commands and archives; more wait
WORK_AT_ONCE = 32  # openings, closings, files and other work; more wait
CONTROL_AT_ONCE = 8  # renewals, orders and questions
MAX_PENDING_CALLS = 4_096  # of one process that wait at one host; the host counts as full beyond that
MAX_UNSENT_MESSAGES = 4_096  # orders of a caller that wait for room among those calls
MAX_WAITING_ORDERS = 4_096  # orders that wait at a host for an earlier one; more end the run's calls
MAX_EARLY_ENDS = 256  # ends of runs that reached a session before their run did; the oldest are forgotten
MAX_QUEUED_ITEMS = 64  # outputs of a run that wait for their reader; then the run waits

# Of files and printed text on their way.
MAX_INLINE_BYTES = MIB  # of files within a message; larger ones are sent in pieces, in messages of their own
PIECE_BYTES = 8 * MIB
RUN_BYTES = 64 * KIB  # of printed text in one message of a run, about

# Of a host that does not answer.
ASK_SECONDS = 5.0  # in which a host must say how full it is, or begin a reservation
SKIP_SECONDS = 30.0  # in which a host that did not answer is asked only if there is no other
SILENCE_SECONDS = 30.0  # after which a working host is asked whether it still answers, and in which it must
SEND_SECONDS = 60.0  # of retries where too many messages wait for the host
CLOSE_SECONDS = 10.0  # that closing waits; the host closes by itself once the lease is over


class SessionUnknown(AgentToolsError):
    """A host does not know a session: it was closed, its lease ran out, or the host is a fresh one. Nothing was run."""


@dataclass(frozen=True)
class RemoteSpec:
    """The specification of a remote session, without anything that exists only on the caller's machine.

    Attributes:
        image: the tag of the caller's own image; '' for the image that the host makes of `recipe`.
        call_limits: set if the caller has host functions.
    """

    isolation: Isolation
    limits: Limits
    image: str = ""
    recipe: Recipe = field(default_factory=Recipe)
    transport: TransportName = "auto"
    checkpoint: bool = False
    idle_stop: float = 0.0
    prelude: str = ""
    preload: tuple[str, ...] = ()
    call_limits: CallLimits | None = None

    @property
    def kind(self) -> RemoteSpec:
        """Return the part that a sandbox made ahead must match: functions and the prelude can follow."""
        return replace(self, prelude="", call_limits=self.call_limits or CallLimits())


@dataclass(frozen=True)
class Load:
    """The load of a host: sandboxes that exist or are being made, their maximum, and how many are unused."""

    taken: int
    slots: int
    ready: int = 0

    @property
    def share(self) -> float:
        """The fraction of slots that is taken."""
        return self.taken / max(1, self.slots)


@dataclass(frozen=True)
class HostFacts:
    """The process of a host: its machine's name, its pid, and its release of this package."""

    machine: str
    pid: int
    release: str


Files = Mapping[str, Union[bytes, None]]
"""Files by name, relative to work_dir; None for one that was deleted."""


@dataclass(frozen=True)
class CallMessage:
    """A message to the caller's functions: a call, its cancellation, or the host's count of received answer bytes."""

    head: Mapping[str, Any]
    attachments: list[bytes]
    size: int


@dataclass(frozen=True)
class RunEnded:
    """The end of a run on a host.

    Attributes:
        files: small files that the code wrote, changed or deleted.
        larger: the facts of larger files, to be fetched in pieces.
        missing: a text on files that cannot be fetched, or ''.
    """

    connections: tuple[NetworkConnection, ...] = ()
    connections_left_out: int = 0
    files: Files = field(default_factory=dict)
    larger: Mapping[str, Facts] = field(default_factory=dict)
    missing: str = ""


Item = Union[Output, CallMessage, RunEnded, CommandPrinted, bytes, CommandResult, VariablesReport]
"""One thing of a run, a command, or an archive that is being saved, of which `bytes` are a piece."""


# Converts the specification of a session to one without anything that exists only on the caller's machine.
#
# An image is made where it is used, so a recipe crosses in the place of a tag, as a word of its own: `recipe:{...}`.


_PREFIX = "recipe:"


def image_word(recipe: RecipeLike) -> str:
    """Return the name for the image of a recipe."""
    return _PREFIX + json.dumps(asdict(recipe_of(recipe)))


def remote_spec(spec: SessionSpec) -> RemoteSpec:
    """Return the specification to send to a host.

    Raises:
        InvalidParams: an option needs this machine.
    """
    policy = spec.isolation.network
    if isinstance(policy, NetworkPolicy) and policy.packages_cache:
        raise InvalidParams("packages_cache is a folder of this machine, and the sandbox is on another: leave it out.")
    if spec.skills:
        raise InvalidParams("The fleet does not support skills: give none, or use an engine without the fleet.")
    calls = spec.host_calls
    if calls and calls.limits.allow_outside_run:
        raise InvalidParams("allow_outside_run cannot be used with a sandbox on another machine: leave it out.")
    recipe = spec.image.startswith(_PREFIX)
    return RemoteSpec(
        spec.isolation,
        spec.limits,
        "" if recipe else spec.image,
        Recipe.read(**json.loads(spec.image[len(_PREFIX) :])) if recipe else Recipe(),
        spec.transport,
        spec.checkpoint,
        spec.idle_stop,
        spec.prelude,
        spec.ahead.preload,
        calls.limits if calls else None,
    )


# The interface of transports between callers and hosts: Ray, or direct calls in one process.


CONTROL = ("greet", "facts", "load", "renew", "cancel", "drop", "order", "reserve")
"""Methods of a host that answer at once, even while others run."""
WORK = (
    *("open", "close", "release", "do"),
    *("put_piece", "get_piece", "spool", "ensure_image"),
)
"""Methods that take a while."""
RUNS = ("begin", "more")
"""Methods that wait as long as the code runs: for the first items of a run, and for the next."""


class HostUnreachable(AgentToolsError):
    """A host does not answer. `is_final` if it never will: its process, or its node, has ended."""

    def __init__(self, message: str, is_final: bool = False) -> None:
        super().__init__(message, is_final)
        self.message = message
        self.is_final = is_final

    def __str__(self) -> str:
        return self.message


class HostLink(Protocol):
    """A caller's connection to one host. Thread-safe; exceptions of the host are raised here."""

    @property
    def name(self) -> str:
        """The host's name, which stays the same as long as its node exists."""
        ...

    def call(self, method: str, *arguments: Any, seconds: float | None = None) -> Any:
        """Call a method of the host, once; wait up to `timeout` seconds, or without a limit for None.

        Raises:
            HostUnreachable: it does not answer. It may have carried out the call nevertheless.
        """
        ...

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method without waiting; a host that is gone is not an error."""
        ...


class Hosts(Protocol):
    """All hosts of a fleet."""

    def links(self) -> Sequence[HostLink]:
        """Return the known hosts. Raises EngineUnavailable if they cannot be listed."""
        ...

    def close(self) -> None:
        """Release the hosts, which continue for other callers."""
        ...


# A queue of messages without answers that cannot be sent now, and are sent later in order.
#
# They are the orders of a run: if one were lost, the code would wait until its time limit.

log = logging.getLogger("agent_tools.fleet")

Send = Callable[..., bool]
"""Sends a message; False where there is no room for it now. A host that is gone is no error."""
LOOK_SECONDS = 0.05  # between two tries


class Outbox:
    """The queue of one host. Thread-safe. Messages unsent after `patience` seconds are dropped, with a warning."""

    def __init__(self, send: Send, most: int = MAX_UNSENT_MESSAGES, patience: float = SEND_SECONDS) -> None:
        self._send, self._most, self._patience = send, most, patience
        self._unsent: deque[tuple[Any, ...]] = deque()
        self._changed = threading.Condition()
        self._is_sending = False

    def tell(self, *message: Any) -> None:
        """Send a message now or later; wait if the queue is full."""
        with self._changed:
            if not self._unsent and self._send(*message):
                return
            self._changed.wait_for(lambda: len(self._unsent) < self._most)
            self._unsent.append(message)
            if self._is_sending:
                return
            self._is_sending = True
        if begun(self._send_all, "agent-tools-orders") is None:
            self._send_all()

    def _send_all(self) -> None:
        until = time.monotonic() + self._patience
        while not self._is_done(time.monotonic() > until):
            time.sleep(LOOK_SECONDS)

    def _is_done(self, is_late: bool) -> bool:
        """Send messages without waiting, and drop those that are too old; return whether the queue is empty."""
        with self._changed:
            while self._unsent and self._send(*self._unsent[0]):
                self._unsent.popleft()
            if is_late and self._unsent:
                log.warning("%d messages found no room at their host and were dropped", len(self._unsent))
                self._unsent.clear()
            self._is_sending = bool(self._unsent)
            self._changed.notify_all()
            return not self._is_sending
