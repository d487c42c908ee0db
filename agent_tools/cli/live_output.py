"""The outputs of code on a terminal, while they arrive."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path, PurePath
from typing import TextIO

from rich.console import Console
from rich.style import Style

from agent_tools.cli.next_steps import for_shell
from agent_tools.limits import size_text
from agent_tools.machine.folder import FIGURE
from agent_tools.results.execution import (
    Changes,
    Cleared,
    Died,
    Display,
    Error,
    Execution,
    FileChange,
    HostCall,
    Notice,
    Omitted,
    Output,
    Restarted,
    Result,
    Stream,
    TimedOut,
    pictures_of,
)
from agent_tools.text import one_line

notes = Console(stderr=True, highlight=False)
MAX_FILES = 20


def show(outputs: Generator[Output, None, Execution], folder: Path) -> None:
    """Print outputs while they arrive, and at the end the paths of figures and of files written in `folder`."""
    try:
        while True:
            show_output(next(outputs), sys.stdout)
    except StopIteration as end:
        show_figures(end.value, folder)


def show_output(output: Output, stdout: TextIO) -> None:
    """Print one output: the code's text to `stdout`, all else to stderr. Pictures are for `show_figures`."""
    match output:
        case Stream(name, text):
            _write(text, stdout if name == "stdout" else sys.stderr)
        case Result() | Display():
            if output.text and (isinstance(output, Result) or not pictures_of(output)):
                _write(output.text + "\n", stdout)
        case Error() | TimedOut() | Died():
            notes.print(for_shell(output.text), style="red", markup=False, soft_wrap=True)
        case Omitted() | Restarted() | Notice():
            notes.print(output.text, style="yellow", markup=False, soft_wrap=True)
        case HostCall():
            notes.print(f"host call: {output.text}", style="dim", markup=False, soft_wrap=True)
        case Cleared():
            pass


def show_figures(execution: Execution, folder: Path) -> None:
    """Print the paths of an execution's figures, and of the files in `folder` that it wrote."""
    for path in execution.figures:
        _note(f"figure: {path or 'could not be saved'}", Path(path) if path else None)
    show_files(execution.changed, folder)


def show_files(changed: Changes, folder: Path) -> None:
    """Print the paths of files that were written, the first MAX_FILES of them."""
    for each in changed.files[:MAX_FILES]:
        _note(f"figure: {folder / each.name}" if is_figure(each) else _file(each, folder), folder / each.name)
    if (more := len(changed.files) - MAX_FILES) > 0:
        _note(f"and {more:,} more files in {folder}")
    if changed.note:
        _note(f"files: {changed.note}")


def is_figure(change: FileChange) -> bool:
    """Return whether `plt.show()` in a script has just written this file."""
    return change.is_new and bool(FIGURE.fullmatch(PurePath(change.name).name))


def _file(change: FileChange, folder: Path) -> str:
    return f"file: {folder / change.name} ({size_text(change.size)}{'' if change.is_new else ', changed'})"


def _note(text: str, path: Path | None = None) -> None:
    """Print a line that links to a path, on terminals with links."""
    style = Style(color="cyan", link=path.absolute().as_uri() if path else None)
    notes.print(one_line(text), style=style, markup=False, soft_wrap=True)


def _write(text: str, stream: TextIO) -> None:
    stream.write(text)
    stream.flush()
