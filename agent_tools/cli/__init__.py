"""The command line: `agent-tools`."""

from __future__ import annotations

import sys

import click
from rich.console import Console

from agent_tools import __version__
from agent_tools.cli.lazy_group import LazyGroup
from agent_tools.errors import AgentToolsError, ImageBuildError, InvalidParams, SandboxStartError


@click.group(
    cls=LazyGroup,
    package="agent_tools.cli",
    extras={
        **dict.fromkeys(("run", "repl", "chat"), ""),
        **dict.fromkeys(("serve", "keys"), "gateway"),
        **dict.fromkeys(("mcp", "jupyter", "image", "doctor", "clean"), ""),
        "kubernetes": "kubernetes",
    },
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
    agent-tools mcp                        the MCP server, for Claude, Cursor, VS Code and others
    agent-tools jupyter install            notebooks in sandboxes, in JupyterLab, VS Code, papermill, ...
    agent-tools doctor                     check this machine
    """  # noqa: D301  (a backspace is click's mark for text that keeps its lines)


def main() -> None:
    """Run the command line; a failure is one message and exit code 3, bad arguments exit with 2."""
    try:
        cli(standalone_mode=True)
    except AgentToolsError as exc:
        cause = getattr(exc, "exception", None) or exc
        log = cause.log if isinstance(cause, (ImageBuildError, SandboxStartError)) else ""
        console = Console(stderr=True, highlight=False)
        if log:
            console.print(log.rstrip(), style="dim", markup=False)
        message = getattr(exc, "message", None) or exc
        console.print(f"agent-tools: {message}", style="red", markup=False, soft_wrap=True)
        sys.exit(2 if isinstance(exc, InvalidParams) else 3)
