"""Serves files over one socket: work_dir for a host that cannot see the folder, and any path of the sandbox.

Each request and each answer is a head, followed by content where stated (wire/files.py). Relative paths count from
work_dir. Entries are [name, kind, size, mtime in ns, mode], facts are [size, mtime in ns, inode]. A file is written
under another name and then replaced, so that a reader sees the old or the new one.

    {"op": "read", "path", "offset", "most"}   {} and then content
    {"op": "write", "path", "append"}          takes content, then {}; through links
    {"op": "scan", "path", "most", "follow"}   {"entries": [entry, ...], "total": n}
    {"op": "stat", "path", "follow"}           {"entry": entry}
    {"op": "move", "path", "to"}               {}
    {"op": "remove", "path", "recursive"}      {}
    {"op": "make_dir", "path"}                 {}, also if it exists
    {"op": "save", "path", "variables"}        {}, a tar of the folder as content, then what was left out (archive.py)
    {"op": "load", "path", "variables"}        takes a tar as content and unpacks it there, then {}

For the sync of a folder (regular files; names that could disturb a reader, with control or direction characters, are
not listed; `put` replaces a link, or a folder without files):

    {"op": "list", "path", "limit": n}         {"entries": [[name, *facts], ...], "total": entries looked at,
                                                "unread": those that could not be read}
    {"op": "put", "path"}                      takes content, then {"facts": facts}

A request that fails is answered by {"errno": n}, also behind a part of its content. Without room for a process that
would serve, {"errno": EAGAIN} comes before any request.
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
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from io import BufferedRWPair
from typing import Any

from ..wire.files import HEADS, pack_head
from ..wire.framing import read_frame
from . import archive
from .content import CHUNK_BYTES, Content, exactly

MAX_DEPTH = 16
PLAIN = re.compile(r"[^\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")


def serve(descriptor: int, work_dir: str) -> None:
    """Answer requests until the host closes the connection."""
    os.chdir(work_dir)
    with (
        contextlib.suppress(EOFError),
        socket.socket(fileno=os.dup(descriptor)) as connected,
        connected.makefile("rwb") as stream,
    ):
        while True:
            _, request = read_frame(partial(exactly, stream), HEADS.get)
            serve_path(json.loads(request), stream)
            stream.flush()


NO_ROOM = pack_head({"errno": errno.EAGAIN})
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}

Note = Callable[[OSError], None]


def serve_path(request: dict[str, Any], stream: BufferedRWPair) -> None:
    """Carry out one request; answer a failure by its errno."""
    content = Content(stream)
    try:
        _OPERATIONS[request["op"]](request, content)
    except (OSError, tarfile.TarError, ValueError, RecursionError) as exc:
        number = exc.errno if isinstance(exc, OSError) and exc.errno else errno.EINVAL
        if request["op"] in ("write", "load", "put"):
            content.skip()
        content.answer({"errno": number})


def _read(request: dict[str, Any], content: Content) -> None:
    with open(os.open(request["path"], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "a pipe")
        if request["offset"]:
            file.seek(request["offset"])
        left = request["most"]
        data = file.read(min(CHUNK_BYTES, left))  # whatever fails, fails here as a rule, and is told as such
        content.answer({})
        while data:
            content.write(data)
            left -= len(data)
            data = file.read(min(CHUNK_BYTES, left))
        content.end()


def _write(request: dict[str, Any], content: Content) -> None:
    target = os.path.realpath(request["path"])
    _make_parents(target)
    if os.path.isdir(target):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if request["append"] or (os.path.exists(target) and not os.path.isfile(target)):
        with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o666), "wb") as file:
            shutil.copyfileobj(content, file, CHUNK_BYTES)
    else:
        _replace(target, content, _mode_to_keep(target))
    content.answer({})


def _mode_to_keep(target: str) -> "int | None":
    """Return the mode of the file to replace, None if there is none; raise if the user may not write to it."""
    if not os.path.exists(target):
        return None
    os.close(os.open(target, os.O_WRONLY | os.O_CLOEXEC))
    return stat.S_IMODE(os.stat(target).st_mode)


def _replace(target: str, content: Content, mode: "int | None" = None) -> list[int]:
    """Replace a file; return the facts of the new one, which code may change from then on."""
    temporary = os.path.join(os.path.dirname(target), f".{os.getpid()}.part")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    try:
        with open(temporary, "xb") as file:
            shutil.copyfileobj(content, file, CHUNK_BYTES)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
        facts = _facts(os.stat(temporary))
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return facts


def _put(request: dict[str, Any], content: Content) -> None:
    path = os.path.abspath(request["path"])
    _make_parents(path)
    _remove_empty_folder(path)
    content.answer({"facts": _replace(path, content)})


def _remove_empty_folder(name: str) -> None:
    """Make way for a file that has come in place of a folder."""
    if os.path.isdir(name) and not os.path.islink(name):
        for folder, _, _ in os.walk(name, topdown=False):
            os.rmdir(folder)


def _list(request: dict[str, Any], content: Content) -> None:
    entries, total, unread = [], 0, list[OSError]()
    for entry, name in _walk(request["path"], "", MAX_DEPTH, unread.append):
        total += 1
        if total > request["limit"]:
            break
        with _unless_gone(unread.append):
            facts = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(facts.st_mode) and PLAIN.fullmatch(name):
                entries.append([name, *_facts(facts)])
    content.answer({"entries": entries, "total": total, "unread": len(unread)})


def _facts(found: os.stat_result) -> list[int]:
    return [found.st_size, found.st_mtime_ns, found.st_ino]


def _walk(path: str, prefix: str, depth: int, note: Note) -> Iterator[tuple[os.DirEntry[str], str]]:
    with _unless_gone(note), os.scandir(path) as found:
        for entry in found:
            name = prefix + entry.name
            yield entry, name
            if depth and entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path, f"{name}/", depth - 1, note)


@contextlib.contextmanager
def _unless_gone(note: Note) -> Iterator[None]:
    """Note why something could not be read, unless it is gone, or another thing by now."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as exc:
        note(exc)


def _scan(request: dict[str, Any], content: Content) -> None:
    entries, total = [], 0
    with os.scandir(request["path"]) as found:
        for entry in found:
            total += 1
            if total <= request["most"]:
                with contextlib.suppress(FileNotFoundError):
                    entries.append(_entry(entry.name, _found(entry, request["follow"])))
    content.answer({"entries": entries, "total": total})


def _found(entry: os.DirEntry[str], follows: bool) -> os.stat_result:
    if follows:
        with contextlib.suppress(OSError):  # a link without a target is itself
            return entry.stat()
    return entry.stat(follow_symlinks=False)


def _stat(request: dict[str, Any], content: Content) -> None:
    path = request["path"]
    follows = os.stat if request["follow"] else os.lstat
    content.answer({"entry": _entry(os.path.basename(path.rstrip("/")) or path, follows(path))})


def _entry(name: str, found: os.stat_result) -> list[Any]:
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "other")
    return [name, kind, found.st_size, found.st_mtime_ns, stat.S_IMODE(found.st_mode)]


def _move(request: dict[str, Any], content: Content) -> None:
    _make_parents(os.path.abspath(request["to"]))
    shutil.move(request["path"], request["to"])
    content.answer({})


def _remove(request: dict[str, Any], content: Content) -> None:
    path = request["path"]
    if not os.path.isdir(path) or os.path.islink(path):
        os.unlink(path)
    elif os.path.samefile(path, ".") or os.path.ismount(path):
        raise OSError(errno.EBUSY, "work_dir, or another file system")  # before what is in there is gone
    elif request["recursive"]:
        _remove_tree(path)
    else:
        os.rmdir(path)
    content.answer({})


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


def _make_dir(request: dict[str, Any], content: Content) -> None:
    path = os.path.abspath(request["path"])
    _make_parents(path)
    os.makedirs(path, exist_ok=True)
    content.answer({})


def _make_parents(path: str) -> None:
    """Make the parent folders of a path; a file among them raises NotADirectoryError."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    except FileExistsError as exc:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from exc


_OPERATIONS: dict[str, Callable[[dict[str, Any], Content], None]] = {
    "read": _read,
    "write": _write,
    "scan": _scan,
    "stat": _stat,
    "move": _move,
    "remove": _remove,
    "make_dir": _make_dir,
    "save": archive.save,
    "load": archive.load,
    "list": _list,
    "put": _put,
}
