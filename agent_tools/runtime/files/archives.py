"""Archives of a sandbox: its files and, on request, its variables, as a tar that the guest writes and reads.

The host reads only the first name in it, which shows whether there are variables. The kernel sends and receives them
within the sandbox (guest/files/archive.py); its report on them is read here, within limits.
"""

from __future__ import annotations

import errno
import itertools
import logging
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from agent_tools.errors import InvalidParams
from agent_tools.limits import Limits
from agent_tools.results.variables import MissingVariable, VariablesReport
from agent_tools.runtime.files.file_conversation import Conversation, Head, pieces
from agent_tools.runtime.files.guest_files import GuestFiles
from agent_tools.text import one_line

MARK = b".agent_tools.variables"
NAME_BYTES = 100  # of a tar's first field, ustar(5)
MAX_NAME = 200  # characters of a variable's name
MAX_REASON = 300
MAX_LEFT_OUT = 20  # files that a guest names
UNREADABLE = "the sandbox gave no report that could be understood"
NO_ARCHIVE = "The archive cannot be read: give what `save` made, or a tar whose members stay in the folder."
NO_FILES = ""  # for a path: the variables alone

log = logging.getLogger(__name__)

Pieces = Iterator[memoryview]


@dataclass
class WithVariables:
    """A transfer of an archive with variables, which the kernel sends or receives at `address`, a socket's name."""

    talk: Conversation
    address: str
    limits: Limits

    def content(self, most: int) -> Iterator[bytes]:
        """Yield at most `most` bytes of the archive. Raises OSError."""
        return self.talk.content(most)

    def give(self, archive: Pieces) -> None:
        """Send the archive. Raises OSError."""
        self.talk.give(archive)

    def report(self) -> VariablesReport:
        """Return the kernel's report on the variables. Raises OSError."""
        head = self.talk.answer()
        warn_of_left_out(head)
        return read_report(head, self.limits)


class Archives:
    """Saves and loads folders of one sandbox. Any thread may call any method."""

    def __init__(self, files: GuestFiles, limits: Limits) -> None:
        self._files = files
        self._limits = limits

    def save(self, path: str, most: int) -> Iterator[bytes]:
        """Yield a tar of a folder, in pieces, with its files, folders and links; links are not followed.

        What the sandbox cannot read is left out and logged.

        Raises:
            OSError: it cannot be read; EFBIG beyond `most` bytes.
        """
        with self._files.asking(path) as talk:
            talk.ask({"op": "save", "path": path, "variables": False})
            yield from talk.content(most)
            warn_of_left_out(talk.answer())

    def load(self, path: str, archive: Pieces) -> None:
        """Unpack a tar into a folder, within the sandbox: the host reads none of its members.

        Errors as for `loading`.
        """
        with _readable(), self._files.asking(path) as talk:
            talk.ask({"op": "load", "path": path, "variables": False}, archive)

    def put_folder(self, path: str, folder: Path) -> None:
        """Copy a trusted folder of this machine into a folder, under its own name. Errors as for `loading`."""
        with tempfile.TemporaryFile() as file:
            with tarfile.open(fileobj=file, mode="w") as tar:
                tar.add(folder, folder.name)
            file.seek(0)
            self.load(path, pieces(file))

    @contextmanager
    def saving(self, path: str) -> Iterator[WithVariables]:
        """Begin to save a folder and the variables, or only variables if the path is NO_FILES. Raises OSError."""
        with self._with_variables("save", path) as asked:
            yield asked

    @contextmanager
    def loading(self, path: str) -> Iterator[WithVariables]:
        """Begin to load a folder and the variables.

        Raises:
            InvalidParams: it is not a tar, or a member of it leads out of the folder.
            OSError: its contents could not be written.
        """
        with _readable(), self._with_variables("load", path) as asked:
            yield asked

    @contextmanager
    def _with_variables(self, op: str, path: str) -> Iterator[WithVariables]:
        seconds = self._limits.sync_timeout + self._limits.variables_timeout
        with self._files.asking(path or ".") as talk:
            talk.deadline += self._limits.variables_timeout
            address = talk.ask({"op": op, "path": path, "variables": seconds}).get("address")
            if not isinstance(address, str) or not address.isascii() or len(address) > MAX_NAME:
                raise ValueError("a malformed address")
            yield WithVariables(talk, address, self._limits)


@contextmanager
def _readable() -> Iterator[None]:
    """Raise a clear error if the sandbox cannot read the archive."""
    try:
        yield
    except OSError as exc:
        if exc.errno != errno.EINVAL:
            raise
        raise InvalidParams(NO_ARCHIVE) from exc


def opened(archive: bytes | BinaryIO) -> tuple[bool, Pieces]:
    """Return whether an archive has variables, and its pieces."""
    begun = pieces(archive)
    first = next(begun, memoryview(b""))
    return bytes(first[:NAME_BYTES]).rstrip(b"\0") == MARK, itertools.chain([first], begun)


def warn_of_left_out(head: Head) -> None:
    """Log the files that the guest says it could not read.

    Raises:
        ValueError: it is malformed, or names too many.
    """
    left_out, more = head.get("left_out", []), head.get("more", 0)
    if not isinstance(left_out, list) or len(left_out) > MAX_LEFT_OUT or type(more) is not int or more < 0:
        raise ValueError("a malformed list of files")
    if left_out:
        named = ", ".join(f"{each.name} ({each.reason})" for each in map(_missing, left_out))
        named += f" and {more:,} more" if more else ""
        log.warning("Not in the archive, since the sandbox cannot read them: %s", named)


def read_report(head: Head, limits: Limits) -> VariablesReport:
    """Parse the untrusted report of a guest on its variables.

    Raises:
        ValueError: it is malformed, or has too many variables.
    """
    report = head.get("report")
    if report is None:
        return VariablesReport(problem=UNREADABLE)
    if not isinstance(report, dict):
        raise ValueError("a malformed report")
    kept, missing = report.get("kept"), report.get("missing")
    if not isinstance(kept, list) or not isinstance(missing, list):
        raise ValueError("a malformed report")
    if len(kept) + len(missing) > 2 * limits.max_variables:
        raise ValueError("a report of too many variables")
    return VariablesReport(tuple(_text(name, MAX_NAME) for name in kept), tuple(map(_missing, missing)))


def _missing(entry: object) -> MissingVariable:
    if not isinstance(entry, list) or len(entry) != 2:
        raise ValueError("a malformed report")
    return MissingVariable(_text(entry[0], MAX_NAME), _text(entry[1], MAX_REASON))


def _text(value: object, most: int) -> str:
    if not isinstance(value, str):
        raise ValueError("a malformed report")
    return one_line(value[:most])
