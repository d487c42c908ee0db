"""`agent-tools fleet`: the hosts of sandboxes on a Ray cluster."""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table

from agent_tools import settings
from agent_tools.cli.options import recipe_options
from agent_tools.engines.engine import Recipe
from agent_tools.errors import EngineError, EngineUnavailable
from agent_tools.fleet.protocol import ASK_SECONDS, HostLink, HostUnreachable
from agent_tools.fleet.ray.hosts import RayHosts, end, join, nodes, running

_ADDRESS = click.option(
    "--address", metavar="ray://HOST:PORT", help="The cluster.  [default: RAY_ADDRESS, or this machine's]"
)


@click.group()
def fleet() -> None:
    """Show, start and end the hosts of sandboxes on a Ray cluster.

    A node has sandboxes if it was started with the resource: ray start ... --resources='{"sandbox": 20}'.
    """


@fleet.command()
@_ADDRESS
def status(address: str | None) -> None:
    """Show every node that has sandboxes: its host, and how many of its slots are taken."""
    _join(address)
    found = {link.name: link for link in running()}
    table = Table("node", "machine", "process", "taken", "ready", "slots", "release")
    for node, slots in nodes().items():
        links = [link for name, link in found.items() if name.startswith(node)]
        for row in map(_row, links):
            table.add_row(node[:12], *row)
        if not links:
            table.add_row(node[:12], "no host yet", "", "", "", str(slots), "")
    Console(width=None).print(table)


@fleet.command()
@_ADDRESS
@click.option(
    "--hosts-per-node", type=click.IntRange(1, 16), default=1, show_default=True, help="2 or 4 on large nodes."
)
@recipe_options
def up(
    address: str | None,
    hosts_per_node: int,
    flavour: str | None,
    packages: tuple[str, ...],
    debian_packages: tuple[str, ...],
) -> None:
    """Start a host with the image on every node; it stays until `down`.

    Without this, hosts start with the first sandbox, and end after ten minutes without use.
    """
    _join(address)
    recipe = Recipe.read(packages, debian_packages, flavour)
    links = RayHosts(hosts_per_node=hosts_per_node, idle_end=0).links()
    if not links:
        raise EngineUnavailable("No node has the resource: ray start ... --resources='{\"sandbox\": 20}'.")
    for link in links:
        click.echo(f"{link.name[:12]}: {link.call('ensure_image', recipe)} is there")


@fleet.command()
@_ADDRESS
def down(address: str | None) -> None:
    """End all hosts with their sandboxes, even if they are in use."""
    _join(address)
    found = running()
    for link in found:
        end(link)
    click.echo(f"{len(found)} {'host' if len(found) == 1 else 'hosts'} ended")


def _row(link: HostLink) -> tuple[str, ...]:
    try:
        facts, load = link.call("facts", seconds=ASK_SECONDS), link.call("load", seconds=ASK_SECONDS)
    except (HostUnreachable, EngineError) as exc:
        return (str(exc), "", "", "", "", "")
    return facts.machine, str(facts.pid), str(load.taken), str(load.ready), str(load.slots), facts.release


def _join(address: str | None) -> None:
    """Join a cluster. Raises EngineUnavailable: it does not answer."""
    word = settings.engine()
    join(address or (word if word.startswith("ray") else "ray"))
