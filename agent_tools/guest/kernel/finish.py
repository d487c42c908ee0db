"""The end of a program, for a kernel that is ended between two runs: its process itself is killed."""

import atexit
import contextlib
import fcntl
import gc
import io
import os
import stat
from typing import Any, NoReturn

_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def leave_to_finish(shell: Any) -> None:
    """Take the shell's own exit function away, which looks for garbage whatever there is to do."""
    atexit.unregister(shell.atexit_operations)


def finish(shell: Any) -> None:
    """Run the exit functions; write what open files buffer, which some do only when they are dropped.

    Threads are not waited for.
    """
    flush_files()  # first: an exit function may wait for ever
    atexit._run_exitfuncs()
    if _has_files():
        shell.reset(new_session=False)
        flush_files()


def end_fork(status: int) -> NoReturn:
    """End a child that the code forked, with what its open files buffer."""
    try:
        flush_files()
    finally:
        os._exit(status)


def flush_files() -> None:
    """Write what open regular files buffer. Pipes get nothing more: their readers may have stopped."""
    if not _has_files():
        return
    for each in gc.get_objects():
        if issubclass(type(each), _BUFFERED):
            with contextlib.suppress(Exception):  # closed, or on a full disk
                if _is_written(each.fileno()):
                    each.flush()


def _has_files() -> bool:
    try:
        return any(_is_written(int(name)) for name in os.listdir("/proc/self/fd"))
    except OSError:
        return True  # code has used up the descriptors


def _is_written(descriptor: int) -> bool:
    """Return whether it is that of a regular file that may be written to."""
    try:
        mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        return mode != os.O_RDONLY and stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:
        return False  # closed meanwhile
