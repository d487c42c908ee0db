"""A container that has a sandbox in this process, or is about to get one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from agent_tools.tools.tool_sandbox import ToolSandbox


class FirstResultFuture(Future[str]):
    """A future that is done once a container may be used.

    Its first result is the note for the model; later ones are ''.
    """

    def __init__(self) -> None:
        super().__init__()
        self._first = threading.Lock()  # taken by the caller that gets the first result

    def result(self, timeout: float | None = None) -> str:
        """Wait up to `timeout` seconds, and return the note, once."""
        note = super().result(timeout)
        return note if self._first.acquire(blocking=False) else ""


@dataclass(eq=False)
class LiveContainer:
    """A live container. Its next call starts a sandbox if there is none.

    Attributes:
        generation: the row's generation when it was taken; if the row has another now, another process took it.
        holders: the number of current uses; it is not parked meanwhile.
        pins: the ranks of other open uses, such as a shell. It is parked after all containers with a lower
            highest rank: without ranks (4 lines fewer) open shells, which idle, outlive a command that computes.
        is_parked: it lost its slot; the thread that took the slot closes its sandbox.
        woken: a future that is done once it may be used, with the note for the model.
    """

    sandbox: ToolSandbox
    generation: int = 0
    holders: int = 0
    pins: list[int] = field(default_factory=list)
    used_at: float = 0.0
    saved_at: float = 0.0
    has_changed: bool = False
    is_parked: bool = False
    woken: FirstResultFuture = field(default_factory=FirstResultFuture)

    @property
    def is_idle(self) -> bool:
        """True if it is ready and not in use."""
        return not self.holders and self.woken.done()


@dataclass(frozen=True)
class TakenSandbox:
    """A container whose lease was acquired: a factory of its sandbox, and whether code has run in it before."""

    make: Callable[[], ToolSandbox]
    generation: int
    has_run: bool
