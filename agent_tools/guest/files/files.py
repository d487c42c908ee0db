"""Serves work_dir over one socket, for a host that cannot see the folder itself.

Each request and each answer is a head, u32 length and JSON, followed by `size` bytes of content where the head has one.

    {"op": "list", "limit": n}               {"entries": [[name, *facts], ...], "total": entries looked at}
    {"op": "get", "name": ...}               {"size": n}, or {} when there is no such file any more
    {"op": "put", "name": ..., "size": n}    {"facts": facts}
    {"op": "delete", "name": ...}            {}
    any that fails                           {"error": "..."}
    before any request                       {"errno": EAGAIN, "error": "..."}: no room for a process that would serve

Names are relative to work_dir; facts are [size, mtime in ns, inode]. Only regular files are served, and no link is
followed in the last part of a name. Names that could disturb a reader (control, direction) are not listed. paths.py has
further requests, for any path of the sandbox.
"""

import contextlib
import errno
import json
import os
import re
import socket
import stat
import struct
from collections.abc import Iterator
from io import BufferedRWPair
from typing import Any

from . import paths

CHUNK = 256 * 1024
MAX_DEPTH = 16
PLAIN = re.compile(r"[^\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")


def serve(descriptor: int, work_dir: str) -> None:
    """Answer requests until the host hangs up."""
    os.chdir(work_dir)
    with socket.socket(fileno=os.dup(descriptor)) as connected, connected.makefile("rwb") as stream:
        while head := stream.read(4):
            request = json.loads(stream.read(struct.unpack(">I", head)[0]))
            if request["op"] in paths.OPERATIONS:
                paths.serve(request, stream, _answer)
            else:
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
                data = _read(stream, left)
                left -= len(data)
                file.write(data)
        _remove_empty_folder(name)
        answer["facts"] = _facts(os.stat(temporary))
        os.replace(temporary, name)
    except OSError as exc:
        answer = {"error": str(exc.strerror)}
        _unlink(temporary)
    while left:  # keep in step
        left -= len(_read(stream, left))
    _answer(stream, answer)


def _remove_empty_folder(name: str) -> None:
    """Make way for a file that has come in place of a folder."""
    if os.path.isdir(name) and not os.path.islink(name):
        for folder, _, _ in os.walk(name, topdown=False):
            os.rmdir(folder)


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
    stream.write(_framed(head))


def _framed(head: dict[str, Any]) -> bytes:
    data = json.dumps(head).encode()
    return struct.pack(">I", len(data)) + data


NO_ROOM = _framed({"errno": errno.EAGAIN, "error": os.strerror(errno.EAGAIN)})
_OPERATIONS = {"list": _list, "get": _get, "put": _put, "delete": _delete}
