"""The course of one run of a session, in moments."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from agent_tools.connection import NetworkConnection
from agent_tools.execution import Execution, Output
from agent_tools.runtime.kernel.settling import Settling


@dataclass
class Course:
    """The moments at which a run was asked for, had its turn, and started (monotonic seconds); and its connections."""

    asked: float = field(default_factory=time.monotonic)
    turn: float = 0.0
    started: float = 0.0
    connections: tuple[tuple[NetworkConnection, ...], int] = ((), 0)  # and how many were left out

    def execution(self, outputs: Sequence[Output]) -> Execution:
        """Return the whole of a run that is over now."""
        connections, left_out = self.connections
        return Execution(
            tuple(outputs),
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
