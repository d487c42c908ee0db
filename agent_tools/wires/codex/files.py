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

from agent_tools.bodies.base64_text import Base64
from agent_tools.limits import MIB
from agent_tools.results.files import FileInfo
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.codex.messages import CAMEL, FAILED, NOT_FOUND, Name, Number, Path, RpcError, uri_of
from agent_tools.wires.paths import Home

MAX_BLOCK = MIB  # bytes of one block of a file
MAX_FILE = 24 * MIB  # bytes of a file in one message
MAX_HANDLES = 128  # that are open in a session
MAX_ENTRIES = 10_000  # of one walk
SECONDS = 30.0  # of a command that copies files or follows links, and of a walk
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
    """The files of one session. Each public function is the `fs/` method of its name.

    A path is one as a sandbox takes it. Errors, beside `RpcError`, as for `Sandbox.read_file`.
    """

    seconds = SECONDS

    def __init__(self, home: Home) -> None:
        self._home = home
        self._handles: dict[str, Handle] = {}

    def get_metadata(self, sandbox: Sandbox, path: Path) -> dict[str, Any]:
        """Return the facts of a file or folder, or of the target of a link."""
        entry = sandbox.stat(path, follow=False)
        found = sandbox.stat(path) if entry.kind == "link" else entry
        times = {"createdAtMs": 0, "modifiedAtMs": int(found.modified * 1000)}
        return {**_kinds(found), "isSymlink": entry.kind == "link", "size": found.size, **times}

    def read_file(self, sandbox: Sandbox, path: Path) -> dict[str, Any]:
        """Return a whole file."""
        data = sandbox.read_file(self._file(sandbox, path), max_bytes=MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise OSError(errno.EFBIG, f"The file is larger than {MAX_FILE:,} bytes: read it by fs/open")
        return {"dataBase64": data}

    def write_file(self, sandbox: Sandbox, path: Path, data_base64: Base64) -> None:
        """Replace a file in a folder that exists."""
        sandbox.write_file(_new(sandbox, path), data_base64)

    def create_directory(self, sandbox: Sandbox, path: Path, recursive: Maybe = None) -> None:
        """Make a folder with its parents, unless `recursive` is false."""
        if recursive is False and sandbox.exists(_new(sandbox, path)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        sandbox.make_dir(path)

    def canonicalize(self, sandbox: Sandbox, path: Path) -> dict[str, Any]:
        """Return a path without links."""
        sandbox.stat(path)
        return {"path": self._uri(_real(sandbox, path))}

    def read_directory(self, sandbox: Sandbox, path: Path) -> dict[str, Any]:
        """Return the entries of a folder; a link counts as its target, and is left out without one."""
        found = [each for each in sandbox.list_files(path, follow=True) if each.kind != "link"]
        names = [os.fsencode(each.name).decode("utf-8", "replace") for each in found]
        return {"entries": [{"fileName": name, **_kinds(each)} for name, each in zip(names, found, strict=True)]}

    def walk(self, sandbox: Sandbox, path: Path, options: WalkOptions) -> dict[str, Any]:
        """Return files and folders below a folder, the nearest first, within the client's limits and ours."""
        folders, items, errors = deque([(path, 0)]), list[dict[str, str]](), list[dict[str, str]]()
        most, left = min(options.max_entries, MAX_ENTRIES), options.max_directories
        cut, deadline = {"entries": items, "errors": errors, "truncated": True}, time.monotonic() + self.seconds
        while folders and time.monotonic() <= deadline:
            folder, depth = folders.popleft()
            try:
                listed = sandbox.list_files(folder)
                linked = sandbox.list_files(folder, follow=True) if options.follow_directory_symlinks else ()
            except OSError as exc:
                if folder == path:
                    raise
                errors.append({"path": self._uri(folder), "message": exc.strerror or str(exc)})
                continue
            inside = {each.name for each in (*listed, *linked) if each.is_dir}
            for each in listed:
                is_folder = each.name in inside
                if not is_folder and each.kind != "file":
                    continue
                if len(items) >= most:
                    return cut
                below = posixpath.join(folder, each.name)
                items.append({"path": self._uri(below), "kind": "directory" if is_folder else "file"})
                is_pruned = options.prune_hidden_directories and each.name.startswith(".")
                if is_folder and depth < options.max_depth and not is_pruned:
                    if (left := left - 1) < 1:
                        return cut
                    folders.append((below, depth + 1))
        return {**cut, "truncated": bool(folders)}

    def remove(self, sandbox: Sandbox, path: Path, recursive: Maybe = None, force: Maybe = None) -> None:
        """Remove a file or folder; a missing one is an error only if `force` is false."""
        self._home.check_spared(self._home.resolved(path))
        try:
            sandbox.remove(path, recursive=recursive is not False)
        except FileNotFoundError:
            if force is False:
                raise

    def copy(self, sandbox: Sandbox, source_path: Path, destination_path: Path, recursive: bool) -> None:
        """Copy a file, a link, or with `recursive` a folder."""
        if sandbox.stat(source_path, follow=False).is_dir:
            if not recursive:
                raise RpcError("fs/copy requires recursive: true when sourcePath is a directory")
            source, target = map(self._home.resolved, (source_path, destination_path))
            if f"{target}/".startswith(f"{source}/"):
                raise RpcError("fs/copy cannot copy a directory to itself or one of its descendants")
        _run(sandbox, ["cp", "-RPT", "--", source_path, destination_path])

    def open(
        self, sandbox: Sandbox, handle_id: Name, path: Path, mode: Literal["read", "replace"] = "read"
    ) -> dict[str, Any]:
        """Begin to read a file in blocks, or to write one."""
        if handle_id in self._handles:
            raise RpcError(f"file handle `{handle_id}` already exists")
        if len(self._handles) >= MAX_HANDLES:
            raise RpcError(f"{MAX_HANDLES} files are open already: close one of them")
        if mode == "read":
            handle = Handle(self._file(sandbox, path), None)
        else:
            handle = Handle(_new(sandbox, path), 0)
            sandbox.write_file(path, b"")
        self._handles[handle_id] = handle
        return {"handleId": handle_id}

    def read_block(
        self,
        sandbox: Sandbox,
        handle_id: Name,
        offset: Number,
        len: Annotated[int, Field(ge=1, le=MAX_BLOCK)],  # noqa: A002
    ) -> dict[str, Any]:
        """Return bytes from an offset on, and whether the file ends there."""
        data = sandbox.read_file(self._handle(handle_id).path, offset=offset, max_bytes=len + 1)
        return {"chunk": data[:len], "eof": data[len:] == b""}

    def write_block(
        self, sandbox: Sandbox, handle_id: Name, offset: Number, chunk: Annotated[Base64, Field(max_length=MAX_BLOCK)]
    ) -> None:
        """Write the next bytes of a file."""
        handle = self._handle(handle_id)
        if handle.size != offset:
            where = "is open to be read" if handle.size is None else f"has {handle.size} bytes: write from there on"
            raise RpcError(f"file handle `{handle_id}` {where}")
        sandbox.write_file(handle.path, chunk, append=True)
        handle.size += len(chunk)

    def close(self, _: Sandbox, handle_id: Name) -> None:
        """Forget an open file; a handle that is not open is no error."""
        self._handles.pop(handle_id, None)

    def _handle(self, id_: str) -> Handle:
        if (handle := self._handles.get(id_)) is None:
            raise RpcError(f"unknown file handle `{id_}`", NOT_FOUND)
        return handle

    def _file(self, sandbox: Sandbox, path: str) -> str:
        if sandbox.stat(path).kind != "file":
            raise RpcError(f"path `{self._home.shown(path)}` is not a file")
        return path

    def _uri(self, path: str) -> str:
        return uri_of(self._home.shown(path))


def refuse_links(sandbox: Sandbox, path: str) -> None:
    """Raise RpcError if a path leads through a link."""
    if _real(sandbox, path) != path:
        raise RpcError("path contains a symbolic link")


def _real(sandbox: Sandbox, path: str) -> str:
    """Return a path without links, which may lead to a file that is not there."""
    found = _run(sandbox, ["realpath", "-mz", "--relative-base=.", "--", path])
    return os.fsdecode(found.rstrip(b"\0"))


def _new(sandbox: Sandbox, path: str) -> str:
    """Return the path of a file or folder whose parent exists."""
    if not sandbox.stat(posixpath.dirname(path) or ".").is_dir:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    return path


def _run(sandbox: Sandbox, command: list[str]) -> bytes:
    ran = sandbox.run_command(command, timeout=SECONDS)
    if not ran.ok:
        message = ran.reason or ran.stderr.decode("utf-8", "replace").strip()[-500:]
        raise RpcError(f"{command[0]} failed: {message}", FAILED)
    return ran.stdout


def _kinds(found: FileInfo) -> dict[str, Any]:
    return {"isDirectory": found.is_dir, "isFile": found.kind == "file"}
