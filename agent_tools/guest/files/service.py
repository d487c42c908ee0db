"""Serves files over one socket: work_dir for a host that cannot see the folder, and any path of the sandbox.

Each request and each answer is a head, u32 length and JSON, followed by `size` bytes or by content where stated.

Of work_dir (names are relative to it; facts are [size, mtime in ns, inode]; only regular files, and no link is followed
in the last part of a name; names that could disturb a reader, with control or direction characters, are not listed):

    {"op": "list", "limit": n}               {"entries": [[name, *facts], ...], "total": entries looked at}
    {"op": "get", "name": ...}               {"size": n}, or {} when there is no such file any more
    {"op": "put", "name": ..., "size": n}    {"facts": facts}
    {"op": "delete", "name": ...}            {}
    any that fails                           {"error": "..."}
    before any request                       {"errno": EAGAIN, "error": "..."}: no room for a process that would serve

Of any path (relative ones count from work_dir; entries are [name, kind, size, mtime in ns, mode]; content is pieces as
in archive.py; a file is written under another name and then replaced, through links, so that a reader sees the old or
the new one):

    {"op": "read", "path", "offset", "most"}   {} and then content
    {"op": "write", "path", "append"}          takes content, then {}
    {"op": "scan", "path", "most"}             {"entries": [entry, ...], "total": n}
    {"op": "stat", "path", "follow"}           {"entry": entry}
    {"op": "move", "path", "to"}               {}
    {"op": "remove", "path", "recursive"}      {}
    {"op": "make_dir", "path"}                 {}, also if it exists
    {"op": "save", "path", "variables"}        {} and then a tar of the folder as content (archive.py)
    {"op": "load", "path", "variables"}        takes a tar as content and unpacks it there, then {}
    any that fails                             {"errno": n}
"""

import contextlib
import errno
import itertools
import json
import os
import re
import secrets
import shutil
import socket
import stat
import struct
import tarfile
from collections.abc import Callable, Iterator
from io import BufferedRWPair
from typing import Any

from . import archive
from .archive import CHUNK, FAILED, Content, Tell

MAX_DEPTH = 16
PLAIN = re.compile(r"[^\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")


def serve(descriptor: int, work_dir: str) -> None:
    """Answer requests until the host closes the connection."""
    os.chdir(work_dir)
    with socket.socket(fileno=os.dup(descriptor)) as connected, connected.makefile("rwb") as stream:
        while head := stream.read(4):
            request = json.loads(stream.read(struct.unpack(">I", head)[0]))
            if request["op"] in _OF_PATHS:
                serve_path(request, stream, _answer)
            else:
                _OF_WORK_DIR[request["op"]](request, stream)
            stream.flush()


def _list(request: dict[str, Any], stream: BufferedRWPair) -> None:
    entries, total = [], 0
    for entry, name in _walk(".", "", MAX_DEPTH):
        total += 1
        if total > request["limit"]:
            break
        with contextlib.suppress(OSError):
            facts = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(facts.st_mode) and PLAIN.fullmatch(name):
                entries.append([name, *_facts(facts)])
    _answer(stream, {"entries": entries, "total": total})


def _facts(found: os.stat_result) -> list[int]:
    return [found.st_size, found.st_mtime_ns, found.st_ino]


def _walk(path: str, prefix: str, depth: int) -> Iterator[tuple[os.DirEntry[str], str]]:
    try:
        with os.scandir(path) as found:
            for entry in found:
                name = prefix + entry.name
                yield entry, name
                if depth and entry.is_dir(follow_symlinks=False):
                    yield from _walk(entry.path, f"{name}/", depth - 1)
    except OSError:
        return


def _get(request: dict[str, Any], stream: BufferedRWPair) -> None:
    try:
        fd = os.open(request["name"], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        _answer(stream, {})
        return
    except OSError as exc:
        _answer(stream, {"error": str(exc.strerror)})
        return
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode):
        os.close(fd)
        _answer(stream, {"error": "not a regular file"})
        return
    with open(fd, "rb") as file:
        _answer(stream, {"size": facts.st_size})
        left = facts.st_size
        while left:
            data = file.read(min(CHUNK, left)) or bytes(min(CHUNK, left))  # one that has shrunk meanwhile ends in zeros
            stream.write(data)
            left -= len(data)


def _put(request: dict[str, Any], stream: BufferedRWPair) -> None:
    """Write a file under a temporary name and then in place, so that code sees the old one or the new one."""
    name, left = request["name"], request["size"]
    answer: dict[str, Any] = {}
    temporary = os.path.join(os.path.dirname(name), f".{os.getpid()}.part")
    try:
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        _unlink(temporary)
        with open(temporary, "xb") as file:
            while left:
                data = _read_piece(stream, left)
                left -= len(data)
                file.write(data)
        _remove_empty_folder(name)
        answer["facts"] = _facts(os.stat(temporary))
        os.replace(temporary, name)
    except OSError as exc:
        answer = {"error": str(exc.strerror)}
        _unlink(temporary)
    while left:  # keep in step
        left -= len(_read_piece(stream, left))
    _answer(stream, answer)


def _remove_empty_folder(name: str) -> None:
    """Make way for a file that has come in place of a folder."""
    if os.path.isdir(name) and not os.path.islink(name):
        for folder, _, _ in os.walk(name, topdown=False):
            os.rmdir(folder)


def _read_piece(stream: BufferedRWPair, left: int) -> bytes:
    data = stream.read(min(CHUNK, left))
    if not data:
        raise EOFError("the host hung up")
    return data


def _delete(request: dict[str, Any], stream: BufferedRWPair) -> None:
    _unlink(request["name"])
    _answer(stream, {})


def _unlink(name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name)


def _answer(stream: BufferedRWPair, head: dict[str, Any]) -> None:
    stream.write(_framed(head))


def _framed(head: dict[str, Any]) -> bytes:
    data = json.dumps(head).encode()
    return struct.pack(">I", len(data)) + data


NO_ROOM = _framed({"errno": errno.EAGAIN, "error": os.strerror(errno.EAGAIN)})
_OF_WORK_DIR = {"list": _list, "get": _get, "put": _put, "delete": _delete}


# Any path of the sandbox that its user may read or write.


_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}

Answer = Callable[[BufferedRWPair, dict[str, Any]], None]


def serve_path(request: dict[str, Any], stream: BufferedRWPair, answer: Answer) -> None:
    """Carry out one request; answer a failure by its errno."""
    content = Content(stream)
    try:
        _OF_PATHS[request["op"]](request, content, lambda head: answer(stream, head))
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
    """Replace a file, keeping its mode."""
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
    """Remove a folder that is nested too deep for the library: each subfolder is first moved to the top."""
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
    """Make the parent folders of a path; a file among them raises NotADirectoryError."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    except FileExistsError as exc:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from exc


_OF_PATHS: dict[str, Callable[[dict[str, Any], Content, Tell], None]] = {
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
