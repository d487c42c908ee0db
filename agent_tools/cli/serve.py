"""`agent-tools serve`: the gateway."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import click

from agent_tools import settings
from agent_tools.cli.image import ensure_with_progress
from agent_tools.cli.live_output import notes
from agent_tools.cli.options import SKILLS_OPTION, PathOption, api_key_option, pair, recipe_options, wall_options
from agent_tools.containers.mount import Mount
from agent_tools.errors import AgentToolsError
from agent_tools.extras import pip_install
from agent_tools.gateway.config import GatewayConfig, read_config
from agent_tools.gateway.serving import run as gateway
from agent_tools.runtime.engine_lookup import shared_runtime
from agent_tools.sandbox.options import Options
from agent_tools.wires import WIRES, mount_of


@click.command()
@click.option("--upstream", help="Base URL of the OpenAI-compatible server of the models.")
@click.option("--upstream-key", help="The upstream's key; better set AGENT_TOOLS_GATEWAY_UPSTREAM_KEY.")
@click.option("--upstream-api", type=click.Choice(["chat", "responses"]), help="The upstream's API to use.")
@click.option(
    "--upstream-profile",
    help="The requests that the upstream accepts: a name or pairs.  [default: auto, it is learned]",
)
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port to listen on.  [default: 8080]")
@api_key_option("AGENT_TOOLS_GATEWAY_API_KEYS")
@click.option("--data-dir", type=PathOption(), help="The folder of files and the database.")
@click.option("--database", help="An SQLAlchemy URL.  [default: SQLite in the data dir]")
@click.option("--audit", metavar="FILE", help="Write an audit log to this file (docs/audit.md); - is standard output.")
@SKILLS_OPTION
@recipe_options
@wall_options
@click.option("--wire", "wires", multiple=True, type=click.Choice(WIRES), help="Also serve this protocol; repeatable.")
@click.option("--set", "others", multiple=True, metavar="NAME=VALUE", help="Any other setting, e.g. max_sandboxes=16.")
@click.option("--print-settings", is_flag=True, help="Print the effective settings and exit.")
def serve(others: tuple[str, ...], print_settings: bool, wires: tuple[str, ...], **options: Any) -> None:
    """Serve OpenAI's API with your own code interpreter, in front of any OpenAI-compatible server.

    Every setting can also be given as AGENT_TOOLS_GATEWAY_<NAME> (lists with commas); options come first.
    """
    given = {name: value for name, value in options.items() if value not in (None, ())}
    config = read_config({**settings.gateway_options(), **dict(map(pair, others)), **given})
    if print_settings:
        for name, value in config.shown():
            click.echo(f"{name} = {value}")
        return
    runtime = shared_runtime()
    for problem in gateway.problems(config, runtime):
        notes.print(f"warning: {problem}", style="yellow", markup=False, soft_wrap=True)
    image = Options.read({name: getattr(config, name) for name in ("packages", "debian_packages", "flavour")})
    threading.Thread(target=_prepare, args=(image,), name="image", daemon=True).start()  # /ready shows its progress
    gateway.serve(config, runtime, [*_mounts(), *map(_wire, dict.fromkeys(wires))], partial(_say_where, config))


def _say_where(config: GatewayConfig, port: int) -> None:
    host = "localhost" if config.host in ("0.0.0.0", "::") else config.host  # noqa: S104  (nothing is bound here)
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    notes.print(f"ready: {address}/ is a page to try it on; clients use {address}/v1", markup=False, soft_wrap=True)


def _prepare(image: Options) -> None:
    try:
        ensure_with_progress(image)
    except AgentToolsError as exc:
        notes.print(f"warning: {exc} Code cannot be run before that.", style="yellow", markup=False, soft_wrap=True)


def _wire(name: str) -> Mount:
    try:
        return mount_of(name)
    except ModuleNotFoundError as exc:
        raise click.UsageError(f"--wire {name} needs {exc.name}: {pip_install('mcp')}") from exc


def _mounts() -> list[Mount]:
    """Return the mounts of other installed servers, such as MCP, beside the gateway's routes."""
    try:
        from agent_tools.mcp import asgi_app  # an extra of its own
    except ImportError:
        notes.print(f"MCP is not served: {pip_install('mcp')} for it", style="dim", markup=False)
        return []
    return [asgi_app.MOUNT]
