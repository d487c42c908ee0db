"""The start of a sandbox: checks its volumes, waits for its PID 1, and opens optional parts."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from agent_tools.engines.engine import Engine, EngineContainer, SandboxSpec
from agent_tools.engines.guest import Guest
from agent_tools.engines.isolation import Isolation
from agent_tools.engines.volumes import Volume
from agent_tools.errors import InvalidParams, SandboxStartError
from agent_tools.runtime.files.claims import refuse_claimed
from agent_tools.runtime.files.volume_quota import quota_of
from agent_tools.runtime.transport.lifeline import Lifeline
from agent_tools.runtime.transport.transport import Transport
from agent_tools.text import neutralise

if TYPE_CHECKING:
    from agent_tools.runtime.egress.egress import Egress


def mounted(volumes: Sequence[Volume], guest: Guest) -> tuple[tuple[Volume, ...], tuple[int, ...]]:
    """Return volumes as a sandbox gets them now, a full one read-only, and the groups that it needs for them.

    Raises:
        InvalidParams: one cannot be mounted by this engine, or its permissions keep the guest out.
    """
    groups = set[int | None]()
    for each in volumes:
        if each.folder and not guest.shares_files:
            raise InvalidParams(
                f"Volume {each.name}: {each.source} is a folder of this machine, and the engine runs elsewhere. Name a "
                f"volume that it has: {each.name}=VOLUME."
            )
        if each.folder:
            refuse_claimed(each.folder, f"Volume {each.name}:")
            groups.add(each.group_for(guest))
    now = (replace(each, is_writable=False) if is_full(each) else each for each in volumes)
    return tuple(now), tuple(sorted(group for group in groups if group is not None))


def is_full(volume: Volume) -> bool:
    """Return whether code may only read a volume that it could otherwise write to, since it is over its quota."""
    return bool(volume.is_writable and volume.folder) and quota_of(volume).is_full()


@contextlib.contextmanager
def start_errors() -> Iterator[None]:
    """Raise failures of this machine, such as a full disk, as SandboxStartError.

    Raises:
        SandboxStartError: a file or folder that a sandbox needs on the host could not be made.
    """
    try:
        yield
    except OSError as exc:
        advice = " Free disk space there, and try again." if exc.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise SandboxStartError(f"The sandbox could not be started: {exc}.{advice}") from exc


def await_guest(
    engine: Engine, transport: Transport, sandbox: EngineContainer, asked: SandboxSpec, timeout: float
) -> Lifeline:
    """Wait up to `timeout` seconds for a sandbox's PID 1.

    Raises:
        SandboxStartError: it did not start; `log` has its output.
    """
    words = "it did not connect in time"

    def still_runs() -> bool:
        nonlocal words
        output = engine.last_words(sandbox, asked)
        words = output if output is not None else words
        return output is None

    lifeline = transport.await_guest(sandbox.stdio, time.monotonic() + timeout, still_runs)
    if lifeline is None:
        raise SandboxStartError(f"The sandbox of image {asked.image} did not start: {neutralise(words.strip())}", words)
    return lifeline


def egress(isolation: Isolation) -> Egress | None:
    """Return the egress allowlist's server, or None without one."""
    if not isolation.policy:
        return None
    from agent_tools.runtime.egress.egress import Egress  # which imports asyncio; most sessions need none

    return Egress(isolation.policy)
