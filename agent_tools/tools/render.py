"""An execution as Markdown, with the headings that prompts and front ends of Qwen-Agent's tool expect."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from agent_tools.execution import (
    Cleared,
    Died,
    Display,
    Error,
    Execution,
    HostCall,
    Omitted,
    Output,
    Picture,
    Restarted,
    Result,
    StagedFile,
    Stream,
    TimedOut,
)
from agent_tools.text import fence, fold_lines, one_line

NOTHING = "Finished execution."


def markdown(execution: Execution, url_of: Callable[[str], str] = str) -> str:
    """Return an execution as Markdown. `url_of` turns a saved picture's path into its link.

    Blocks come in the order of the outputs: `stdout:`, `stderr:`, `execute_result:`, `display_data:`, `error:`,
    `note:`, each followed by a fence that nothing inside can close; a figure is `![fig-001](url)`, numbered from 1 in
    each call. A picture that is not saved is noted.
    """
    writer = _Writer(execution, url_of)
    for output in execution.outputs:
        writer.add(output)
    shown = "\n\n".join(writer.finish()) or NOTHING
    notes = file_notes(execution.files)
    return f"{notes}\n\n{shown}" if notes else shown


def file_notes(files: Sequence[StagedFile]) -> str:
    """Return a block that names the staged files which have another name or could not be brought in; '' without any."""
    lines = [one_line(_note(file)) for file in files if file.is_renamed or file.name is None]
    return _block("files", "\n".join(lines)) if lines else ""


def _note(file: StagedFile) -> str:
    return (
        f"{file.source} is available as {file.name}" if file.name else f"{file.source} is not available: {file.error}"
    )


def _block(heading: str, text: str) -> str:
    return f"{heading}:\n\n{fence(text)}"


class _Writer:
    """Collects blocks; stream text that belongs together becomes one block, notes of missing text included."""

    def __init__(self, execution: Execution, url_of: Callable[[str], str]) -> None:
        self.execution = execution
        self.url_of = url_of
        self.blocks: list[str] = []
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
            case Omitted() | Restarted():
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

    def finish(self) -> list[str]:
        self._end_stream()
        if self.has_failed and self.host_calls:  # what was done cannot be undone, and should not be done twice
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
            self.blocks.append(_block(self.stream_name, text))
        self.stream_name, self.stream_text = "", []

    def _add(self, heading: str, text: str) -> None:
        self._end_stream()
        self.blocks.append(_block(heading, fold_lines(text)))

    def _rich(self, output: Result | Display) -> None:
        self._end_stream()
        pictures = self.execution.pictures_in(output)
        for picture in pictures:
            if picture not in self.figures:  # the same figure shown twice is one figure
                self.figures.append(picture)
                self._figure(len(self.figures), picture)
        if output.text and (isinstance(output, Result) or not pictures):
            self._add("execute_result" if isinstance(output, Result) else "display_data", output.text)

    def _figure(self, number: int, picture: Picture) -> None:
        if picture.path:
            self.blocks.append(f"![fig-{number:03d}]({_link_target(self.url_of(picture.path))})")
        else:
            self._add("note", f"fig-{number:03d} could not be saved.")


def _link_target(url: str) -> str:
    """Return a path or URL with all escaped that could end the Markdown link early."""
    return re.sub(r"[\x00-\x20()<>\\\x7f]", lambda found: f"%{ord(found[0]):02X}", url)
