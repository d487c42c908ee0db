"""One run of code with all its outputs, as a value. outputs.py has what it can yield, and so has this."""

from __future__ import annotations

from collections.abc import Generator
from functools import cached_property
from typing import Any

from agent_tools.blocks import PictureStyle, text_and_pictures
from agent_tools.connection import NetworkConnection
from agent_tools.guest.wire.frozen import frozen
from agent_tools.outputs import (
    Cause,
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
from agent_tools.plain_value import plain_value

__all__ = [
    "Cause",
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


@frozen
class Execution:
    """One run of code with all its outputs.

    Attributes:
        outputs: in order of arrival; consecutive stream texts joined, replaced and cleared displays settled.
        files: staged files, one for each that was passed in.
        changes: files in work_dir that are new or changed, by name.
        duration: seconds the code ran, as the host saw it.
        queued: seconds this call waited for an earlier one on the same session.
        saved: the pictures after the tool saved them, in order, each once; empty if nothing saved them.
        connections: what the code did on its network by list since the last execution, in the order in which it ended.
        connections_left_out: how many more there were than are kept.
    """

    outputs: tuple[Output, ...] = ()
    files: tuple[StagedFile, ...] = ()
    changes: tuple[FileChange, ...] = ()
    duration: float = 0.0
    queued: float = 0.0
    saved: tuple[Picture, ...] = ()
    connections: tuple[NetworkConnection, ...] = ()
    connections_left_out: int = 0

    @property
    def ok(self) -> bool:
        """True if the code had all files that were passed in, and ran to its end without an exception or a time-out."""
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
    def error(self) -> Error | TimedOut | Died | None:
        """The exception, time-out or death that ended the code early, if one did."""
        return next((output for output in self.outputs if isinstance(output, (Error, TimedOut, Died))), None)

    @property
    def value(self) -> Any:
        """The value of the last expression where it is plain data: numbers, text, None, and containers of these.

        It is read from the text that the kernel shows, so what is abbreviated there, and every other object, is None.
        """
        return plain_value(self.result.text) if self.result else None

    def blocks(self, pictures: PictureStyle = "inline") -> list[Text | Picture]:
        """Return what a chat model is handed: text as Markdown and pictures, in order, without any path of the host.

        `pictures` are 'inline', among the text, or only told by 'name' or by 'none'.
        """
        return text_and_pictures(self.outputs, self.files, self.pictures_in, pictures)

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

    def pictures_in(self, output: Output) -> tuple[Picture, ...]:
        """Return the pictures of one of its outputs, with their paths once they are saved."""
        return tuple(next((each for each in self.pictures if each == own), own) for own in pictures_of(output))

    def _stream(self, name: str) -> str:
        return "".join(output.text for output in self.outputs if isinstance(output, Stream) and output.name == name)


def finished(outputs: Generator[Output, None, Execution]) -> Execution:
    """Read a stream of outputs to its end and return the execution it made."""
    try:
        while True:
            next(outputs)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        outputs.close()
