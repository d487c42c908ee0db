"""Outputs on a terminal, as they come."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console
from rich.syntax import Syntax

from agent_tools.execution import (
    Cleared,
    Died,
    Display,
    Error,
    HostCall,
    Omitted,
    Output,
    Restarted,
    Result,
    Stream,
    TimedOut,
    pictures_of,
)
from agent_tools.tools.code_interpreter import CodeInterpreter

notes = Console(stderr=True, highlight=False)


def show(outputs: Iterable[Output], tool: CodeInterpreter) -> bool:
    """Print outputs while they arrive: text where it belongs, figures as saved paths. Whether the code succeeded."""
    succeeded = True
    for output in outputs:
        match output:
            case Stream(name, text):
                stream = sys.stdout if name == "stdout" else sys.stderr
                stream.write(text)
                stream.flush()
            case Result() | Display():
                _show_rich(output, tool)
            case Error() | TimedOut() | Died():
                succeeded = False
                notes.print(output.text, style="red", markup=False)
            case Omitted() | Restarted():
                notes.print(output.text, style="yellow", markup=False)
            case HostCall():
                notes.print(f"host call: {output.text}", style="dim", markup=False)
            case Cleared():
                pass
    return succeeded


def _show_rich(output: Result | Display, tool: CodeInterpreter) -> None:
    pictures = [data for _, data in pictures_of(output)]
    for path in tool.save_pictures(pictures):
        notes.print(f"figure: {path or 'could not be saved'}", style="cyan", markup=False, soft_wrap=True)
    if output.text and (isinstance(output, Result) or not pictures):
        sys.stdout.write(output.text + "\n")
        sys.stdout.flush()


def show_code(code: str) -> None:
    """Print code with colours, to a terminal only."""
    Console().print(Syntax(code, "python", background_color="default"))
