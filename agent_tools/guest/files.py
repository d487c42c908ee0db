"""Serves work_dir over one socket, for a host that cannot see the folder itself.

Each request and each answer is a head, u32 length and JSON, followed by `size` bytes of content where the head has one.

    {"op": "list", "limit": n}         {"entries": [[name, size, mtime_ns, inode], ...], "total": entries looked at}
    {"op": "get", "name": ...}         {"size": n}
    {"op": "put", "name": ..., "size": n}, {"op": "delete", "name": ...}        {}
    any that fails                     {"error": "..."}

Names are relative to work_dir. Only regular files are served, and no link is followed in the last part of a name.
"""

import contextlib
import json
import os
import socket
import stat
import struct
from collections.abc import Iterator
from io import BufferedRWPair
from typing import Any

CHUNK = 256 * 1024
MAX_DEPTH = 16


def serve(descriptor: int, work_dir: str) -> None:
    """Answer requests until the host hangs up."""
    os.chdir(work_dir)
    with socket.socket(fileno=os.dup(descriptor)) as connected, connected.makefile("rwb") as stream:
        while head := stream.read(4):
            request = json.loads(stream.read(struct.unpack(">I", head)[0]))
            _OPERATIONS[request["op"]](request, stream)
            stream.flush()


def _list(request: dict[str, Any], stream: BufferedRWPair) -> None:
    entries, total = [], 0
    for entry, name in _walk(".", "", MAX_DEPTH):
        total += 1
        if total > request["limit"]:
            break
        with contextlib.suppress(OSError):
            facts = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(facts.st_mode) and name.isprintable():
                entries.append([name, facts.st_size, facts.st_mtime_ns, facts.st_ino])
    _answer(stream, {"entries": entries, "total": total})


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
    except OSError as exc:
        _answer(stream, {"error": str(exc.strerror)})
        return
    with open(fd, "rb") as file:
        facts = os.fstat(fd)
        is_file = stat.S_ISREG(facts.st_mode)
        _answer(stream, {"size": facts.st_size} if is_file else {"error": "not a regular file"})
        left = facts.st_size if is_file else 0
        while left:
            data = file.read(min(CHUNK, left)) or bytes(min(CHUNK, left))  # one that has shrunk meanwhile ends in zeros
            stream.write(data)
            left -= len(data)


def _put(request: dict[str, Any], stream: BufferedRWPair) -> None:
    """Write a file under a temporary name and then in place, so that code sees the old one or the new one."""
    name, left, error = request["name"], request["size"], ""
    temporary = f"{name}.{os.getpid()}.part"
    try:
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        with open(temporary, "xb") as file:
            while left:
                data = _read(stream, left)
                left -= len(data)
                file.write(data)
        os.replace(temporary, name)
    except OSError as exc:
        error = str(exc.strerror)
        _unlink(temporary)
    while left:  # keep in step
        left -= len(_read(stream, left))
    _answer(stream, {"error": error} if error else {})


def _read(stream: BufferedRWPair, left: int) -> bytes:
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
    data = json.dumps(head).encode()
    stream.write(struct.pack(">I", len(data)) + data)


_OPERATIONS = {"list": _list, "get": _get, "put": _put, "delete": _delete}
