"""One run of code with all its outputs, as a value. Exports the outputs of outputs.py, too."""

from __future__ import annotations

import ast
import html
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from agent_tools.other_names import EXECUTION, refuse
from agent_tools.results.outputs import (
    Cause,
    Changes,
    Cleared,
    Died,
    Display,
    Error,
    FileChange,
    HostCall,
    MimeBundle,
    Notice,
    Omitted,
    Output,
    Picture,
    PictureStyle,
    Restarted,
    Result,
    StagedFile,
    Stream,
    Text,
    TimedOut,
    pictures_of,
    text_and_pictures,
)
from agent_tools.text import one_line

# Results of commands in a sandbox, as values: output, exit code and reason.

OnOutput = Callable[[Literal["stdout", "stderr"], bytes], object]
"""Called with the name of the stream and its bytes as they come."""

_Item = TypeVar("_Item")
_Whole = TypeVar("_Whole")
TIMED_OUT = 124
NOT_EXECUTABLE = 126
NOT_FOUND = 127
SIGNALLED = 128  # plus the number of the signal


@dataclass(frozen=True)
class CommandResult:
    """A command that has ended.

    Attributes:
        exit_code: the command's own; 128 + n for signal n, 124 for a time-out, 127 if there is no such program or
            folder, 126 if the program cannot be run.
        stdout: the bytes it wrote, at most the last `max_output`.
        stderr: likewise.
        timed_out: True if it was killed at its time limit.
        omitted_stdout: bytes of stdout that were left out at the beginning.
        omitted_stderr: likewise.
        duration: seconds from its start to its end, as the host saw it.
        reason: why the sandbox ended it, as a sentence without its full stop; '' if it ended by itself.
    """

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False
    omitted_stdout: int = 0
    omitted_stderr: int = 0
    duration: float = 0.0
    reason: str = ""

    @property
    def ok(self) -> bool:
        """True if the exit code is 0."""
        return self.exit_code == 0

    @property
    def truncated(self) -> bool:
        """True if bytes were left out."""
        return bool(self.omitted_stdout or self.omitted_stderr)

    @property
    def output(self) -> str:
        """Both streams as text, stdout first; bytes that are not UTF-8 are replaced."""
        return (self.stdout + self.stderr).decode("utf-8", "replace")

    @property
    def texts(self) -> tuple[str, str]:
        """Stdout and stderr as text. Bytes that are not UTF-8 are replaced; a first line says how much was left out."""
        return _told(self.stdout, self.omitted_stdout), _told(self.stderr, self.omitted_stderr)


def _told(data: bytes, omitted: int) -> str:
    note = f"[{omitted:,} bytes before this are left out]\n" if omitted else ""
    return note + data.decode("utf-8", "replace")


class Cursor(NamedTuple):
    """A position in the output of a command: bytes of each stream since its start."""

    stdout: int = 0
    stderr: int = 0


@dataclass(frozen=True)
class CommandOutput:
    """The output of a command from a cursor on.

    Attributes:
        cursor: where to read on.
        omitted: bytes after the given cursor that are no longer kept.
    """

    stdout: bytes
    stderr: bytes
    cursor: Cursor
    omitted: int = 0


__all__ = [
    "Cause",
    "Changes",
    "Cleared",
    "Died",
    "Display",
    "Error",
    "Execution",
    "FileChange",
    "HostCall",
    "MimeBundle",
    "Notice",
    "Omitted",
    "Output",
    "Picture",
    "Restarted",
    "Result",
    "StagedFile",
    "Stream",
    "Text",
    "TimedOut",
    "finished",
    "pictures_of",
]


@dataclass(frozen=True)
class Execution:
    """One run of code with all its outputs.

    Attributes:
        outputs: in order of arrival, with stream texts joined and with replaced and cleared displays applied.
        files: one StagedFile for each file that was passed in.
        changed: the files in work_dir that the run has made or changed; `changes` has them.
        duration: seconds the code ran, as the host saw it.
        queued: seconds this call waited for an earlier one on the same session.
        saved: the pictures after the tool saved them, in order, each once; empty if nothing saved them.
        connections: network connections since the last execution, in the order in which they ended.
        connections_left_out: the number of further connections that are not listed.
    """

    outputs: tuple[Output, ...] = ()
    files: tuple[StagedFile, ...] = ()
    changed: Changes = field(default=Changes(), compare=False)
    duration: float = 0.0
    queued: float = 0.0
    saved: tuple[Picture, ...] = ()
    connections: tuple[NetworkConnection, ...] = ()
    connections_left_out: int = 0

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            refuse(type(self).__name__, name, EXECUTION)

    @property
    def changes(self) -> tuple[FileChange, ...]:
        """The files in work_dir that the run has made or changed, by name.

        The first access looks at up to `max_listed_entries` (10,000) entries of work_dir. Read it before a later run
        changes or deletes files again: such files are left out.
        """
        return self.changed.files

    @property
    def changes_complete(self) -> bool:
        """False if `changes` may lack files: some could not be looked at, or have changed since the run."""
        return self.changed.is_complete

    @property
    def ok(self) -> bool:
        """True if all files passed in were staged, and the code ended without an exception or a time-out."""
        return self.error is None and all(file.name is not None for file in self.files)

    @property
    def stdout(self) -> str:
        """All text the code printed to stdout."""
        return self._stream("stdout")

    @property
    def stderr(self) -> str:
        """All text the code printed to stderr."""
        return self._stream("stderr")

    @property
    def result(self) -> Result | None:
        """The value of the last expression, if there was one."""
        return next((output for output in self.outputs if isinstance(output, Result)), None)

    @property
    def shown(self) -> str:
        """The texts of the result, and of displays without a picture, one below the other; '' if there are none."""
        found = (output for output in self.outputs if isinstance(output, (Result, Display)))
        return "\n".join(each.text for each in found if isinstance(each, Result) or not pictures_of(each))

    @property
    def error(self) -> Error | TimedOut | Died | None:
        """The exception, time-out or death that ended the code early, if one did."""
        return next((output for output in self.outputs if isinstance(output, (Error, TimedOut, Died))), None)

    @property
    def value(self) -> Any:
        """The value of the last expression if it is plain data: numbers, text, None, and containers of these.

        It is read from the text that the kernel shows: abbreviated values, and other objects such as a DataFrame or an
        array, are None. NumPy scalars are numbers. `nan` and `inf` are floats, which JSON does not have.
        """
        return plain_value(self.result.text) if self.result else None

    def blocks(self, pictures: PictureStyle = "inline") -> list[Text | Picture]:
        """Return the content for a chat model: text as Markdown and pictures, in order, without paths of the host.

        `pictures` is 'inline' to include them; with 'name' or 'none' the text only mentions them, with or without a
        name.
        """
        return text_and_pictures(self.outputs, self.files, self.pictures_in, pictures)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of the sandbox on the run: a repair of the code, a part that did not run, text of background code."""
        return tuple(output.text for output in self.outputs if isinstance(output, Notice))

    @property
    def host_calls(self) -> tuple[HostCall, ...]:
        """The calls of host functions, in the order in which they ended."""
        return tuple(output for output in self.outputs if isinstance(output, HostCall))

    @cached_property
    def pictures(self) -> tuple[Picture, ...]:
        """The PNG and JPEG pictures, in order, each once; with their paths once they are saved."""
        return self.saved or tuple(dict.fromkeys(each for output in self.outputs for each in pictures_of(output)))

    @property
    def images(self) -> tuple[bytes, ...]:
        """The bytes of the pictures."""
        return tuple(picture.data for picture in self.pictures)

    @property
    def figures(self) -> tuple[str, ...]:
        """The paths of the saved pictures; '' stands for one that could not be saved."""
        return tuple(picture.path for picture in self.saved)

    def __repr__(self) -> str:
        """Show the run in one line: how it ended and its number of outputs; changed files if they were looked for."""
        match self.error:
            case None:
                parts = ["ok" if self.ok else "a file is missing"]
            case Error(name, value):
                parts = [_cut(f"{name}: {value}")]
            case TimedOut() | Died() as ending:
                parts = [_cut(ending.text)]
        if self.result:
            parts.append(f"result {_cut(self.result.text)}")
        for name, count in (
            ("printed character", len(self.stdout) + len(self.stderr)),
            ("picture", len(self.pictures)),
            ("changed file", self.changed.known),
        ):
            if count:
                parts.append(f"{count:,} {name}{'' if count == 1 else 's'}")
        return f"Execution({', '.join(parts)}, {self.duration:.3g} s)"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Show the run in a notebook, with its pictures; HTML from user code is shown as text."""
        self.changed.look()
        shown = [
            f"<pre>{html.escape(each.text)}</pre>" if isinstance(each, Text) else f'<img src="{each.data_url}">'
            for each in self.blocks()
        ]
        return {"text/plain": repr(self), "text/html": "\n".join(shown)}

    def pictures_in(self, output: Output) -> tuple[Picture, ...]:
        """Return the pictures of one output, with their paths once they are saved."""
        return tuple(next((each for each in self.pictures if each == own), own) for own in pictures_of(output))

    def _stream(self, name: str) -> str:
        return "".join(output.text for output in self.outputs if isinstance(output, Stream) and output.name == name)


def _cut(text: str) -> str:
    """Return the beginning of a text in one line."""
    line = one_line(text[:81])
    return line if len(text) <= 80 else f"{line[:80]}..."


def finished(outputs: Generator[_Item, None, _Whole], on_output: Callable[[_Item], object] | None = None) -> _Whole:
    """Read a stream to its end, calling `on_output` with each output, and return the execution it made."""
    try:
        while True:
            output = next(outputs)
            if on_output:
                on_output(output)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        outputs.close()


# Plain data is read from the text that the kernel shows. The text is untrusted: it is bounded, parsed, and never run.


MAX_CHARS = 64 * 1024
SCALARS = frozenset(
    (
        *("float16", "float32", "float64", "longdouble", "complex64", "complex128", "str_", "bytes_"),
        *(f"{sign}{name}" for sign in ("", "u") for name in ("int8", "int16", "int32", "int64", "longlong")),
    )
)
"""Types of NumPy whose values are shown as `np.float64(1.5)`."""
MAX_PARTS = 10_000  # commas and brackets; each may become an object many times its size


def plain_value(text: str) -> Any:
    """Return the value that Python would read from a text of literals; None for any other text.

    `nan` and `inf` are floats, and a scalar of NumPy, such as `np.float64(1.5)`, is the number, text or truth in it.
    """
    if len(text) > MAX_CHARS or sum(map(text.count, ",([{")) > MAX_PARTS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SyntaxWarnings about escapes: the text is not source code
            found = ast.literal_eval(_Numbers().visit(ast.parse(text.strip(), mode="eval")))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return None if _is_cut(found) else found


class _Numbers(ast.NodeTransformer):
    """Replaces values without a literal in Python, such as `nan`, by constants."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(float(node.id)) if node.id in ("nan", "inf") else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return ast.Constant(node.attr == "True_") if _is_numpy(node) and node.attr in ("True_", "False_") else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        is_scalar = isinstance(node.func, ast.Attribute) and _is_numpy(node.func) and node.func.attr in SCALARS
        if is_scalar and len(node.args) == 1 and not node.keywords and not isinstance(node.args[0], ast.Call):
            inner: ast.expr = self.visit(node.args[0])
            return inner
        return node


def _is_numpy(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "np"


def _is_cut(value: Any) -> bool:
    """Return whether a value holds `...`, which stands for values that were left out."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if each is Ellipsis:
            return True
        if isinstance(each, dict):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, (list, tuple, set)):
            waiting += each
    return False


# A network connection of user code, as a value: names and numbers only.


ConnectionStatus = Literal["open", "closed", "refused", "failed"]


@dataclass(frozen=True)
class NetworkConnection:
    """One network connection that user code made or tried to make through the egress allowlist.

    A connection that outlives its run is reported as 'open', and again by the next execution.

    Attributes:
        host: the requested name or address; '' if it could not be read.
        port: 0 if it could not be read.
        status: 'refused' if the list does not allow it, 'failed' if it could not be made or broke.
        reason: a few words, '' for 'open' and 'closed'.
        bytes_in: bytes received in this execution.
        bytes_out: bytes sent in this execution.
        duration: seconds since it began.
    """

    host: str
    port: int
    status: ConnectionStatus
    reason: str = ""
    bytes_in: int = 0
    bytes_out: int = 0
    duration: float = 0.0

    @property
    def text(self) -> str:
        """The connection in one line for people."""
        ending = f" ({self.reason})" if self.reason else ""
        sizes = f"{self.bytes_in:,} bytes in, {self.bytes_out:,} out"
        return f"{self.host or '?'}:{self.port} {self.status}{ending}, {sizes}, {self.duration:.3g} s"


# A file of a sandbox, as a value.


FileKind = Literal["file", "folder", "link", "other"]


@dataclass(frozen=True)
class FileInfo:
    """One entry of a folder.

    Attributes:
        name: its name in the folder. Bytes that are not UTF-8 are decoded with `surrogateescape`.
        path: the caller's path of the folder, with the name.
        size: bytes.
        modified: seconds since 1970.
        mode: permission bits.
    """

    name: str
    path: str
    kind: FileKind
    size: int
    modified: float
    mode: int

    @property
    def is_dir(self) -> bool:
        """True for a folder."""
        return self.kind == "folder"
