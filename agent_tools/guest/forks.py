"""Forks of PID 1."""

import contextlib
import ctypes
import os
import signal
import traceback
from collections.abc import Callable
from typing import NoReturn

NICENESS = 10  # of user code: about a tenth of the processor time of PID 1 where both want it, sched(7)


MAX_TRACEBACK = 2048  # characters of a failed start that are sent to the host
PR_SET_DUMPABLE = 4


def in_fork(work: Callable[[], None], report: int = -1) -> NoReturn:
    """Do the work of this forked process and exit; write the traceback of a failure to the descriptor `report`."""
    code = 1
    try:
        os.setsid()
        work()
        code = 0
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else 1
    except BaseException:  # noqa: BLE001  (the last frame of this process: report, then end)
        with contextlib.suppress(OSError):
            os.write(report, traceback.format_exc()[-MAX_TRACEBACK:].encode("ascii", "replace"))
    finally:
        os._exit(code)


def may_signal(kill: Callable[[int, int], None] = os.kill) -> bool:
    """Return whether this process may send a signal to a child, which an AppArmor profile can forbid."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    try:
        kill(pid, signal.SIGCONT)  # permissions are checked for a process that has ended, too
    except PermissionError:
        return False
    finally:
        os.waitpid(pid, 0)
    return True


def silence(*descriptors: int) -> None:
    """Point descriptors at /dev/null: a reader finds its end, and nothing is made of what is written."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    os.close(null)


def set_dumpable(dumpable: bool) -> None:
    """Allow or forbid processes of the same user to read this one's memory."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, int(dumpable), 0, 0, 0)


def yield_to_pid_1() -> None:
    """Leave PID 1 the processor, in a child of it: a fork bomb could not be ended in time.

    Where PID 1 is not ours, this process would yield to all others of a host.
    """
    if os.getppid() == 1:
        os.nice(NICENESS)
