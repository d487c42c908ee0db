"""The command line: `agent-tools`."""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import io
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import click
from rich.console import Console

from agent_tools.errors import AgentToolsError, ImageBuildError, InvalidParams, SandboxStartError
from agent_tools.extras import pip_install
from agent_tools.version import __version__


class Lazy(NamedTuple):
    """A command in a module of its own: what it does, in a few words, the extra it needs, and its module's name.

    The module is named as the command where the name is ''.
    """

    about: str
    extra: str = ""
    module: str = ""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are run, so that none loads another one's libraries."""

    def __init__(self, *args: Any, package: str = "", lazy: Mapping[str, Lazy], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._package = package
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order in which they were given."""
        return list(self._lazy)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what each command does, without importing it."""
        rows = [(name, each.about + (each.extra and f" (extra: {each.extra})")) for name, each in self._lazy.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, or, if its extra is missing, one that prints which extra to install."""
        lazy = self._lazy.get(cmd_name)
        if lazy is None:
            return None
        try:
            module = importlib.import_module(f"{self._package}.{lazy.module or cmd_name}")
            found: click.Command = getattr(module, cmd_name)
        except ImportError as exc:
            if not lazy.extra or (exc.name or "").startswith("agent_tools"):
                raise
            return _missing(cmd_name, lazy.extra)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command by its name; an unknown name is an error that suggests the nearest one."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        elif args[:1] == ["version"] and ctx.parent is None:
            click.echo(__version__)
            ctx.exit()
        if args and args[0] == "--help":
            click.echo(ctx.get_help())
            ctx.exit()
        if args and not args[0].startswith("-") and args[0] not in self._lazy:
            near = difflib.get_close_matches(args[0], self._lazy, 1)
            if near:
                ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)


def _missing(name: str, extra: str) -> click.Command:
    said = f"`{name}` needs more: {pip_install(extra)}"
    how = f"Needs an extra: {pip_install(extra)}"

    @click.command(name, help=how, short_help=how, context_settings={"ignore_unknown_options": True})
    @click.argument("words", nargs=-1, type=click.UNPROCESSED, expose_value=False)
    def missing() -> None:
        raise click.ClickException(said)

    return missing


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # of a write


@click.group(
    cls=LazyGroup,
    package="agent_tools.cli",
    lazy={
        "run": Lazy("Run a file of Python or code: run -c 'print(2 + 2)'."),
        "repl": Lazy("Run Python line by line; variables stay until you leave."),
        "chat": Lazy("Talk to a model that runs code: chat --model qwen-max."),
        "serve": Lazy("Serve OpenAI's API with this code interpreter: serve --upstream URL.", "gateway"),
        "keys": Lazy("Make, list, limit and revoke the keys of a gateway's clients.", "gateway", "gateway_data"),
        "usage": Lazy("Print what keys and users of a gateway used in a month, as CSV.", "gateway", "gateway_data"),
        "backup": Lazy("Copy a gateway's database and files, while it runs.", "gateway", "gateway_data"),
        "restore": Lazy("Fill an empty gateway from a backup.", "gateway", "gateway_data"),
        "mcp": Lazy("Serve MCP, for Claude, Cursor, VS Code and others."),
        "codex": Lazy("Be the sandbox of Codex: codex config.", "codex"),
        "worker": Lazy("Be the sandbox of Claude Managed Agents: worker claude.", "claude-agents"),
        "jupyter": Lazy("Run notebooks in sandboxes: in JupyterLab, VS Code, papermill and others.", "jupyter"),
        "image": Lazy("Build, pull, save, load, push or remove the sandbox's image."),
        "bundle": Lazy("Write all that a machine without a network needs into a folder."),
        "skills": Lazy("Check Agent Skills: skills check FOLDER."),
        "fleet": Lazy("Start, show and end the nodes of sandboxes on a Ray cluster.", "ray"),
        "kubernetes": Lazy("Print manifests for the Kubernetes engine.", "kubernetes"),
        "doctor": Lazy("Check this machine, its engine, and one real sandbox."),
        "clean": Lazy("Remove what host processes that are gone have left.", module="doctor"),
    },
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.version_option(__version__, prog_name="agent-tools")
@click.pass_context
def cli(context: click.Context) -> None:
    """Run a model's Python in a locked-down container of its own.

    Begin with `agent-tools doctor`, then `agent-tools run -c 'print(2 + 2)'`.
    """
    if not context.invoked_subcommand:
        click.echo(context.get_help())


def main() -> None:
    """Run the command line; a failure is one message and exit code 3, bad arguments exit with 2."""
    _open_what_is_closed()
    try:
        cli(standalone_mode=True)
    except OSError as exc:
        if exc.errno not in _FULL:
            raise
        _drop_stdout()
        sys.exit(_failed(f"the output could not be written: {exc.strerror}."))
    except AgentToolsError as exc:
        cause = getattr(exc, "exception", None) or exc
        log = cause.log if isinstance(cause, (ImageBuildError, SandboxStartError)) else ""
        if log:
            Console(stderr=True, highlight=False).print(log.rstrip(), style="dim", markup=False)
        code = _failed(getattr(exc, "message", None) or exc)
        sys.exit(2 if isinstance(exc, InvalidParams) else code)


def _failed(message: object) -> int:
    """Say why; return the exit code."""
    Console(stderr=True, highlight=False).print(f"agent-tools: {message}", style="red", markup=False, soft_wrap=True)
    return 3


def _open_what_is_closed() -> None:
    """Replace closed streams, and escape characters that an encoding lacks."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  (as long as the process)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  (as long as the process)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_stdout() -> None:
    """Redirect stdout to /dev/null, so that output that is still buffered raises no error at exit."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
