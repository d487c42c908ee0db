"""Files of a sandbox through its own file service: exactly the paths that the code can use (guest/files/service.py).

Paths are never looked up on this machine, so links in the sandbox cannot lead to its files. A failure is raised as the
`OSError` that the code would get, with the requested path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import BinaryIO

from agent_tools.errors import SandboxGone
from agent_tools.limits import Limits
from agent_tools.results.files import FileInfo, FileKind
from agent_tools.runtime.files.file_conversation import Conversation, FileServiceError, Head, pieces

MARKS_PER_ENTRY = 10
MAX_IDLE = 4  # idle connections kept for the next use
_KINDS: tuple[FileKind, ...] = ("file", "folder", "link", "other")


class GuestFiles:
    """The files of one sandbox. Any thread may call any method; each use has a connection of its own, within `use`."""

    def __init__(
        self,
        limits: Limits,
        connect: Callable[[int], Conversation | None],
        use: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._limits = limits
        self._connect = connect
        self._use = use
        self._idle: list[Conversation] = []
        self._leased: set[Conversation] = set()
        self._lock = threading.Lock()
        self._is_closed = False

    def read(self, path: str, offset: int = 0, most: int | None = None) -> bytes:
        """Return at most `most` bytes of a file from `offset` on.

        Raises:
            OSError: it cannot be read; EFBIG if there are more than `max_transfer_bytes` and `most` was not given.
        """
        bound = self._limits.max_transfer_bytes
        wanted = bound + 1 if most is None else min(most, bound)
        with self.asking(path) as talk:
            talk.ask({"op": "read", "path": path, "offset": offset, "most": wanted})
            data = b"".join(talk.content(wanted))
        if len(data) > bound:
            raise OSError(errno.EFBIG, f"larger than {bound:,} bytes (max_transfer_bytes)", path)
        return data

    def write(self, path: str, data: bytes | BinaryIO, *, append: bool = False) -> None:
        """Replace a file, or append to it; parent folders are made.

        Raises:
            OSError: it cannot be written; EFBIG if there are more than `max_transfer_bytes`.
        """
        bound = self._limits.max_transfer_bytes
        if isinstance(data, (bytes, bytearray, memoryview)) and memoryview(data).nbytes > bound:
            raise OSError(errno.EFBIG, f"larger than {bound:,} bytes (max_transfer_bytes)", path)
        self._do({"op": "write", "path": path, "append": append}, data)

    def scan(self, path: str, *, follow: bool = False) -> list[FileInfo]:
        """Return the entries of a folder, by name; with `follow`, the targets of links.

        Raises:
            OSError: it cannot be listed; EFBIG if there are more than `max_listed_files`.
        """
        most = self._limits.max_listed_files
        with self.asking(path) as talk:
            head = talk.ask({"op": "scan", "path": path, "most": most, "follow": follow})
            entries = head.get("entries")
            if not isinstance(entries, list) or len(entries) > most:
                raise ValueError("a malformed list of files")
            if whole(head.get("total")) > most:
                raise OSError(errno.EFBIG, f"more than {most:,} entries (max_listed_files)", path)
            found = [_info(entry, path) for entry in entries]
        return sorted(found, key=lambda info: info.name)

    def stat(self, path: str, *, follow: bool = True) -> FileInfo:
        """Return one file or folder; with `follow`, the target of a link. Raises OSError."""
        with self.asking(path) as talk:
            head = talk.ask({"op": "stat", "path": path, "follow": follow})
            return _info(head.get("entry"), posixpath.dirname(path))

    def move(self, path: str, to: str) -> None:
        """Move or rename a file or folder. Raises OSError."""
        self._do({"op": "move", "path": path, "to": to})

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or an empty folder; with `recursive`, a folder with its contents. Raises OSError."""
        self._do({"op": "remove", "path": path, "recursive": recursive})

    def make_dir(self, path: str) -> None:
        """Make a folder and its parents; an existing one is not an error. Raises OSError."""
        self._do({"op": "make_dir", "path": path})

    def close(self) -> None:
        """Close all connections; calls that still wait for an answer raise SandboxGone."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            for talk in self._leased:  # each is closed by the thread that uses it, which may be reading
                talk.hang_up()
        for talk in idle:
            talk.close()

    def _do(self, request: Head, data: bytes | BinaryIO | None = None) -> None:
        with self.asking(str(request["path"])) as talk:
            talk.ask(request, None if data is None else pieces(data))

    @contextmanager
    def asking(self, path: str) -> Iterator[Conversation]:
        """Use a connection; it is reused only if this use completed."""
        with self._use(), self._holding(path) as talk:
            yield talk

    @contextmanager
    def _holding(self, path: str) -> Iterator[Conversation]:
        talk = self._take(path)
        is_whole = False
        try:
            yield talk
            is_whole = True
        except FileServiceError as exc:
            is_whole = True
            raise exc.error from None
        except TimeoutError as exc:
            raise TimeoutError(
                errno.ETIMEDOUT, f"not done in {self._limits.sync_timeout:g} s (sync_timeout)", path
            ) from exc
        except ConnectionError as exc:
            raise _last_word(talk) or SandboxGone("The sandbox, or its file service, ended meanwhile.") from exc
        except ValueError as exc:
            raise OSError(errno.EPROTO, f"the file service of the sandbox gave {exc}", path) from exc
        finally:
            self._put_back(talk, is_whole)

    def _take(self, path: str) -> Conversation:
        if "\0" in path or not path:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        most = max(self._limits.max_listed_files, self._limits.max_variables)
        talk = self._idle_one() or self._connect(MARKS_PER_ENTRY * (most + 100))
        if talk is None:
            raise SandboxGone("The sandbox has ended; start another one.")
        with self._lock:
            self._leased.add(talk)
            if self._is_closed:
                talk.hang_up()
        talk.deadline = time.monotonic() + self._limits.sync_timeout
        return talk

    def _idle_one(self) -> Conversation | None:
        """Return an idle connection; drop connections whose server has ended."""
        while True:
            with self._lock:
                talk = self._idle.pop() if self._idle else None
            if talk is None or talk.is_idle:
                return talk
            talk.close()

    def _put_back(self, talk: Conversation, is_whole: bool) -> None:
        with self._lock:
            self._leased.discard(talk)
            if is_whole and not self._is_closed and len(self._idle) < MAX_IDLE:
                self._idle.append(talk)
                return
        with contextlib.suppress(OSError):
            talk.close()


def _last_word(talk: Conversation) -> OSError | None:
    """Return the error that the server sent before it closed the connection."""
    try:
        talk.answer()
    except FileServiceError as exc:
        return exc.error
    except OSError as exc:
        return exc if exc.errno == errno.EAGAIN else None
    except ValueError:
        pass
    return None


def _info(entry: object, folder: str) -> FileInfo:
    if not isinstance(entry, list) or len(entry) != 5:
        raise ValueError("a malformed entry")
    name, kind, size, modified, mode = entry
    if not isinstance(name, str) or kind not in _KINDS:
        raise ValueError("a malformed entry")
    path = posixpath.join(folder, name) if folder not in ("", ".") else name
    return FileInfo(name, path, kind, whole(size), whole(modified) / 1e9, whole(mode))


def whole(value: object) -> int:
    """Return a number of the guest's if it is a whole one of 63 bits. Raises ValueError."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError("a number out of range")
    return value
