"""One run of code with all its outputs, as a value. Exports the outputs of outputs.py, too."""

from __future__ import annotations

import html
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from agent_tools.other_names import EXECUTION, refuse
from agent_tools.results.blocks import PictureStyle, text_and_pictures
from agent_tools.results.connections import NetworkConnection
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
    Restarted,
    Result,
    StagedFile,
    Stream,
    Text,
    TimedOut,
    pictures_of,
)
from agent_tools.results.plain_data import plain_value
from agent_tools.text import one_line

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
        """All text the code printed to stdout, with a note in place of text that was left out."""
        return self._stream("stdout")

    @property
    def stderr(self) -> str:
        """All text the code printed to stderr, with notes as in `stdout`."""
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
        """Notes of the sandbox on the run: a repair of the code, a part that did not run, text of background code, a
        picture that was left out, or that the kernel had ended before.
        """
        found = (each for each in self.outputs if isinstance(each, (Notice, Restarted, Omitted)))
        return tuple(each.text for each in found if not _is_text(each))

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
        """Return the text of a stream. A note on missing text belongs to the stream that printed last before it."""
        parts, last = list[str](), "stdout"
        for output in self.outputs:
            if isinstance(output, Stream):
                last = output.name
                parts += [output.text] if last == name else []
            elif _is_text(output) and last == name:
                parts.append(f"\n{output.text}\n")
        return "".join(parts)


def _is_text(output: Output) -> TypeGuard[Omitted]:
    """Return whether an output stands for text of a stream that was left out."""
    return isinstance(output, Omitted) and output.is_text


def _cut(text: str) -> str:
    """Return the beginning of a text in one line."""
    line = one_line(text[:81])
    return line if len(text) <= 80 else f"{line[:80]}..."


_Item = TypeVar("_Item")
_Whole = TypeVar("_Whole")


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
