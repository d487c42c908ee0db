"""Serves any path of the sandbox that its user may read or write, beside work_dir itself (files.py).

    {"op": "read", "path", "offset", "most"}   {} and then content
    {"op": "write", "path", "append"}          takes content, then {}
    {"op": "scan", "path", "most"}             {"entries": [[name, kind, size, mtime in ns, mode], ...], "total": n}
    {"op": "stat", "path", "follow"}           {"entry": [name, kind, size, mtime in ns, mode]}
    {"op": "move", "path", "to"}               {}
    {"op": "remove", "path", "recursive"}      {}
    {"op": "make_dir", "path"}                 {}, also where it is there
    {"op": "save", "path", "variables"}        {} and then a tar of the folder as content (archive.py)
    {"op": "load", "path", "variables"}        takes a tar as content and unpacks it there, then {}
    any that fails                             {"errno": n}

Content is pieces, as content.py has them. Paths count from work_dir on. A file is written under another name and then
put in place, through links, so that whoever reads it sees the old one or the new one.
"""

import contextlib
import errno
import itertools
import os
import secrets
import shutil
import stat
import struct
import tarfile
from collections.abc import Callable, Iterator
from io import BufferedRWPair
from typing import Any

from . import archive
from .archive import Tell
from .content import CHUNK, FAILED, Content

_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}

Answer = Callable[[BufferedRWPair, dict[str, Any]], None]


def serve(request: dict[str, Any], stream: BufferedRWPair, answer: Answer) -> None:
    """Carry out one request; what fails is told by its errno."""
    content = Content(stream)
    try:
        _OPERATIONS[request["op"]](request, content, lambda head: answer(stream, head))
    except (OSError, tarfile.TarError, ValueError, RecursionError) as exc:
        number = exc.errno if isinstance(exc, OSError) and exc.errno else errno.EINVAL
        if content.is_sending:
            stream.write(struct.pack(">I", FAILED))
            return
        if request["op"] in ("write", "load"):
            content.skip()
        answer(stream, {"errno": number})


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
    elif os.path.samefile(path, ".") or os.path.ismount(path):
        raise OSError(errno.EBUSY, "work_dir, or another file system")  # before what is in there is gone
    elif request["recursive"]:
        _remove_tree(path)
    else:
        os.rmdir(path)
    tell({})


def _remove_tree(path: str) -> None:
    try:
        shutil.rmtree(path)
    except RecursionError:
        _remove_deep(path)
    except OSError as exc:
        if exc.errno not in (errno.EMFILE, errno.ENAMETOOLONG):
            raise
        _remove_deep(path)


def _remove_deep(path: str) -> None:
    """Remove a folder whose folders lie too deep for the library: each is renamed, to lie directly in the first."""
    names = map(f".{secrets.token_hex(8)}-{{}}".format, itertools.count())
    waiting = ["."]
    with _opened(path) as top:
        while waiting:
            name = waiting.pop()
            with _opened(name, top) as folder:
                for entry in os.listdir(folder):
                    if not stat.S_ISDIR(os.lstat(entry, dir_fd=folder).st_mode):
                        os.unlink(entry, dir_fd=folder)
                    elif name == ".":
                        waiting.append(entry)
                    else:
                        waiting.append(next(names))
                        os.rename(entry, waiting[-1], src_dir_fd=folder, dst_dir_fd=top)
            if name != ".":
                os.rmdir(name, dir_fd=top)
    os.rmdir(path)


@contextlib.contextmanager
def _opened(folder: str, within: "int | None" = None) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


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


_OPERATIONS: dict[str, Callable[[dict[str, Any], Content, Tell], None]] = {
    "read": _read,
    "write": _write,
    "scan": _scan,
    "stat": _stat,
    "move": _move,
    "remove": _remove,
    "make_dir": _make_dir,
    "save": archive.save,
    "load": archive.load,
}
OPERATIONS = frozenset(_OPERATIONS)
