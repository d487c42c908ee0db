"""Loads variables into the kernel from records. Only a sandbox reads these records.

Code in a record runs as the session's own code would, in the sandbox and under the time limit of this request.
"""

import gc
import json
import signal
import socket
import struct
import time
from typing import Any

from ..files.content import Content
from ..kernel.shell import SandboxShell
from .record_source import SessionUnpickler, records
from .saving import MAX_NAME, MIN_SECONDS, described
from .time_limit import TimeLimit, TooSlow, ring


def load(address: str, seconds: float) -> None:
    """Set the sent variables, and answer with the names of loaded and missing ones.

    Args:
        address: the name of the abstract socket.
        seconds: time limit for making all values; each may take half of the rest.
    """
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(f"\0{address}")
        stream: Any = connected.makefile("rwb")
        content = Content(stream)
        try:
            report = Loading(content, SandboxShell.instance().user_ns, seconds).run()
            content.write(json.dumps(report).encode())
            content.end()
            content.push()
        finally:
            content.hang_up()  # whoever waits is told, though a traceback may hold all this


class Loading:
    """One pass over the records."""

    def __init__(self, content: Content, namespace: dict[str, Any], seconds: float) -> None:
        self._content = content
        self._namespace = namespace
        self._seconds_left = seconds
        self._seconds = seconds
        self._unpickler = SessionUnpickler()
        self._kept: list[str] = []
        self._missing: list[list[str]] = []

    def run(self) -> dict[str, Any]:
        """Load all variables; return the names of the loaded ones, and of the others with reasons."""
        builtins = self._namespace.get("__builtins__")
        before, collects = signal.signal(signal.SIGALRM, ring), gc.isenabled()
        gc.disable()  # it would look through all that is being made, again and again
        try:
            for head, data, buffers in records(self._read):
                if "missing" in head:
                    self._missing += [[str(name), str(reason)] for name, reason in head["missing"]]
                else:
                    self._take(head, data, buffers)
        except (EOFError, ValueError, LookupError, TypeError, MemoryError, struct.error) as exc:
            self._missing.append(["(the rest)", f"the archive is damaged ({described(exc)})"])
        finally:
            signal.signal(signal.SIGALRM, before)
            if collects:
                gc.enable()
            if builtins is not None:
                self._namespace["__builtins__"] = builtins  # functions that are made again would change its form
        self._content.skip()
        return {"kept": self._kept, "missing": self._missing}

    def _take(self, head: dict[str, Any], data: bytes, buffers: list[bytearray]) -> None:
        """Make one value and set its variable."""
        name, started = str(head["name"]), time.monotonic()
        limit = TimeLimit(max(self._seconds_left / 2, MIN_SECONDS))
        try:
            self._namespace[name] = self._unpickler.value(data, buffers, limit, is_fresh=bool(head["fresh"]))
            self._kept.append(name[:MAX_NAME])
        except TooSlow:
            why = f"it took too long: all have {self._seconds:g} s (variables_timeout), each half of what is left"
            self._missing.append([name[:MAX_NAME], why])
        except BaseException as exc:  # noqa: BLE001  (whatever the code of its classes raises)
            self._missing.append([name[:MAX_NAME], described(exc)])
        self._seconds_left -= time.monotonic() - started

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self._content.readinto(view)
            if not count:
                raise EOFError("the records end too early")
            view = view[count:]
        return data
