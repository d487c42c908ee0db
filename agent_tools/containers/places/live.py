"""A container that has a sandbox here, or is about to get one; and one that was just taken."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from agent_tools.tools.code_interpreter import CodeInterpreter


class Waking(Future[str]):
    """There once a container may be used. What a model is told of that is its first result; later ones are ''."""

    def __init__(self) -> None:
        super().__init__()
        self._first = threading.Lock()  # taken by whoever has the first result

    def result(self, timeout: float | None = None) -> str:
        """Wait for it, so many seconds at most, and return the note, once."""
        note = super().result(timeout)
        return note if self._first.acquire(blocking=False) else ""


@dataclass(eq=False)
class LiveContainer:
    """Its next call starts a sandbox if there is none.

    Attributes:
        generation: that of its row when it was taken; one that is not its row's any more is another process's now.
        holders: the uses that go on.
        is_parked: it lost its place, and whoever took that closes its sandbox.
        woken: there once it may be used; its first result is what a model is told of that.
    """

    interpreter: CodeInterpreter
    generation: int = 0
    holders: int = 0
    used_at: float = 0.0
    saved_at: float = 0.0
    has_changed: bool = False
    is_parked: bool = False
    woken: Waking = field(default_factory=Waking)

    @property
    def is_idle(self) -> bool:
        """Nobody uses it, and it is ready."""
        return not self.holders and self.woken.done()


@dataclass(frozen=True)
class Taken:
    """A container whose lease was taken: what makes its interpreter, and whether code has run in it before."""

    make: Callable[[], CodeInterpreter]
    generation: int
    has_run: bool
