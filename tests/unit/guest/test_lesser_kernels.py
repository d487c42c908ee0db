"""PID 1 on kernels that have less than Linux: gVisor names no socket by itself, and older ones have no pidfd."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent_tools.engines.isolation import Isolation
from agent_tools.limits import Limits
from agent_tools.results.execution import Died, Execution
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.runtime.session.session import Session
from tests.doubles import ProcessEngine

BIND = {"x86_64": 49, "aarch64": 200}[platform.machine()]
PIDFD_OPEN = 434
LENGTH_OF_NO_NAME = 2  # bytes: only the family, which asks Linux to choose a name
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, IF_EQUAL, RETURN = 0x20, 0x15, 0x06
NUMBER, THIRD_ARGUMENT = 0, 32  # places in the data that a filter sees
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
FILTER = [
    (LOAD, 0, 0, NUMBER),
    (IF_EQUAL, 4, 0, PIDFD_OPEN),
    (IF_EQUAL, 0, 2, BIND),
    (LOAD, 0, 0, THIRD_ARGUMENT),
    (IF_EQUAL, 2, 0, LENGTH_OF_NO_NAME),
    (RETURN, 0, 0, ALLOW),
    (RETURN, 0, 0, REFUSE | errno.ENOSYS),
    (RETURN, 0, 0, REFUSE | errno.EINVAL),
]


def lose_calls() -> None:
    """Take the calls from this thread, and from all that it starts, for good."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in FILTER))
    program = struct.pack("@HP", len(FILTER), ctypes.addressof(code))
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program) == 0, ctypes.get_errno()


@pytest.fixture
def session(work_dir: Path) -> Iterator[Session]:
    with closing(Session(ProcessEngine(), SessionSpec("none", work_dir, Isolation(), Limits(), "stdio"))) as session:
        yield session


def test_code_runs_dies_and_runs_again_where_the_kernel_lacks_pidfds_and_names_no_sockets(session: Session) -> None:
    executions: list[Execution] = []

    def run() -> None:
        lose_calls()
        executions.extend(session.run(code, 20) for code in ("print(1)", "import os\nos._exit(3)", "print(2)"))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    first, died, again = executions
    assert (first.stdout, again.stdout) == ("1\n", "2\n")
    assert isinstance(died.error, Died)
