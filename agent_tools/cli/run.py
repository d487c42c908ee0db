"""`agent-tools run`: code in, streamed output out."""

from __future__ import annotations

import sys
import tokenize
from contextlib import closing
from typing import Any

import click

from agent_tools.cli.image import ensure_with_progress
from agent_tools.cli.options import interpreter, sandbox_options
from agent_tools.cli.terminal.show import notes, show


@click.command()
@click.argument("script", required=False, type=click.Path(dir_okay=False, allow_dash=True))
@click.option("-c", "--code", help="Code to run, instead of a script.")
@click.option("-f", "--file", "files", multiple=True, help="A path or URL to bring into the sandbox; repeatable.")
@click.option("-t", "--timeout", type=float, help="Seconds the code may run.  [default: 30]")
@sandbox_options
def run(script: str | None, code: str | None, files: tuple[str, ...], timeout: float | None, **options: Any) -> None:
    """Run SCRIPT, code given with -c, or standard input, and print its output while it runs.

    Exit code 0: the code succeeded, or left with sys.exit(0); 1: it raised, timed out or died; 2: bad arguments; 3: no
    sandbox could be started.
    """
    source = _source(script, code)
    with interpreter(**options) as tool:
        ensure_with_progress(tool.options.recipe)
        for staged in tool.stage(files):
            if staged.name is None:
                raise click.UsageError(f"{staged.source!r}: {staged.error}")
            if staged.is_renamed:
                notes.print(f"{staged.source} is available as {staged.name}", style="yellow", markup=False)
        with closing(tool.stream({"code": source}, timeout=timeout)) as outputs:
            succeeded = show(outputs)
    sys.exit(0 if succeeded else 1)


def _source(script: str | None, code: str | None) -> str:
    if script is not None and code is not None:
        raise click.UsageError("Give a script or -c, not both.")
    if code is not None:
        return code
    if script not in (None, "-"):
        try:
            with tokenize.open(str(script)) as file:  # in the encoding that it says it has
                return file.read()
        except FileNotFoundError as exc:
            raise click.UsageError(f"There is no file {script!r}. To run code, write -c 'print(1)'.") from exc
        except (OSError, UnicodeDecodeError, SyntaxError) as exc:
            raise click.UsageError(f"{script!r} cannot be read ({exc}).") from exc
    if script is None and sys.stdin.isatty():
        raise click.UsageError("Nothing to run: give a script, -c 'print(1)', or code on standard input.")
    return sys.stdin.read()
