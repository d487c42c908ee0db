"""`agent-tools codex`: the sandbox of Codex, for `program` in its environments.toml."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from agent_tools.cli.executors import executor_options, ready_config, run_until_stopped
from agent_tools.cli.folder_copy import copied
from agent_tools.cli.live_output import notes
from agent_tools.cli.options import PathOption, absolute, given
from agent_tools.machine.own_command import OWN_COMMAND
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.codex.stdio import serve


@click.group(invoke_without_command=True)
@click.option(
    "--folder",
    type=PathOption(file_okay=False, exists=True),
    default=".",
    callback=absolute,
    help="The project.  [default: this folder]",
)
@click.option("--read-only", is_flag=True, help="Work on a copy of the project, without its .git.")
@click.option(
    "--diff",
    type=PathOption(dir_okay=False),
    callback=absolute,
    help="With --read-only: write the changes there as a patch.",
)
@executor_options
@click.pass_context
def codex(context: click.Context, /, folder: Path, read_only: bool, diff: Path | None, **options: Any) -> None:
    """Serve Codex's exec-server protocol on stdin and stdout: its commands and file edits happen in a sandbox.

    \b
    agent-tools codex config >> ~/.codex/environments.toml
    agent-tools codex --read-only --diff /tmp/changes.patch config
    """  # noqa: D301  (a backspace is click's mark for text that keeps its lines)
    if context.invoked_subcommand:
        return
    if diff and not read_only:
        raise click.UsageError("--diff goes with --read-only: without it, the project itself is changed.")
    named, place = str(folder), copied(folder, diff) if read_only else nullcontext(folder)
    with place as work_dir, Sandbox(ready_config(work_dir=work_dir, **options)) as sandbox:
        run_until_stopped(serve(sandbox, named))


@codex.command()
@click.option("--name", default="sealed", show_default=True, help="Of the environment.")
@click.pass_context
def config(context: click.Context, /, name: str) -> None:
    """Print what goes into Codex's environments.toml, with the options given before `config`."""
    assert context.parent
    notes.print("For Codex, in ~/.codex/environments.toml:", style="dim", markup=False)
    program, *args = (*OWN_COMMAND, "codex", *given(context.parent))
    lines = (
        f"default = {json.dumps(name, ensure_ascii=False)}",
        "include_local = false  # nothing runs on this machine itself",
        "",
        "[[environments]]",
        f"id = {json.dumps(name, ensure_ascii=False)}",
        f"program = {json.dumps(program, ensure_ascii=False)}",
        f"args = {json.dumps(args, ensure_ascii=False)}",  # JSON's strings are TOML's, too, but for pairs of escapes
        "initialize_timeout_sec = 60",
    )
    click.echo("\n".join(lines))
