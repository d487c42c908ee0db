"""Serves any path of the sandbox that its user may read or write, beside work_dir itself (files.py).

    {"op": "read", "path", "offset", "most"}   {} and then content
    {"op": "write", "path", "append"}          takes content, then {}
    {"op": "scan", "path", "most"}             {"entries": [[name, kind, size, mtime in ns, mode], ...], "total": n}
    {"op": "stat", "path", "follow"}           {"entry": [name, kind, size, mtime in ns, mode]}
    {"op": "move", "path", "to"}               {}
    {"op": "remove", "path", "recursive"}      {}
    {"op": "make_dir", "path"}                 {}, also where it is there
    {"op": "save", "path"}                     {} and then a tar of the folder as content
    {"op": "load", "path"}                     takes a tar as content and unpacks it there, then {}
    any that fails                             {"errno": n}

Content is pieces, u32 length and bytes; one of no bytes ends it, one of length FAILED breaks it off: what was sent is
not all. Paths count from work_dir on. A file is written under another name and then put in place, through links, so
that whoever reads it sees the old one or the new one.
"""

import contextlib
import errno
import os
import shutil
import stat
import struct
import tarfile
from collections.abc import Callable
from io import BufferedRWPair, RawIOBase
from typing import Any

CHUNK = 256 * 1024
FAILED = 0xFFFFFFFF
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}

Answer = Callable[[BufferedRWPair, dict[str, Any]], None]


def serve(request: dict[str, Any], stream: BufferedRWPair, answer: Answer) -> None:
    """Carry out one request; what fails is told by its errno."""
    content = Content(stream)
    try:
        _OPERATIONS[request["op"]](request, content, lambda head: answer(stream, head))
    except (OSError, tarfile.TarError, ValueError) as exc:
        number = exc.errno if isinstance(exc, OSError) and exc.errno else errno.EINVAL
        if content.is_sending:
            stream.write(struct.pack(">I", FAILED))
            return
        if request["op"] in ("write", "load"):
            content.skip()
        answer(stream, {"errno": number})


class Content(RawIOBase):
    """The content of a request or an answer, as a file."""

    def __init__(self, stream: BufferedRWPair) -> None:
        self._stream = stream
        self._left = 0  # bytes of the piece that is being read
        self._is_over = False
        self.is_sending = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what comes next of the content; 0 at its end."""
        if not self._left and not self._is_over:
            self._left = struct.unpack(">I", _exactly(self._stream, 4))[0]
            self._is_over = not self._left
        data = _exactly(self._stream, min(self._left, len(buffer)))
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)

    def write(self, data: Any) -> int:
        """Send it as a piece."""
        self.is_sending = True
        if data:
            self._stream.write(struct.pack(">I", len(data)))
            self._stream.write(data)
        return len(data)

    def skip(self) -> None:
        """Read to the end, and so keep in step."""
        while self.read(CHUNK):
            pass

    def end(self) -> None:
        """Tell that what was written is all."""
        self._stream.write(struct.pack(">I", 0))
        self.is_sending = False


Tell = Callable[[dict[str, Any]], None]


def _read(request: dict[str, Any], content: Content, tell: Tell) -> None:
    with open(os.open(request["path"], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "a pipe")
        if request["offset"]:
            file.seek(request["offset"])
        left = request["most"]
        data = file.read(min(CHUNK, left))  # whatever fails, fails here as a rule, and is told as such
        tell({})
        while data:
            content.write(data)
            left -= len(data)
            data = file.read(min(CHUNK, left))
        content.end()


def _write(request: dict[str, Any], content: Content, tell: Tell) -> None:
    target = os.path.realpath(request["path"])
    _make_parents(target)
    if os.path.isdir(target):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if request["append"] or (os.path.exists(target) and not os.path.isfile(target)):
        with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o666), "wb") as file:
            shutil.copyfileobj(content, file, CHUNK)
    else:
        _replace(target, content)
    tell({})


def _replace(target: str, content: Content) -> None:
    """Write a file anew, with the mode of the one that was there."""
    mode = None
    if os.path.exists(target):
        os.close(os.open(target, os.O_WRONLY | os.O_CLOEXEC))  # its own permission counts, too
        mode = stat.S_IMODE(os.stat(target).st_mode)
    temporary = os.path.join(os.path.dirname(target), f".{os.getpid()}.part")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    try:
        with open(temporary, "xb") as file:
            shutil.copyfileobj(content, file, CHUNK)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _scan(request: dict[str, Any], _content: Content, tell: Tell) -> None:
    entries, total = [], 0
    with os.scandir(request["path"]) as found:
        for entry in found:
            total += 1
            if total <= request["most"]:
                with contextlib.suppress(FileNotFoundError):
                    entries.append(_entry(entry.name, entry.stat(follow_symlinks=False)))
    tell({"entries": entries, "total": total})


def _stat(request: dict[str, Any], _content: Content, tell: Tell) -> None:
    path = request["path"]
    follows = os.stat if request["follow"] else os.lstat
    tell({"entry": _entry(os.path.basename(path.rstrip("/")) or path, follows(path))})


def _entry(name: str, found: os.stat_result) -> list[Any]:
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "other")
    return [name, kind, found.st_size, found.st_mtime_ns, stat.S_IMODE(found.st_mode)]


def _move(request: dict[str, Any], _content: Content, tell: Tell) -> None:
    _make_parents(os.path.abspath(request["to"]))
    shutil.move(request["path"], request["to"])
    tell({})


def _remove(request: dict[str, Any], _content: Content, tell: Tell) -> None:
    path = request["path"]
    if not os.path.isdir(path) or os.path.islink(path):
        os.unlink(path)
    elif request["recursive"]:
        shutil.rmtree(path)
    else:
        os.rmdir(path)
    tell({})


def _make_dir(request: dict[str, Any], _content: Content, tell: Tell) -> None:
    path = os.path.abspath(request["path"])
    _make_parents(path)
    os.makedirs(path, exist_ok=True)
    tell({})


def _make_parents(path: str) -> None:
    """Make the folders above a path; a file among them is no folder, as the system itself would say."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    except FileExistsError as exc:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from exc


def _save(request: dict[str, Any], content: Content, tell: Tell) -> None:
    os.listdir(request["path"])
    tell({})
    with tarfile.open(fileobj=content, mode="w|", bufsize=CHUNK, format=tarfile.PAX_FORMAT) as tar:
        tar.add(request["path"], arcname=".", filter=_plain)
    content.end()


def _plain(member: tarfile.TarInfo) -> "tarfile.TarInfo | None":
    """Leave out what no archive can bring back: sockets, pipes and devices; and who owns it."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member if member.isfile() or member.isdir() or member.issym() or member.islnk() else None


def _load(request: dict[str, Any], content: Content, tell: Tell) -> None:
    with tarfile.open(fileobj=content, mode="r|*", bufsize=CHUNK) as tar:
        tar.extractall(request["path"], filter="data")
    content.skip()
    tell({})


def _exactly(stream: BufferedRWPair, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the host hung up")
    return data


_OPERATIONS: dict[str, Callable[[dict[str, Any], Content, Tell], None]] = {
    "read": _read,
    "write": _write,
    "scan": _scan,
    "stat": _stat,
    "move": _move,
    "remove": _remove,
    "make_dir": _make_dir,
    "save": _save,
    "load": _load,
}
OPERATIONS = frozenset(_OPERATIONS)
