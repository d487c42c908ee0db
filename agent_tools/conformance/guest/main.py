"""Runs all checks, undoes their changes, and prints one line of JSON.

    {"answers": {"<name>": ["held" | "open" | "unknown" | "info", "<what was found>"], ...}}

Each check runs in a forked child that is killed after CHECK_SECONDS, so what it changes of itself (its user, its
namespaces, its limits) ends with it. Nothing is filled, no process is signalled, system calls get arguments with which
they cannot succeed in doing harm, and the one temporary folder is removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import tempfile
import time
from typing import Callable

from agent_tools.conformance.guest import addresses, arguments, files, host_facts, privileges
from agent_tools.conformance.guest.answers import refusal

CHECK_SECONDS = 10.0  # far more than a check needs: a busy machine should not make findings unknown
ALL_SECONDS = 40.0
MOST_CHARS = 300
CHECKS = {
    **host_facts.CHECKS,
    **files.CHECKS,
    **addresses.CHECKS,
    **privileges.CHECKS,
    **arguments.CHECKS,
}


def main() -> None:
    """Print the answers of all checks."""
    signal.alarm(int(ALL_SECONDS) + 3)  # should all else fail
    end = time.monotonic() + ALL_SECONDS
    with contextlib.suppress(OSError):
        files.SCRATCH[0] = tempfile.mkdtemp(prefix="agent-tools-conformance-")
    try:
        print(json.dumps({"answers": {name: _answer(check, end) for name, check in CHECKS.items()}}))
    finally:
        if files.SCRATCH[0]:
            shutil.rmtree(files.SCRATCH[0], ignore_errors=True)
        signal.alarm(0)


def _answer(check: Callable[[], list[str]], end: float) -> list[str]:
    seconds = min(CHECK_SECONDS, end - time.monotonic())
    if seconds <= 0:
        return ["unknown", "no time was left"]
    reader, writer = os.pipe()
    try:
        pid = os.fork()
    except OSError as exc:
        os.close(reader)
        os.close(writer)
        return ["unknown", f"no process could be started ({exc.strerror})"]
    if pid == 0:
        _attempt(check, writer)
    os.close(writer)
    return _heard(reader, pid, seconds)


def _attempt(check: Callable[[], list[str]], writer: int) -> None:
    """Make the attempt in the child, report it, and end, also where the parent may not kill it."""
    signal.alarm(int(CHECK_SECONDS) + 1)
    try:
        try:
            verdict, found = check()
        except OSError as exc:
            verdict, found = refusal(exc)
        except Exception as exc:  # noqa: BLE001  (a check that fails is an answer too)
            verdict, found = "unknown", f"{type(exc).__name__}: {exc}"
        os.write(writer, json.dumps([verdict, found[:MOST_CHARS]]).encode())
    finally:
        os._exit(0)


def _heard(reader: int, pid: int, seconds: float) -> list[str]:
    """Return the child's report; one that was killed for trying was refused. Runs in the parent."""
    is_ready = select.select([reader], [], [], seconds)[0]
    said = os.read(reader, 4096) if is_ready else b""
    os.close(reader)
    with contextlib.suppress(PermissionError):
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    if said:
        answer: list[str] = json.loads(said)
        return answer
    if not is_ready:
        return ["unknown", "no answer in time"]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS:
        return ["held", "refused (killed by seccomp)"]
    return ["unknown", "the attempt ended without an answer"]
