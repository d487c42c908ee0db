"""The outputs that one run of code can yield, as values.

The MIME bundle and the message kinds behind these are the Jupyter messaging protocol's
(https://jupyter-client.readthedocs.io/en/stable/messaging.html). All text is neutralised (see text.py) and bounded.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Union

from agent_tools.limits import size_text
from agent_tools.results.variables import LOST, Variables

MimeBundle = Mapping[str, Any]
"""MIME type -> str; bytes for PICTURE_TYPES; any JSON value for application/json types."""


PICTURE_TYPES = {"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif"}
"""The MIME types of figures, and the suffixes of their files."""


@dataclass(frozen=True)
class Stream:
    """Text that the code printed. It may hold carriage returns; `text.fold_lines` applies them as a terminal does."""

    name: Literal["stdout", "stderr"]
    text: str


@dataclass(frozen=True)
class _Rich:
    """A value that comes in several forms, by MIME type."""

    data: MimeBundle

    @property
    def text(self) -> str:
        """Its text/plain form, or ''."""
        return str(self.data.get("text/plain", ""))


def _shown(output: _Rich) -> str:
    """Return an output in one line, without pictures and long text."""
    shown = []
    for mime, value in output.data.items():
        text = size_text(len(value)) if isinstance(value, bytes) else repr(value)
        shown.append(f"{mime!r}: {text if len(text) <= 80 else f'{text[:80]}...'}")
    return f"{type(output).__name__}({{{', '.join(shown)}}})"


@dataclass(frozen=True)
class Result(_Rich):
    """The value of the code's last expression."""

    __repr__ = _shown


@dataclass(frozen=True)
class Display(_Rich):
    """A figure, a table or HTML that the code displayed."""

    display_id: str | None = None
    is_update: bool = False

    __repr__ = _shown


@dataclass(frozen=True)
class Picture:
    """A figure that the code drew, as the kernel sent it. Pictures with equal bytes are equal, wherever they are saved.

    Attributes:
        path: the file it was saved as; '' if it is not saved.
    """

    mime: str
    data: bytes = field(repr=False)
    path: str = field(default="", compare=False)

    @property
    def suffix(self) -> str:
        """The suffix of its file name."""
        return PICTURE_TYPES[self.mime]

    @property
    def data_url(self) -> str:
        """The whole picture as a `data:` URL."""
        return f"data:{self.mime};base64,{base64.b64encode(self.data).decode()}"


@dataclass(frozen=True)
class Cleared:
    """The code cleared its outputs so far: now, or with `wait` when the next output comes."""

    wait: bool = False


@dataclass(frozen=True)
class Error:
    """The exception that ended the code."""

    name: str
    value: str
    traceback: str

    @property
    def text(self) -> str:
        """The traceback, or `name: value` if the kernel sent none."""
        return self.traceback or f"{self.name}: {self.value}"


@dataclass(frozen=True)
class TimedOut:
    """The code passed its time limit.

    Attributes:
        timeout: in seconds.
        state_kept: True if variables exist: as the code left them or, with `variables.kept`, as they were before it.
        where: the traceback of the interruption, or ''.
        variables: their state if the code did not stop when it was interrupted.
    """

    timeout: float
    state_kept: bool
    where: str = ""
    variables: Variables = field(default=LOST, compare=False)

    @property
    def text(self) -> str:
        """A sentence for people and models."""
        if self.variables.kept:
            known = self.variables.text
            kept = f"The code did not stop when interrupted, so its kernel was ended; {known}, files are kept."
        elif self.state_kept:
            kept = "The code was interrupted; variables are kept."
        else:
            lost = self.variables.text
            kept = f"The code did not stop when interrupted: the kernel was restarted; {lost}, files are kept."
        where = f"\n\n{self.where}" if self.where else ""
        return f"Timeout: Code execution exceeded the time limit.\nThe limit was {self.timeout:g} s. {kept}{where}"


Cause = Literal["", "work_dir_quota", "protocol_violation"]


@dataclass(frozen=True)
class Died:
    """The kernel ended while the code ran.

    `reason` is a sentence without its full stop. `cause` names the limit for which the code was killed, if any.
    `variables` says whether they are lost.
    """

    reason: str
    cause: Cause = field(default="", compare=False)
    variables: Variables = field(default=LOST, compare=False)

    @property
    def text(self) -> str:
        """A sentence for people and models."""
        if self.variables.kept:
            return f"KernelDied: {self.reason}; {self.variables.text}, files are kept."
        lost = self.variables.text
        return f"KernelDied: {self.reason}. V{lost[1:]}, files are kept; the next call gets a fresh kernel."


@dataclass(frozen=True)
class Restarted:
    """The kernel had ended before this code ran, so the code ran in another kernel; `variables` says which it has."""

    reason: str
    variables: Variables = field(default=LOST, compare=False)

    @property
    def text(self) -> str:
        """A sentence for people and models."""
        return f"The kernel was restarted before this code ran ({self.reason}); {self.variables.text_later}."


@dataclass(frozen=True)
class Omitted:
    """A part of the outputs was left out to stay within a limit. `what` names it and its amount.

    `is_text` is True for text of stdout and stderr.
    """

    what: str
    is_text: bool = field(default=False, compare=False)

    @property
    def text(self) -> str:
        """The note as it stands among the outputs."""
        return f"[... {self.what} left out ...]"


@dataclass(frozen=True)
class Notice:
    """A note of the sandbox on the run; no output is missing."""

    text: str


@dataclass(frozen=True)
class HostCall:
    """One finished call of a host function.

    Attributes:
        id: the guest's number of the call.
        arguments: a preview, cut to 200 characters.
        start: seconds since the run began.
        duration: seconds, with the time in the queue and the wait for an approval.
        error: the exception's type and message as sent to the code; '' if there was none.
        bytes_in: bytes of the arguments.
        bytes_out: bytes of the result.
    """

    id: int
    name: str
    arguments: str
    start: float
    duration: float
    status: Literal["ok", "error", "timeout", "cancelled", "denied", "refused"]
    error: str = ""
    bytes_in: int = 0
    bytes_out: int = 0

    @property
    def text(self) -> str:
        """One line for people and models."""
        ending = f": {self.error}" if self.error else ""
        return f"{self.name}({self.arguments}) {self.status} after {self.duration:.3g} s{ending}"


@dataclass(frozen=True)
class Text:
    """A text block of an answer for a chat model."""

    text: str


Output = Union[Stream, Result, Display, Cleared, Error, TimedOut, Died, Restarted, Omitted, Notice, HostCall]


@dataclass(frozen=True)
class FileChange:
    """A file in work_dir that a run has made or changed.

    Attributes:
        name: relative to work_dir.
        size: in bytes, when it was looked at.
        is_new: True if the run made the file; always False if the file system does not store creation times.
    """

    name: str
    size: int
    is_new: bool


class Changes:
    """The files in work_dir that a run has made or changed, by name. `find` looks for them at first access.

    Pickling looks for them, too. A file that has changed again since the run is left out; `is_complete` is then False.
    """

    def __init__(
        self, files: Sequence[FileChange] = (), *, is_complete: bool = True, find: Callable[[], Changes] | None = None
    ) -> None:
        self._files, self._is_complete, self._find = tuple(files), is_complete, find

    @property
    def files(self) -> tuple[FileChange, ...]:
        """The files that were found."""
        self.look()
        return self._files

    @property
    def known(self) -> int:
        """The number of files found; 0 before `look`."""
        return len(self._files)

    @property
    def is_complete(self) -> bool:
        """False if some files could not be looked at, or have changed since the run."""
        self.look()
        return self._is_complete

    @property
    def note(self) -> str:
        """A sentence for people and models if files may be missing; '' otherwise."""
        return "" if self.is_complete else "Not all files of work_dir could be looked at: some may be missing here."

    def look(self) -> None:
        """Look for the files now, unless this was done before."""
        if find := self._find:
            found = find()
            self._files, self._is_complete, self._find = found.files, found.is_complete, None

    def __reduce__(self) -> tuple[Callable[..., Changes], tuple[object, ...]]:
        return _changes, (self.files, self.is_complete)


def _changes(files: tuple[FileChange, ...], is_complete: bool) -> Changes:
    return Changes(files, is_complete=is_complete)


@dataclass(frozen=True)
class StagedFile:
    """A file that was passed in, and its name in work_dir.

    `source` is the caller's path or URL; `name` is None if the file could not be copied, and `error` says why.
    """

    source: str
    name: str | None
    is_renamed: bool = False
    error: str = ""


def pictures_of(output: Output) -> tuple[Picture, ...]:
    """Return the pictures of one output; of a figure in several formats only the first of PICTURE_TYPES."""
    if not isinstance(output, _Rich):
        return ()
    found = (Picture(mime, output.data[mime]) for mime in PICTURE_TYPES if isinstance(output.data.get(mime), bytes))
    return tuple(found)[:1]
