"""The outputs of code on a terminal, while they arrive."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import TextIO

from rich.console import Console

from agent_tools.execution import (
    Cleared,
    Died,
    Display,
    Error,
    Execution,
    HostCall,
    Omitted,
    Output,
    Restarted,
    Result,
    Stream,
    TimedOut,
    pictures_of,
)

notes = Console(stderr=True, highlight=False)


def show(outputs: Generator[Output, None, Execution]) -> bool:
    """Print outputs while they arrive, and the paths of figures at the end. Return True if the code succeeded."""
    try:
        while True:
            show_output(next(outputs), sys.stdout)
    except StopIteration as end:
        show_figures(end.value)
        return end.value.ok or is_left(end.value.error)


def show_output(output: Output, stdout: TextIO) -> None:
    """Print one output: the code's own words to `stdout`, all else to stderr. Pictures are for `show_figures`."""
    match output:
        case Stream(name, text):
            _write(text, stdout if name == "stdout" else sys.stderr)
        case Result() | Display():
            if output.text and (isinstance(output, Result) or not pictures_of(output)):
                _write(output.text + "\n", stdout)
        case Error() | TimedOut() | Died():
            if not is_left(output):
                notes.print(output.text, style="red", markup=False, soft_wrap=True)
        case Omitted() | Restarted():
            notes.print(output.text, style="yellow", markup=False, soft_wrap=True)
        case HostCall():
            notes.print(f"host call: {output.text}", style="dim", markup=False, soft_wrap=True)
        case Cleared():
            pass


def is_left(output: Output | None) -> bool:
    """Return whether code has ended itself as a program does that has succeeded: `sys.exit()` or `sys.exit(0)`."""
    return isinstance(output, Error) and output.name == "SystemExit" and output.value in ("", "0", "None")


def show_figures(execution: Execution) -> None:
    """Print the paths of an execution's figures."""
    for path in execution.figures:
        notes.print(f"figure: {path or 'could not be saved'}", style="cyan", markup=False, soft_wrap=True)


def _write(text: str, stream: TextIO) -> None:
    stream.write(text)
    stream.flush()
