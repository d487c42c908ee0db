"""Forks of PID 1: how one begins and ends, and what it may be looked at and killed by."""

import contextlib
import ctypes
import os
import signal
import traceback
from collections.abc import Callable
from typing import NoReturn

MAX_TRACEBACK = 2048  # characters of a failed start told to the host
PR_SET_DUMPABLE = 4


def in_fork(work: Callable[[], None], report: int = -1) -> NoReturn:
    """Do something in this forked process and end with it; its failure is written to `report`."""
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


def set_dumpable(dumpable: bool) -> None:
    """Let processes of the same user look into this one, or not."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, int(dumpable), 0, 0, 0)


def prefer_as_oom_victim(score: int = 500) -> None:
    """Ask the kernel's OOM killer to take this process and what comes from it, and not one with a lower score."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(score))
