"""`agent-tools codex`: the sandbox of Codex, for `program` in its environments.toml."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import click

from agent_tools.cli import options as shared
from agent_tools.cli.image import ensure_with_progress
from agent_tools.cli.live_output import notes
from agent_tools.cli.options import PathOption, given, limit_options
from agent_tools.cli.output_file import written
from agent_tools.cli.until_stopped import run_until_stopped
from agent_tools.errors import InvalidParams
from agent_tools.machine.own_command import OWN_COMMAND
from agent_tools.machine.removal import remove_tree
from agent_tools.runtime.files.temp_work_dir import make_temp_work_dir
from agent_tools.sandbox.options import Options
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.codex.stdio import serve

DIFF_SECONDS = 60
_DIFF = ("diff", "--no-index", "--no-prefix", "--binary", "--no-ext-diff", "--no-textconv", "--no-color")


@click.group(invoke_without_command=True)
@click.option("--folder", type=PathOption(file_okay=False), default=".", help="The project.  [default: this folder]")
@click.option("--read-only", is_flag=True, help="Work on a copy of the project, without its .git.")
@click.option("--diff", type=PathOption(dir_okay=False), help="With --read-only: write the changes there as a patch.")
@click.option("--audit", metavar="FILE", help="Write there who ran what (docs/audit.md).")
@limit_options
@click.option("--set", "others", multiple=True, metavar="NAME=VALUE", help="Any other option or limit, e.g. pids=64.")
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
    named = str(folder.absolute())
    with _copied(folder, diff) if read_only else nullcontext(folder) as work_dir:
        cfg = shared.config(work_dir=work_dir, **options)
        ensure_with_progress(Options.read(cfg))
        with Sandbox(cfg) as sandbox:
            run_until_stopped(serve(sandbox, named))


@contextmanager
def _copied(folder: Path, diff: Path | None) -> Iterator[Path]:
    """Yield a copy of a folder; write at the end how it differs."""
    if diff and not shutil.which("git"):
        raise click.UsageError("--diff needs git on this machine.")
    top = make_temp_work_dir()
    try:
        shutil.copytree(folder, top / "a", symlinks=True, ignore=shutil.ignore_patterns(".git"))
        shutil.copytree(top / "a", top / "b", symlinks=True)
        yield top / "b"
        if diff:
            _write_diff(top, diff, folder)
    except shutil.Error as exc:
        raise InvalidParams(f"{folder} cannot be copied: {exc.args[0][0][2]}. Leave out --read-only.") from exc
    finally:
        remove_tree(top)


def _write_diff(top: Path, path: Path, folder: Path) -> None:
    """Write a patch from the folder `a` to `b`, which code has changed; git runs without any configuration."""
    git, environment = str(shutil.which("git")), {"HOME": str(top), "GIT_CONFIG_NOSYSTEM": "1"}
    is_whole = False
    with written(path, folder) as file, suppress(subprocess.TimeoutExpired):
        ran = subprocess.run([git, *_DIFF, "a", "b"], cwd=top, env=environment, stdout=file, timeout=DIFF_SECONDS)
        is_whole = ran.returncode <= 1
    if not is_whole:
        notes.print(f"agent-tools: git could not compare the copy: {path} is not complete.", style="red", markup=False)


@codex.command()
@click.option("--name", default="sealed", show_default=True, help="Of the environment.")
@click.pass_context
def config(context: click.Context, /, name: str) -> None:
    """Print what goes into Codex's environments.toml, with the options given before `config`."""
    assert context.parent
    notes.print("For Codex, in ~/.codex/environments.toml:", style="dim", markup=False)
    program, *args = (*OWN_COMMAND, "codex", *given(context.parent))
    lines = (
        f"default = {json.dumps(name)}",
        "include_local = false  # nothing runs on this machine itself",
        "",
        "[[environments]]",
        f"id = {json.dumps(name)}",
        f"program = {json.dumps(program)}",
        f"args = {json.dumps(args)}",  # JSON's strings are TOML's, too
        "initialize_timeout_sec = 60",
    )
    click.echo("\n".join(lines))
