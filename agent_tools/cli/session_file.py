"""A session in a file: its files and variables, for `agent-tools repl --resume`."""

from __future__ import annotations

from pathlib import Path

import click

from agent_tools.cli.live_output import notes
from agent_tools.cli.output_file import read, written
from agent_tools.errors import AgentToolsError
from agent_tools.results.variables import VariablesReport
from agent_tools.tools.code_interpreter import CodeInterpreter


def resume(path: Path, tool: CodeInterpreter) -> None:
    """Bring back the session of a file, if there is one.

    Raises:
        ClickException: the file is not a session, its folder does not exist, or no sandbox could be started.
    """
    try:
        with read(path, tool.as_sandbox.workspace.path) as file:
            report = tool.load(file)
    except FileNotFoundError:
        if not path.absolute().parent.is_dir():
            raise click.ClickException(f"{path} cannot be saved when you leave: its folder does not exist.") from None
        notes.print(f"A new session; it is saved in {path} when you leave.", style="dim", markup=False)
        return
    except (AgentToolsError, OSError) as exc:
        raise click.ClickException(f"The session in {path} could not be resumed: {exc}") from exc
    _tell(report)


def save(path: Path, tool: CodeInterpreter) -> bool:
    """Write a session to a file and replace its content; return whether it could be saved."""
    try:
        with written(path, tool.as_sandbox.workspace.path, mode=0o600) as file:
            report = tool.as_sandbox.save_to(file)
    except (AgentToolsError, OSError) as exc:
        notes.print(
            f"The session was not saved in {path}: {getattr(exc, 'strerror', None) or exc}", style="red", markup=False
        )
        return False
    _tell(report)
    notes.print(f"Saved in {path}, with the files of work_dir.", style="dim", markup=False)
    return True


def _tell(report: VariablesReport) -> None:
    notes.print(str(report), style="dim" if report.is_complete else "yellow", markup=False)
