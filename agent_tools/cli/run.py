"""`agent-tools run`: runs a script in a sandbox as `python` would."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import click

from agent_tools.cli.image import ensure_with_progress
from agent_tools.cli.live_output import is_figure, notes, show_files, show_output
from agent_tools.cli.next_steps import next_step
from agent_tools.cli.options import interpreter, notebook_option, sandbox_options, write_notebook
from agent_tools.errors import AgentToolsError
from agent_tools.limits import MAX_TIMEOUT, size_text
from agent_tools.machine.folder import opened
from agent_tools.results.commands import SIGNALLED, CommandResult
from agent_tools.results.execution import Changes, Execution
from agent_tools.results.notebook import MAX_BYTES, notebook_of
from agent_tools.results.outputs import Display, Error, Notice, Omitted, Output, Stream
from agent_tools.runtime.commands.tail import Tail
from agent_tools.runtime.files.workspace import watch_changes
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.text import neutralise
from agent_tools.tools.code_interpreter import CodeInterpreter

FIGURES_IN_FILES = {"MPLBACKEND": "module://agent_tools_guest.figure_files"}
INTERRUPTED = SIGNALLED + signal.SIGINT


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("script", required=False, metavar="[SCRIPT")
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...]")
@click.option("-c", "--code", help="Code to run instead of a script; the following words are its arguments.")
@click.option("-f", "--file", "files", multiple=True, help="A path or URL to copy into the sandbox; repeatable.")
@click.option("-t", "--timeout", type=float, help="Seconds it may run.  [default: a day]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end, instead of the output.")
@notebook_option
@sandbox_options
def run(
    script: str | None,
    args: tuple[str, ...],
    code: str | None,
    files: tuple[str, ...],
    timeout: float | None,
    as_json: bool,
    notebook: Path | None,
    **options: Any,
) -> None:
    """Run SCRIPT with ARGS as `python SCRIPT ARGS` would, in a sandbox; likewise -c CODE, or code on standard input.

    \b
    agent-tools run analysis.py --n 5            options of agent-tools go before the script
    agent-tools run -f data.csv analysis.py      data.csv lies beside the script
    agent-tools run --work-dir . src/main.py     with this whole folder, which it may change
    echo 'print(6 * 7)' | agent-tools run
    agent-tools run --json -c 'print(6 * 7)'     for programs

    All output is passed on as it arrives, and standard input goes to the script. The working folder is work_dir.
    Files that the script writes there are listed at the end, with the figures of `plt.show()`: figure-001.png, ...
    A script from elsewhere is copied into work_dir while it runs, alone: modules beside it come with -f or --work-dir.

    The exit code is the script's: 1 for an exception, n for sys.exit(n), 128+n for signal n (137: killed, as at the
    memory limit; 130: Ctrl-C), 124 at the time limit of -t. 2: bad arguments; 3: no sandbox could be started.

    --json prints {"exit_code", "stdout", "stderr", "error", "duration", "files": [{"path", "size", "is_new"}],
    "files_complete", "figures", "omitted": {"stdout", "stderr"}}: `error` is null or one line, and `omitted` counts
    the bytes left out before the last 10 MiB of each stream.
    """  # noqa: D301  (a backspace is click's mark for text that keeps its lines)
    argv, stdin = _arguments(script, args, code), _stdin()
    source, stdin = _source(argv, stdin) if notebook else (b"", stdin)
    with _interruptible(), interpreter(**options) as tool:
        ensure_with_progress(tool.options)
        _stage(tool, files)
        with _placed(tool, argv):
            result, changed = _ran(tool, argv, stdin, timeout, as_json=as_json)
        folder = tool.as_sandbox.workspace.path
        reason = _reason(tool, result, timeout)
        if as_json:
            print(json.dumps(_as_json(result, changed, folder, reason or _last_line(result))))
        else:
            show_files(changed, folder)
            if reason := reason or _next_step(tool, result):
                notes.print(f"agent-tools: {reason}", style="red", markup=False, soft_wrap=True)
        if notebook:
            write_notebook(notebook, _as_notebook(source, result, changed, folder), folder)
    sys.exit(result.exit_code)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Exit as an interrupted script does, also if none runs yet."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _arguments(script: str | None, args: Sequence[str], code: str | None) -> list[str]:
    """Return the arguments for Python.

    Raises:
        UsageError: there is nothing to run.
    """
    if code is not None:
        return ["-c", code, *([script] if script is not None else []), *args]
    if script is None and sys.stdin.isatty():
        raise click.UsageError("Nothing to run: give a script, -c 'print(1)', or code on standard input.")
    if script in (None, "-"):
        return ["-", *args]
    path = Path(str(script))
    if path.is_dir():
        raise click.UsageError(f"{script!r} is a directory; give the script in it, and the directory as --work-dir.")
    if not path.exists():
        raise click.UsageError(f"There is no file {script!r}. To run code, write -c 'print(1)'.")
    if path.suffix == ".ipynb":
        raise click.UsageError(
            f"{script!r} is a notebook, not a script. Run it in a sandbox with `agent-tools jupyter install` "
            "and `jupyter nbconvert --execute` or papermill, or convert it to a script: jupyter nbconvert --to script."
        )
    return [str(script), *args]


def _source(argv: Sequence[str], stdin: BinaryIO | None) -> tuple[bytes, BinaryIO | None]:
    """Return the code that Python is to run, and its standard input."""
    if argv[0] == "-c":
        return argv[1].encode(), stdin
    if argv[0] != "-":
        return Path(argv[0]).read_bytes(), stdin
    code = stdin.read() if stdin else b""
    return code, io.BytesIO(code)


def _stage(tool: CodeInterpreter, files: Sequence[str]) -> list[str]:
    """Copy files into work_dir; return their names there."""
    names = []
    for staged in tool.stage(files):
        if staged.name is None:
            raise click.UsageError(f"{staged.source!r}: {staged.error}")
        if staged.is_renamed:
            notes.print(f"{staged.source} is available as {staged.name}", style="yellow", markup=False)
        names.append(staged.name)
    return names


@contextlib.contextmanager
def _placed(tool: CodeInterpreter, argv: list[str]) -> Iterator[None]:
    """Copy the script into work_dir, under its name in `argv`; delete a copy at the end."""
    if argv[0] in ("-", "-c"):
        yield
        return
    workspace = tool.as_sandbox.workspace
    (argv[0],) = _stage(tool, argv[:1])
    try:
        yield
    finally:
        workspace.unstage(argv[0])


def _ran(
    tool: CodeInterpreter, argv: Sequence[str], stdin: BinaryIO | None, timeout: float | None, *, as_json: bool
) -> tuple[CommandResult, Changes]:
    """Run Python to its end; return it, and the files that are new or changed."""
    sandbox, replaced = tool.as_sandbox, list[str]()
    seen = {name: Tail(tool.options.limits.max_command_output) for name in ("stdout", "stderr")}

    def on_output(stream: str, data: bytes) -> None:
        seen[stream].add(data)
        if not as_json:
            _pass_on(stream, data)

    end = watch_changes(sandbox.workspace.path, tool.options.limits)
    sandbox.run_code("")  # files go in and come out around code, where the engine is elsewhere
    try:
        result = sandbox.run_command(
            ["python", *(["-u"] if sys.stdout.isatty() else []), *argv],
            stdin=stdin,
            env={**FIGURES_IN_FILES, **tool.options.isolation.env},
            timeout=MAX_TIMEOUT if timeout is None else timeout,
            on_output=on_output,
        )
    except KeyboardInterrupt:
        (stdout, omitted_stdout), (stderr, omitted_stderr) = (tail.since(0) for tail in seen.values())
        result = CommandResult(INTERRUPTED, stdout, stderr, False, omitted_stdout, omitted_stderr)
    if sandbox.is_alive:
        replaced = _fetched(sandbox, result)
    return result, end(replaced)


def _fetched(sandbox: Sandbox, result: CommandResult) -> list[str]:
    """Fetch files from an engine elsewhere; return the names of those that were replaced here."""
    try:
        execution = sandbox.run_code("")
    except AgentToolsError as exc:
        if not result.reason:  # else that is why nothing runs now
            notes.print(f"agent-tools: {exc}", style="yellow", markup=False, soft_wrap=True)
        return []
    for each in execution.outputs:
        if isinstance(each, (Omitted, Notice)):
            show_output(each, sys.stderr)
    return [each.name for each in execution.changes if not each.is_new]


def _pass_on(stream: str, data: bytes) -> None:
    file = (sys.stdout if stream == "stdout" else sys.stderr).buffer
    file.write(data)
    file.flush()


def _stdin() -> BinaryIO | None:
    """Return standard input without a buffer, whose lock a thread that reads would hold when Python ends."""
    if hasattr(signal, "SIGTTIN"):
        signal.signal(signal.SIGTTIN, signal.SIG_IGN)  # in the background a terminal is at its end; nothing stops
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    return getattr(sys.stdin, "buffer", None)


def _reason(tool: CodeInterpreter, result: CommandResult, timeout: float | None) -> str:
    """Return why the script was ended by something else than itself; '' otherwise."""
    number = result.exit_code - SIGNALLED
    if result.timed_out:
        return f"It was ended at its time limit of {timeout or result.duration:g} s; --timeout gives it more."
    if result.reason:
        return f"It was ended: {result.reason}."
    if number == signal.SIGKILL:
        limit = size_text(tool.options.isolation.memory)
        return f"It was killed, usually because it needs more memory than {limit}; --memory gives it more."
    if number > 0 and number != signal.SIGINT and number in {int(each) for each in signal.Signals}:
        return f"It was ended by {signal.Signals(number).name}."
    return ""


def _next_step(tool: CodeInterpreter, result: CommandResult) -> str:
    """Return what can be done about the script's error; '' if there is nothing to say."""
    sandbox = tool.as_sandbox
    return next_step(sandbox, result.texts[1]) if result.exit_code == 1 and sandbox.is_alive else ""


def _last_line(result: CommandResult) -> str | None:
    """Return the last line of a failed program, as `ZeroDivisionError: division by zero`; None if it succeeded."""
    if result.ok:
        return None
    lines = result.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {result.exit_code}"


def _as_notebook(source: bytes, result: CommandResult, changed: Changes, folder: Path) -> dict[str, Any]:
    """Return the run as a notebook of one cell, with its output and figures."""
    stdout, stderr = map(neutralise, result.texts)
    outputs: list[Output] = [each for each in (Stream("stdout", stdout), Stream("stderr", stderr)) if each.text]
    for figure in filter(is_figure, changed.files):
        with opened(folder, figure.name) as file:
            if file and figure.name.endswith(".png"):
                outputs.append(Display({"image/png": file.read(MAX_BYTES)}))
    if not result.ok:
        outputs.append(Error("SystemExit", str(result.exit_code), _last_line(result) or ""))
    return notebook_of([(source.decode("utf-8", "replace"), Execution(tuple(outputs), duration=result.duration))])


def _as_json(result: CommandResult, changed: Changes, folder: Path, error: str | None) -> dict[str, Any]:
    changes = changed.files
    return {
        "exit_code": result.exit_code,
        "stdout": result.stdout.decode("utf-8", "replace"),
        "stderr": result.stderr.decode("utf-8", "replace"),
        "error": error,
        "duration": round(result.duration, 3),
        "files": [{"path": str(folder / each.name), "size": each.size, "is_new": each.is_new} for each in changes],
        "files_complete": changed.is_complete,
        "figures": [str(folder / each.name) for each in changes if is_figure(each)],
        "omitted": {"stdout": result.omitted_stdout, "stderr": result.omitted_stderr},
    }
