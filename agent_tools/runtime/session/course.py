"""The course of one run of a session, in moments."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from agent_tools.connection import NetworkConnection
from agent_tools.execution import Changes, Execution, Output
from agent_tools.runtime.files.workspace import watch_changes
from agent_tools.runtime.kernel.settling import Settling
from agent_tools.runtime.sandbox.spec import SessionSpec


@dataclass
class Course:
    """The moments at which a run was asked for, had its turn, and started (monotonic seconds), and what it did.

    `replaced` are the names of files of a remote work_dir that were replaced here by what the run made of them.
    """

    asked: float = field(default_factory=time.monotonic)
    turn: float = 0.0
    started: float = 0.0
    connections: tuple[tuple[NetworkConnection, ...], int] = ((), 0)  # and how many were left out
    watched: Callable[[Collection[str]], Changes] = field(default=lambda _: Changes())
    replaced: Collection[str] = ()

    def start(self, spec: SessionSpec) -> None:
        """Note that the run starts, and which files it changes from now on."""
        self.started = time.monotonic()
        self.watched = watch_changes(spec.work_dir, spec.limits)

    def execution(self, outputs: Sequence[Output]) -> Execution:
        """Return the whole of a run that is over now."""
        connections, left_out = self.connections
        return Execution(
            tuple(outputs),
            changed=self.watched(self.replaced),
            duration=time.monotonic() - self.started,
            queued=self.turn - self.asked,
            connections=connections,
            connections_left_out=left_out,
        )


def followed(stream: Callable[[Course], Generator[Output, None, None]]) -> Generator[Output, None, Execution]:
    """Yield the outputs of a run, which notes its times in the course that it is given; return the settled whole."""
    times, arrived = Course(), Settling()
    with closing(stream(times)) as outputs:
        for output in outputs:
            arrived.add(output)
            yield output
    return times.execution(arrived.outputs)
