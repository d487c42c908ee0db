"""The start of a sandbox: waiting for its PID 1, and what is only there if it was asked for."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agent_tools.errors import SandboxStartError
from agent_tools.runtime.engine import Container, Engine, Isolation, SandboxSpec
from agent_tools.runtime.transport.lifeline import Lifeline
from agent_tools.runtime.transport.transport import Transport
from agent_tools.text import neutralise

if TYPE_CHECKING:
    from agent_tools.runtime.egress.egress import Egress


@contextlib.contextmanager
def start_errors() -> Iterator[None]:
    """Raise failures of this machine, a full disk for example, as what the caller of a start expects.

    Raises:
        SandboxStartError: a file or folder that a sandbox needs on the host could not be made.
    """
    try:
        yield
    except OSError as exc:
        advice = " Free disk space there, and try again." if exc.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise SandboxStartError(f"The sandbox could not be started: {exc}.{advice}") from exc


def await_guest(
    engine: Engine, transport: Transport, sandbox: Container, asked: SandboxSpec, patience: float
) -> Lifeline:
    """Wait for a sandbox's PID 1, `patience` seconds at most.

    Raises:
        SandboxStartError: it did not come up; carries what it said.
    """
    words = "it did not connect in time"

    def still_runs() -> bool:
        nonlocal words
        output = engine.last_words(sandbox, asked)
        words = output if output is not None else words
        return output is None

    lifeline = transport.await_guest(sandbox.stdio, time.monotonic() + patience, still_runs)
    if lifeline is None:
        raise SandboxStartError(
            f"The sandbox of image {asked.image} did not come up: {neutralise(words.strip())}", words
        )
    return lifeline


def egress(isolation: Isolation) -> Egress | None:
    """The network by list, if there is to be one."""
    if not isolation.policy:
        return None
    from agent_tools.runtime.egress.egress import Egress  # which imports asyncio; most sessions need none

    return Egress(isolation.policy)
