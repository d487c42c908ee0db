"""Files of a session: each method is a function of the sandbox, which runs in a thread."""

from __future__ import annotations

import errno
import os
import posixpath
import time
from collections import deque
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from agent_tools.limits import MIB
from agent_tools.results.files import FileInfo
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.codex.messages import (
    CAMEL,
    FAILED,
    INVALID_REQUEST,
    NOT_FOUND,
    Bytes,
    Name,
    Number,
    Path,
    RpcError,
    path_of,
    uri_of,
)
from agent_tools.wires.paths import Home

MAX_BLOCK = MIB  # bytes of one block of a file
MAX_FILE = 24 * MIB  # bytes of a file in one message
MAX_HANDLES = 128  # that are open in a session
MAX_ENTRIES = 10_000  # of one walk
SECONDS = 30.0  # of a command that copies files or follows links, and of looking at the links of folders
Maybe = bool | None


class WalkOptions(BaseModel):
    """The limits of a walk."""

    model_config = CAMEL
    max_depth: Number
    max_directories: Number
    max_entries: Number
    follow_directory_symlinks: bool = False
    prune_hidden_directories: bool = False


@dataclass
class Handle:
    """An open file; `size` is the number of bytes written, None for a file to read."""

    path: str
    size: int | None


class FileMethods:
    """The files of one session. A path of the client is one of the sandbox, or of the host's folder mounted there.

    Each method is the `fs/` one that its docstring names. Errors, beside `RpcError`, as for `Sandbox.read_file`.
    """

    seconds = SECONDS

    def __init__(self, home: Home) -> None:
        self._home = home
        self._handles: dict[str, Handle] = {}

    def inside(self, path: str) -> str:
        """Return a client's path as a sandbox takes it."""
        return self._home.in_sandbox(self._home.resolved(path))

    def uri(self, path: str) -> str:
        """Return an absolute path of the sandbox as the client knows it, where its folder has the host's name."""
        relative = self._home.inside(path)
        shown = (*self._home.aliases, self._home.name)[0]
        return uri_of(path if relative is None else posixpath.join(shown, relative).rstrip("/"))

    def metadata(self, sandbox: Sandbox, path: Path, follow_symlinks: Maybe = None) -> dict[str, Any]:
        """`getMetadata`: of a file or folder, or the target of a link."""
        where = self._checked(sandbox, path, follow_symlinks)
        entry = sandbox.stat(where, follow=False)
        found = sandbox.stat(where) if entry.kind == "link" else entry
        times = {"createdAtMs": 0, "modifiedAtMs": int(found.modified * 1000)}
        return {**_kinds(found), "isSymlink": entry.kind == "link", "size": found.size, **times}

    def read(self, sandbox: Sandbox, path: Path, follow_symlinks: Maybe = None) -> dict[str, Any]:
        """`readFile`: a whole file."""
        where = self._file(sandbox, path, follow_symlinks)
        data = sandbox.read_file(where, max_bytes=MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise OSError(errno.EFBIG, f"The file is larger than {MAX_FILE:,} bytes: read it by fs/open")
        return {"dataBase64": data}

    def write(self, sandbox: Sandbox, path: Path, data_base64: Bytes, follow_symlinks: Maybe = None) -> dict[str, Any]:
        """`writeFile`: replace a file in a folder that exists."""
        sandbox.write_file(self._new(sandbox, path, follow_symlinks), data_base64)
        return {}

    def make_directory(
        self, sandbox: Sandbox, path: Path, recursive: Maybe = None, follow_symlinks: Maybe = None
    ) -> dict[str, Any]:
        """`createDirectory`: with its parents, unless `recursive` is false."""
        where = self._checked(sandbox, path, follow_symlinks)
        if recursive is False and sandbox.exists(self._new(sandbox, path)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        sandbox.make_dir(where)
        return {}

    def canonicalize(self, sandbox: Sandbox, path: Path) -> dict[str, Any]:
        """`canonicalize`: the path without links."""
        sandbox.stat(where := self.inside(path))
        return {"path": self.uri(self._real(sandbox, where))}

    def read_directory(self, sandbox: Sandbox, path: Path) -> dict[str, Any]:
        """`readDirectory`: the entries of a folder; a link counts as its target, and is left out without one."""
        where, entries, deadline = self.inside(path), list[dict[str, Any]](), time.monotonic() + self.seconds
        for each in sandbox.list_files(where):
            if time.monotonic() > deadline:
                raise RpcError(FAILED, f"The folder has more links than can be followed in {self.seconds:g} s.")
            if found := _target(sandbox, where, each):
                entries.append({"fileName": os.fsencode(each.name).decode("utf-8", "replace"), **_kinds(found)})
        return {"entries": entries}

    def walk(self, sandbox: Sandbox, path: Path, options: WalkOptions) -> dict[str, Any]:
        """`walk`: files and folders below a folder, the nearest first, within the client's limits and ours."""
        top = self._home.resolved(path)
        folders, items, errors = deque([(top, 0)]), list[dict[str, str]](), list[dict[str, str]]()
        most, left = min(options.max_entries, MAX_ENTRIES), options.max_directories
        cut, deadline = {"entries": items, "errors": errors, "truncated": True}, time.monotonic() + self.seconds
        while folders and time.monotonic() <= deadline:
            folder, depth = folders.popleft()
            try:
                listed = sandbox.list_files(self._home.in_sandbox(folder))
            except OSError as exc:
                if folder == top:
                    raise
                errors.append({"path": self.uri(folder), "message": exc.strerror or str(exc)})
                continue
            for each in listed:
                if time.monotonic() > deadline:
                    return cut
                kind = _kind(sandbox, self._home.in_sandbox(folder), each, follows=options.follow_directory_symlinks)
                below = posixpath.join(folder, each.name)
                if kind not in ("file", "folder"):
                    continue
                is_entered = kind == "folder" and depth < options.max_depth
                is_entered = is_entered and not (options.prune_hidden_directories and each.name.startswith("."))
                if len(items) >= most:
                    return cut
                items.append({"path": self.uri(below), "kind": "directory" if kind == "folder" else "file"})
                if is_entered and (left := left - 1) < 1:
                    return cut
                if is_entered:
                    folders.append((below, depth + 1))
        return {**cut, "truncated": bool(folders)}

    def remove(
        self,
        sandbox: Sandbox,
        path: Path,
        recursive: Maybe = None,
        force: Maybe = None,
        follow_symlinks: Maybe = None,
    ) -> dict[str, Any]:
        """`remove`: a missing file is an error only if `force` is false."""
        self._home.check_spared(self._home.resolved(path))
        try:
            sandbox.remove(self._checked(sandbox, path, follow_symlinks), recursive=recursive is not False)
        except FileNotFoundError:
            if force is False:
                raise
        return {}

    def copy(self, sandbox: Sandbox, source_path: Path, destination_path: Path, recursive: bool) -> dict[str, Any]:
        """`copy`: a file, a link, or with `recursive` a folder."""
        source, target = self.inside(source_path), self.inside(destination_path)
        if sandbox.stat(source, follow=False).is_dir:
            if not recursive:
                raise RpcError(INVALID_REQUEST, "fs/copy requires recursive: true when sourcePath is a directory")
            if f"{self._home.resolved(target)}/".startswith(f"{self._home.resolved(source)}/"):
                message = "fs/copy cannot copy a directory to itself or one of its descendants"
                raise RpcError(INVALID_REQUEST, message)
        elif sandbox.exists(target) and sandbox.stat(target).is_dir:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        _run(sandbox, ["cp", "-RPT", "--", source, target])
        return {}

    def open(
        self, sandbox: Sandbox, handle_id: Name, path: Path, mode: Literal["read", "replace"] = "read"
    ) -> dict[str, Any]:
        """`open`: begin to read a file in blocks, or to write one."""
        if handle_id in self._handles:
            raise RpcError(INVALID_REQUEST, f"file handle `{handle_id}` already exists")
        if len(self._handles) >= MAX_HANDLES:
            raise RpcError(INVALID_REQUEST, f"{MAX_HANDLES} files are open already: close one of them")
        if mode == "read":
            handle = Handle(self._file(sandbox, path), None)
        else:
            handle = Handle(self._new(sandbox, path), 0)
            sandbox.write_file(handle.path, b"")
        self._handles[handle_id] = handle
        return {"handleId": handle_id}

    def read_block(
        self,
        sandbox: Sandbox,
        handle_id: Name,
        offset: Number,
        len: Annotated[int, Field(ge=1, le=MAX_BLOCK)],  # noqa: A002
    ) -> dict[str, Any]:
        """`readBlock`: bytes from an offset on, and whether the file ends there."""
        data = sandbox.read_file(self._handle(handle_id).path, offset=offset, max_bytes=len + 1)
        return {"chunk": data[:len], "eof": data[len:] == b""}

    def write_block(
        self, sandbox: Sandbox, handle_id: Name, offset: Number, chunk: Annotated[Bytes, Field(max_length=MAX_BLOCK)]
    ) -> dict[str, Any]:
        """`writeBlock`: the next bytes of a file."""
        handle = self._handle(handle_id)
        if handle.size != offset:
            where = "is open to be read" if handle.size is None else f"has {handle.size} bytes: write from there on"
            raise RpcError(INVALID_REQUEST, f"file handle `{handle_id}` {where}")
        sandbox.write_file(handle.path, chunk, append=True)
        handle.size += len(chunk)
        return {}

    def close(self, _: Sandbox, handle_id: Name) -> dict[str, Any]:
        """`close`; a handle that is not open is no error."""
        self._handles.pop(handle_id, None)
        return {}

    def _handle(self, id_: str) -> Handle:
        if (handle := self._handles.get(id_)) is None:
            raise RpcError(NOT_FOUND, f"unknown file handle `{id_}`")
        return handle

    def _checked(self, sandbox: Sandbox, path: str, follow_symlinks: Maybe = None) -> str:
        """Return a path as a sandbox takes it; where links may not be followed, none may be in it."""
        where = self.inside(path)
        if follow_symlinks is False and self._real(sandbox, where) != self._home.resolved(path):
            raise RpcError(INVALID_REQUEST, "path contains a symbolic link")
        return where

    def _file(self, sandbox: Sandbox, path: str, follow_symlinks: Maybe = None) -> str:
        where = self._checked(sandbox, path, follow_symlinks)
        if sandbox.stat(where).kind != "file":
            raise RpcError(INVALID_REQUEST, f"path `{path_of(self.uri(self._home.resolved(path)))}` is not a file")
        return where

    def _new(self, sandbox: Sandbox, path: str, follow_symlinks: Maybe = None) -> str:
        """Return the path of a file or folder whose parent exists."""
        where = self._checked(sandbox, path, follow_symlinks)
        if not sandbox.stat(posixpath.dirname(where) or ".").is_dir:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return where

    def _real(self, sandbox: Sandbox, path: str) -> str:
        """Return a path without links, which may lead to a file that is not there."""
        found = _run(sandbox, ["realpath", "-mz", "--relative-base=.", "--", path])
        return self._home.resolved(os.fsdecode(found.rstrip(b"\0")))


def _run(sandbox: Sandbox, command: list[str]) -> bytes:
    ran = sandbox.run_command(command, timeout=SECONDS)
    if not ran.ok:
        message = ran.reason or ran.stderr.decode("utf-8", "replace").strip()[-500:]
        raise RpcError(FAILED, f"{command[0]} failed: {message}")
    return ran.stdout


def _target(sandbox: Sandbox, folder: str, entry: FileInfo) -> FileInfo | None:
    """Return an entry of a folder, or the target of a link; None if there is none."""
    try:
        return sandbox.stat(posixpath.join(folder, entry.name)) if entry.kind == "link" else entry
    except OSError:
        return None


def _kind(sandbox: Sandbox, folder: str, entry: FileInfo, *, follows: bool) -> str:
    """Return the kind of an entry of a folder; for a link that is followed to a folder, the folder's."""
    target = _target(sandbox, folder, entry) if follows and entry.kind == "link" else None
    return "folder" if target and target.is_dir else entry.kind


def _kinds(found: FileInfo) -> dict[str, Any]:
    return {"isDirectory": found.is_dir, "isFile": found.kind == "file"}
