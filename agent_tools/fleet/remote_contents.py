"""The files, commands and variables of a session on another machine."""

from __future__ import annotations

import errno
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import islice
from typing import BinaryIO

from agent_tools.errors import InvalidParams, SandboxGone
from agent_tools.fleet.host_finder import HostFinder
from agent_tools.fleet.limits import PIECE_BYTES
from agent_tools.fleet.protocol import CommandPrint
from agent_tools.limits import Limits
from agent_tools.results.command import CommandResult, OnOutput
from agent_tools.results.execution import FileInfo
from agent_tools.results.variables import RestorePoint, VariablesReport
from agent_tools.runtime.commands.commands import Request
from agent_tools.runtime.commands.process import Process
from agent_tools.runtime.files.archives import Pieces

Cancelling = Callable[[str, threading.Event], AbstractContextManager[None]]
"""Is around something that the session's `cancel` with this event ends."""


class RemoteFiles:
    """As `GuestFiles`, which says what each does and raises; large files travel in pieces."""

    def __init__(self, reach: HostFinder, limits: Limits) -> None:
        self._reach = reach
        self._limits = limits

    def read(self, path: str, offset: int = 0, most: int | None = None) -> bytes:
        """Return a file's bytes from `offset` on, at most `most` of them."""
        bound = self._limits.max_transfer_bytes
        wanted = bound + 1 if most is None else min(most, bound)
        data = bytearray()
        while True:
            size = min(PIECE_BYTES, wanted - len(data))
            piece = self._reach.ask("do", "files", "read", path, offset + len(data), size)
            data += piece
            if len(piece) < PIECE_BYTES or len(data) >= wanted:
                break
        if len(data) > bound:
            raise OSError(errno.EFBIG, f"larger than {bound:,} bytes (max_transfer_bytes)", path)
        return bytes(data)

    def write(self, path: str, data: bytes | BinaryIO, *, append: bool = False) -> None:
        """Write a file anew, or at its end; folders above it are made."""
        for piece in in_pieces(data, self._limits.max_transfer_bytes, path):
            self._reach.ask("do", "files", "write", path, piece, {"append": append})
            append = True

    def scan(self, path: str) -> list[FileInfo]:
        """Return the entries of a folder, by name."""
        found: list[FileInfo] = self._reach.ask("do", "files", "scan", path)
        return found

    def stat(self, path: str, *, follow: bool = True) -> FileInfo:
        """Return one file or folder; with `follow`, what a link leads to."""
        found: FileInfo = self._reach.ask("do", "files", "stat", path, {"follow": follow})
        return found

    def move(self, path: str, to: str) -> None:
        """Move or rename a file or folder."""
        self._reach.ask("do", "files", "move", path, to)

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or an empty folder; with `recursive`, a folder with all in it."""
        self._reach.ask("do", "files", "remove", path, {"recursive": recursive})

    def make_dir(self, path: str) -> None:
        """Make a folder and those above it."""
        self._reach.ask("do", "files", "make_dir", path)


class RemoteCommands:
    """As `Commands`, as far as one is run to its end."""

    def __init__(self, reach: HostFinder, cancelling: Cancelling) -> None:
        self._reach = reach
        self._cancelling = cancelling

    def run(self, request: Request, on_output: OnOutput | None, cancelled: threading.Event) -> CommandResult:
        """Run a command to its end. A file that is its stdin is read whole before."""
        if request.stdin and not isinstance(request.stdin, bytes):
            request = replace(request, stdin=request.stdin.read())
        run = uuid.uuid4().hex
        with self._cancelling(run, cancelled):
            self._reach.refuse_closed()
            self._reach.placed()
            if cancelled.is_set():  # before there was a host to be told
                self._reach.tell("cancel", run)
            for item in self._reach.follow("command", run, request):
                match item:
                    case CommandPrint(stream, data) if on_output:
                        on_output(stream, data)
                    case CommandResult():
                        return item
        raise SandboxGone("The sandbox ended while a command ran in it.")

    def start(self, request: Request) -> Process:
        """Raise InvalidParams: a command in the background outlives one message and its answer."""
        raise InvalidParams(
            "A command in the background needs a sandbox of this machine; this one is on another. Use run_command, or "
            "let the shell start it: 'nohup ... >log 2>&1 &'."
        )


class RemoteVariables:
    """As `SessionVariables`."""

    def __init__(self, reach: HostFinder) -> None:
        self._reach = reach

    def define(self, source: str) -> None:
        """Run code that leaves no trace but its definitions."""
        self._reach.ask("do", "variables", "define", source)

    def undo(self) -> None:
        """Take the variables back to where they were before the last run."""
        self._reach.ask("do", "variables", "undo")

    def checkpoint(self) -> RestorePoint:
        """Keep the variables as they are now, for `rollback`."""
        mark: RestorePoint = self._reach.ask("do", "variables", "checkpoint")
        return mark

    def rollback(self, mark: RestorePoint) -> None:
        """Take the variables to where they were at a mark."""
        self._reach.ask("do", "variables", "rollback", mark)

    def save(self, path: str, most: int, write: Callable[[bytes], object], *, variables: bool) -> VariablesReport:
        """Write an archive of a folder, piece by piece; return the fate of the variables."""
        return self._report(uuid.uuid4().hex, write, "save", path, most, variables)

    def load(self, path: str, archive: Pieces, *, variables: bool) -> VariablesReport:
        """Unpack an archive into a folder, and set its variables; return their fate."""
        run = uuid.uuid4().hex
        sent = 0
        try:
            for piece in joined(archive):
                self._reach.ask("spool", run, sent, piece)
                sent += len(piece)
        except BaseException:
            self._reach.tell("drop", run)
            raise
        return self._report(run, bool, "load", path, variables)

    def _report(self, run: str, write: Callable[[bytes], object], what: str, *arguments: object) -> VariablesReport:
        for item in self._reach.follow(what, run, *arguments):
            if isinstance(item, VariablesReport):
                return item
            write(item)
        return VariablesReport(problem="the archive broke off")


def in_pieces(data: bytes | BinaryIO, most: float, path: str) -> Iterator[bytes]:
    """Yield data in pieces that fit into a message, at least one. Raises OSError: there is more than `most` bytes."""
    size = 0
    for number, piece in enumerate(_pieces(data)):
        size += len(piece)
        if size > most:
            raise OSError(errno.EFBIG, f"larger than {most:,} bytes (max_transfer_bytes)", path)
        if piece or not number:
            yield piece


def _pieces(data: bytes | BinaryIO) -> Iterator[bytes]:
    if not isinstance(data, (bytes, bytearray, memoryview)):
        yield data.read(PIECE_BYTES)
        while piece := data.read(PIECE_BYTES):
            yield piece
        return
    for at in range(0, max(1, len(data)), PIECE_BYTES):
        yield bytes(data[at : at + PIECE_BYTES])


def joined(chunks: Iterable[memoryview | bytes]) -> Iterator[bytes]:
    """Yield small pieces as larger ones, for a message each."""
    each = iter(chunks)
    while part := list(islice(each, 32)):
        yield b"".join(part)
