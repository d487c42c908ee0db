"""`agent-tools repl`: an interactive session in a sandbox."""

from __future__ import annotations

import codeop
import contextlib
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from agent_tools import settings
from agent_tools.cli.image import ensure_with_progress
from agent_tools.cli.live_output import notes, show
from agent_tools.cli.options import PathOption, interpreter, notebook_option, sandbox_options, write_notebook
from agent_tools.cli.session_file import resume, save
from agent_tools.errors import ToolServiceError
from agent_tools.sandbox.options import MAX_HISTORY
from agent_tools.tools.code_interpreter import CodeInterpreter

try:
    import readline
except ImportError:  # not every Python has it
    readline = None  # type: ignore[assignment]

HISTORY_LINES = 1_000
MAX_TEXT_CHARS = 4_000_000  # of one input's output: the default is for models
SAVE = "%save_session"
HELP = (
    "%undo: variables as before the last input   %restart: fresh kernel\n"
    "%files: list work_dir   %save_session FILE: keep all for --resume\n"
    "Ctrl-C: interrupt   exit or Ctrl-D: leave\n"
    "input() fails here, as for models: agent-tools jupyter answers it"
)


@click.command()
@click.option("-f", "--file", "files", multiple=True, help="A path or URL to bring into the sandbox; repeatable.")
@click.option("-t", "--timeout", type=float, help="Seconds one input may run.  [default: 30]")
@click.option(
    "--resume",
    "session",
    type=PathOption(dir_okay=False),
    help="Continue the session in this file, if it exists, and save it there when you leave.",
)
@notebook_option
@sandbox_options
def repl(
    files: tuple[str, ...], timeout: float | None, session: Path | None, notebook: Path | None, **options: Any
) -> None:
    """Run Python in a sandbox: variables live until you leave, figures are saved and their paths shown.

    A block ends with an empty line. Inputs are remembered in ~/.local/state/agent_tools/history.

    With --resume, variables and files outlive the sandbox, on this machine or another. Its files are unpacked into
    work_dir, over files of the same names, and its variables run code in the sandbox only: an untrusted file can do
    only what untrusted code can do there. Variables that cannot be saved, such as connections, are listed.
    """
    history = MAX_HISTORY if notebook else 0
    with interpreter(**options, limits={"max_text_chars": MAX_TEXT_CHARS}, history=history) as tool, _history():
        ensure_with_progress(tool.options)
        if session:
            resume(session, tool)
        for staged in tool.stage(files):
            notes.print(f"{staged.source}: {staged.name or staged.error}", markup=False)
        notes.print(f"Python in a sandbox. work_dir: {tool.work_dir}\n{HELP}", style="dim", markup=False)
        while (code := _read_block()) is not None:
            try:
                _obey(code, tool, timeout)
            except KeyboardInterrupt:
                notes.print("Interrupted.", style="yellow")
            except ToolServiceError as exc:
                notes.print(exc.message, style="red", markup=False)
        is_saved = not (session and tool.sandbox) or save(session, tool)
        if notebook:
            write_notebook(notebook, tool.as_sandbox.notebook(), tool.as_sandbox.workspace.path)
        if not is_saved:
            sys.exit(1)


def _obey(code: str, tool: CodeInterpreter, timeout: float | None) -> None:
    match code.strip():
        case "":
            return
        case "%restart":
            tool.restart()
            notes.print("A fresh kernel; variables are gone.", style="yellow")
        case "%undo":
            tool.undo()
            notes.print("Variables are as they were before the last input; files are as they are.", style="yellow")
        case "%files":
            code = "import os; print(*sorted(os.listdir()), sep='\\n')"
            _run(code, tool, timeout)
        case line if line.split()[0] == SAVE:
            _save(line.removeprefix(SAVE).strip(), tool)
        case "%help":
            notes.print(HELP, style="dim", markup=False)
        case _:
            _run(code, tool, timeout)


def _save(name: str, tool: CodeInterpreter) -> None:
    if name and tool.sandbox:
        save(Path(name).expanduser(), tool)
    else:
        notes.print(f"Write {SAVE} FILE, once there is something to save.", style="red", markup=False)


def _run(code: str, tool: CodeInterpreter, timeout: float | None) -> None:
    with closing(tool.stream({"code": code}, timeout=timeout)) as outputs:
        show(outputs, tool.as_sandbox.workspace.path)


def _read_block() -> str | None:
    """Read lines until they are a complete input for Python; return None to leave."""
    lines: list[str] = []
    while True:
        try:
            line = input(("... " if lines else ">>> ") if sys.stdin.isatty() else "")
        except EOFError:
            return "\n".join(lines) if lines else None
        except KeyboardInterrupt:
            print()
            return ""
        if not lines and line.strip() in {"exit", "quit", "exit()", "quit()"}:
            return None
        lines.append(line)
        if _is_complete(lines):
            return "\n".join(lines)


def _is_complete(lines: list[str]) -> bool:
    text = "\n".join(lines)
    if text.lstrip().startswith("%%"):  # a cell magic
        return len(lines) > 1 and not lines[-1].strip()
    if text.lstrip().startswith(("%", "!", "?")):
        return True
    try:
        return codeop.compile_command(text, symbol="single") is not None and (len(lines) == 1 or not lines[-1].strip())
    except (SyntaxError, ValueError, OverflowError):
        return len(lines) == 1 or not lines[-1].strip()  # the sandbox will explain it


@contextlib.contextmanager
def _history() -> Any:
    """Edit lines with a history file, where Python has readline."""
    if readline is None:
        yield
        return
    state = settings.state_dir()
    with contextlib.suppress(OSError):
        state.mkdir(parents=True, exist_ok=True)
        readline.read_history_file(state / "history")
    readline.set_history_length(HISTORY_LINES)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            readline.write_history_file(state / "history")
