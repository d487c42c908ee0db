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
from typing import Any

import click
from rich.console import Console

from agent_tools.errors import AgentToolsError, ImageBuildError, InvalidParams, SandboxStartError
from agent_tools.extras import pip_install
from agent_tools.version import __version__

# A group of commands, each in a module of its own that is imported when the command is wanted.
#
# So a command does not load other commands' libraries, and a missing extra is reported only where it is needed.


class LazyGroup(click.Group):
    """A group whose commands are named, in `extras`, with the extra they need; '' for those that need none.

    The command `NAME` is `NAME` in the module `package.NAME`, or in the one that `modules` names.
    """

    def __init__(
        self,
        *args: Any,
        package: str = "",
        extras: Mapping[str, str] | None = None,
        modules: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._package = package
        self._extras = extras or {}
        self._modules = modules or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order in which they were given."""
        return list(self._extras)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, or, if its extra is missing, one that prints which extra to install."""
        extra = self._extras.get(cmd_name)
        if extra is None:
            return None
        try:
            module = importlib.import_module(f"{self._package}.{self._modules.get(cmd_name, cmd_name)}")
            found: click.Command = getattr(module, cmd_name)
        except ImportError as exc:
            if not extra or (exc.name or "").startswith("agent_tools"):
                raise
            return _missing(cmd_name, extra)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command by its name; an unknown name is an error that suggests the nearest one."""
        if args and not args[0].startswith("-") and args[0] not in self._extras:
            near = difflib.get_close_matches(args[0], self._extras, 1)
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
    extras={
        **dict.fromkeys(("run", "repl", "chat"), ""),
        **dict.fromkeys(("serve", "keys", "backup", "restore"), "gateway"),
        **dict.fromkeys(("mcp", "jupyter", "image", "bundle", "skills"), ""),
        "fleet": "ray",
        "kubernetes": "kubernetes",
        **dict.fromkeys(("doctor", "clean"), ""),
    },
    modules={**dict.fromkeys(("keys", "backup", "restore"), "gateway_data"), "clean": "doctor"},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="agent-tools")
def cli() -> None:
    """Run a model's Python in a locked-down container of its own.

    \b
    agent-tools run -c 'print(2 + 2)'      run code and exit
    agent-tools repl                       an interactive session
    agent-tools chat --model qwen-max      talk to a model that runs code
    agent-tools serve --upstream URL       the gateway: OpenAI's API with this code interpreter
    agent-tools keys add NAME              a key for a client of the gateway
    agent-tools backup FOLDER              the gateway's database and files, while it runs
    agent-tools mcp                        the MCP server, for Claude, Cursor, VS Code and others
    agent-tools jupyter install            notebooks in sandboxes, in JupyterLab, VS Code, papermill, ...
    agent-tools fleet status               sandboxes on the nodes of a Ray cluster
    agent-tools skills check DIR           check the Agent Skills in a folder
    agent-tools doctor                     check this machine
    """  # noqa: D301  (a backspace is click's mark for text that keeps its lines)


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
    """Replace closed output streams, and escape characters that an encoding lacks."""
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
