"""What Python does at its end, for a kernel that is ended between two runs: its process itself is killed."""

import atexit
import contextlib
import gc
import io
import os
import stat

_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def finish() -> None:
    """Write what open files buffer, and run the exit functions, of which the shell's deletes the variables.

    Threads are not waited for.
    """
    flush_files()  # first: an exit function may wait for ever
    atexit._run_exitfuncs()
    flush_files()


def flush_files() -> None:
    """Write what open regular files buffer. Pipes get nothing more: their readers may have stopped."""
    for each in gc.get_objects():
        if issubclass(type(each), _BUFFERED):
            with contextlib.suppress(Exception):  # closed, or on a full disk
                if stat.S_ISREG(os.fstat(each.fileno()).st_mode):
                    each.flush()
