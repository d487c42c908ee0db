"""`agent-tools mcp`: the MCP server, on stdio or HTTP, and its configuration for clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import click

from agent_tools import settings
from agent_tools.cli.live_output import notes
from agent_tools.cli.mcp_config import CLIENTS, uvx_command
from agent_tools.cli.options import SKILLS_OPTION, absolute, api_key_option, given, pair, recipe_options, wall_options
from agent_tools.engines.docker import image as images
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.recipe import Recipe
from agent_tools.extras import pip_install
from agent_tools.machine.own_command import OWN_COMMAND
from agent_tools.runtime.engine_lookup import DOCKER, shared_runtime


@click.group(invoke_without_command=True)
@click.option("--http", metavar="HOST:PORT", help="Serve HTTP there, at /mcp, instead of stdio.")
@api_key_option("AGENT_TOOLS_MCP_API_KEYS")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Of the server over HTTP.")
@click.option("--allow", "allowed_domains", multiple=True, help="A name the code may reach, e.g. pypi; repeatable.")
@click.option("--memory", type=click.Choice(["1g", "4g", "16g", "64g"]), help="Memory of a container.  [default: 4g]")
@click.option(
    "--timeout", type=float, help="Seconds that code may run, unless a call has its own limit.  [default: 300]"
)
@click.option(
    "--audit",
    metavar="FILE",
    callback=absolute,
    help="Write there who ran what (docs/audit.md); - is standard output.",
)
@SKILLS_OPTION
@recipe_options
@wall_options
@click.option("--set", "others", multiple=True, metavar="NAME=VALUE", help="Any other setting, e.g. max_sandboxes=16.")
@click.pass_context
def mcp(context: click.Context, /, http: str | None, others: tuple[str, ...], **options: Any) -> None:
    """Serve MCP: code, commands and files in containers, for any MCP client. Without arguments, on stdio.

    Nothing starts before the first call; that call builds a missing image and reports its progress.
    """
    if context.invoked_subcommand:
        return
    chosen = {name: value for name, value in options.items() if value not in (None, ())}
    known = {**settings.mcp_options(), **dict(map(pair, others))}
    if chosen.get("memory") in ("16g", "64g"):  # above the usual max_memory
        known.setdefault("max_memory", chosen["memory"])
    _serve({**known, **chosen}, http)


def _serve(options: dict[str, Any], address: str | None) -> None:
    try:
        from agent_tools.mcp import asgi_app, config, stdio  # `mcp config` needs no extra
    except ImportError as exc:
        raise click.ClickException(f"The MCP server needs more: {pip_install('mcp')}") from exc
    read = config.read_config(options, address)
    recipe = Recipe.read(read.packages, read.debian_packages, read.flavour)
    server = asgi_app if address else stdio
    server.serve(read, shared_runtime(), _Image(DockerEngine(), recipe))


@mcp.command()
@click.argument("client", type=click.Choice(list(CLIENTS)))
@click.option("--uvx", is_flag=True, help="Let uvx install and start it, instead of this installation.")
@click.pass_context
def config(context: click.Context, /, client: str, uvx: bool) -> None:
    """Print the configuration of CLIENT for this server, with the options given before `config`."""
    assert context.parent
    options = given(context.parent, for_servers=("http", "api_keys", "log_level"))
    notes.print(f"For {CLIENTS[client].title}, in {CLIENTS[client].where}:", style="dim", markup=False, soft_wrap=True)
    if not uvx and find_spec("mcp") is None:
        missing = f"It will not start yet: the server needs {pip_install('mcp')}"
        notes.print(missing, style="red", markup=False, soft_wrap=True)
    command = uvx_command() if uvx else (*OWN_COMMAND, "mcp")
    click.echo(CLIENTS[client].written((*command, *options)))


@dataclass
class _Image:
    """Builds or pulls the image of containers once; engines other than Docker get their images in other ways."""

    engine: DockerEngine
    recipe: Recipe
    is_there: bool = field(default_factory=lambda: settings.engine() != DOCKER, init=False)

    def __call__(self, progress: Callable[[str], None]) -> None:
        if not self.is_there:
            images.ensure(self.engine, self.recipe, progress)
            self.is_there = True
