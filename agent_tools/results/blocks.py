"""The outputs of a run as blocks, in order: text under the headings that Qwen-Agent's prompts expect, and figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Literal

from agent_tools.results.outputs import (
    Cleared,
    Died,
    Display,
    Error,
    HostCall,
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
)
from agent_tools.text import fence, fold_lines, one_line

NOTHING = "Finished execution."
PictureStyle = Literal["inline", "name", "none"]
PicturesIn = Callable[[Output], tuple[Picture, ...]]
"""Returns the pictures of an output."""
Show = Callable[[int, Picture], "str | Picture"]
"""Returns the text for a figure, given its number in the run, from 1."""


def blocks_of(outputs: Sequence[Output], pictures_in: PicturesIn, show: Show) -> list[str | Picture]:
    """Return blocks in the order of the outputs; the text of a block cannot close the fence of another.

    Their headings are `stdout:`, `stderr:`, `execute_result:`, `display_data:`, `error:` and `note:`.
    """
    writer = _Writer(pictures_in, show)
    for output in outputs:
        writer.add(output)
    return writer.finish()


def text_and_pictures(
    outputs: Sequence[Output], files: Sequence[StagedFile], pictures_in: PicturesIn, style: PictureStyle
) -> list[Text | Picture]:
    """Return blocks for a chat model, with neighbouring text joined into one `Text`, and without paths of the host."""
    named = [replace(file, source=PurePath(file.source).name) for file in files]
    notes = file_notes(named)
    joined: list[list[str] | Picture] = [[notes]] if notes else []
    for each in blocks_of(outputs, pictures_in, _SHOWN[style]):
        if isinstance(each, Picture):
            joined.append(each)
        elif joined and isinstance(last := joined[-1], list):
            last.append(each)
        else:
            joined.append([each])
    return [each if isinstance(each, Picture) else Text("\n\n".join(each)) for each in joined] or [Text(NOTHING)]


def file_notes(files: Sequence[StagedFile]) -> str:
    """Return a block that names staged files which were renamed or could not be copied; '' if there are none."""
    lines = [one_line(_note(file)) for file in files if file.is_renamed or file.name is None]
    return block("files", "\n".join(lines)) if lines else ""


def block(heading: str, text: str) -> str:
    """Return text under a heading, in a fence that the text cannot close."""
    return f"{heading}:\n\n{fence(text)}"


def _note(file: StagedFile) -> str:
    return (
        f"{file.source} is available as {file.name}" if file.name else f"{file.source} is not available: {file.error}"
    )


def _named(number: int, picture: Picture) -> str:
    return f"[fig-{number:03d}: {picture.mime}, {len(picture.data):,} bytes]"


_SHOWN: dict[PictureStyle, Show] = {
    "inline": lambda _number, picture: replace(picture, path=""),
    "name": _named,
    "none": lambda number, _picture: f"[fig-{number:03d} is not shown]",
}


class _Writer:
    """Collects blocks and joins consecutive text of a stream, with notes of missing text, into one block."""

    def __init__(self, pictures_in: PicturesIn, show: Show) -> None:
        self.pictures_in = pictures_in
        self.show = show
        self.blocks: list[str | Picture] = []
        self.figures: list[Picture] = []
        self.stream_name = ""
        self.stream_text: list[str] = []
        self.host_calls: list[str] = []
        self.has_failed = False

    def add(self, output: Output) -> None:
        match output:
            case Stream(name, text):
                self._stream(name, text)
            case Omitted() if self.stream_text:
                self.stream_text.append(f"\n{output.text}\n")
            case Omitted() | Restarted() | Notice():
                self._add("note", output.text)
            case Result() | Display():
                self._rich(output)
            case Error() | TimedOut() | Died():
                self._add("error", output.text)
                self.has_failed = True
            case HostCall():
                self.host_calls.append(output.text)
            case Cleared():
                pass

    def finish(self) -> list[str | Picture]:
        self._end_stream()
        if self.has_failed and self.host_calls:  # host calls cannot be undone and should not be repeated
            self._add("host calls made before", "\n".join(self.host_calls))
        return self.blocks

    def _stream(self, name: str, text: str) -> None:
        if name != self.stream_name:
            self._end_stream()
            self.stream_name = name
        self.stream_text.append(text)

    def _end_stream(self) -> None:
        text = fold_lines("".join(self.stream_text))
        if text:
            self.blocks.append(block(self.stream_name, text))
        self.stream_name, self.stream_text = "", []

    def _add(self, heading: str, text: str) -> None:
        self._end_stream()
        self.blocks.append(block(heading, fold_lines(text)))

    def _rich(self, output: Result | Display) -> None:
        self._end_stream()
        pictures = self.pictures_in(output)
        for picture in pictures:
            if picture not in self.figures:  # the same figure shown twice is one figure
                self.figures.append(picture)
                self.blocks.append(self.show(len(self.figures), picture))
        if output.text and (isinstance(output, Result) or not pictures):
            self._add("execute_result" if isinstance(output, Result) else "display_data", output.text)
