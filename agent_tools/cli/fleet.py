"""`agent-tools fleet`: the nodes of a Ray cluster that have sandboxes."""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table

from agent_tools import settings
from agent_tools.cli.options import recipe_options
from agent_tools.engines.ray.cluster import actor_of, end, ensure_image, facts_of, join, running, slots_of_nodes
from agent_tools.engines.recipe import Recipe
from agent_tools.errors import EngineUnavailable

_ADDRESS = click.option(
    "--address", metavar="ray://HOST:PORT", help="The cluster.  [default: RAY_ADDRESS, or this machine's]"
)


@click.group()
def fleet() -> None:
    """Show, start and end the processes that run sandboxes on the nodes of a Ray cluster.

    A node has sandboxes if it was started with the resource: ray start ... --resources='{"sandbox": 20}'.
    """


@fleet.command()
@_ADDRESS
def status(address: str | None) -> None:
    """Show every node that has sandboxes: its process, and how many of its slots are taken."""
    _join(address)
    actors = running()
    table = Table("node", "machine", "process", "taken", "slots", "release")
    for node, slots in slots_of_nodes().items():
        if node not in actors:
            table.add_row(node[:12], "no process yet", "", "", str(slots), "")
            continue
        try:
            facts = facts_of(actors[node])
        except EngineUnavailable as exc:
            table.add_row(node[:12], str(exc), "", "", str(slots), "")
        else:
            numbers = (str(facts.pid), str(facts.taken), str(facts.slots))
            table.add_row(node[:12], facts.machine, *numbers, facts.release)
    Console(width=None).print(table)


@fleet.command()
@_ADDRESS
@recipe_options
def up(address: str | None, flavour: str | None, packages: tuple[str, ...], debian_packages: tuple[str, ...]) -> None:
    """Start a process with the image on every node; it stays until `down`.

    Without this, they start with the first sandbox, and end after ten minutes without one.
    """
    _join(address)
    recipe = Recipe.read(packages, debian_packages, flavour)
    slots = slots_of_nodes()
    if not slots:
        raise EngineUnavailable("No node has the resource: ray start ... --resources='{\"sandbox\": 20}'.")
    for node, count in slots.items():
        click.echo(f"{node[:12]}: {ensure_image(actor_of(node, count, idle_end=0), recipe)} is there")


@fleet.command()
@_ADDRESS
def down(address: str | None) -> None:
    """End all processes with their sandboxes, even if they are in use."""
    _join(address)
    actors = running()
    for actor in actors.values():
        end(actor)
    click.echo(f"{len(actors)} {'node' if len(actors) == 1 else 'nodes'} ended")


def _join(address: str | None) -> None:
    """Join a cluster. Raises EngineUnavailable: it does not answer."""
    word = settings.engine()
    join(address or (word if word.startswith("ray") else "ray"))
