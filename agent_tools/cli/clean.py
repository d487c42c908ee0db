"""`agent-tools clean`: removes the sandboxes of dead processes."""

from __future__ import annotations

import click

from agent_tools.runtime.engines import shared_runtime


@click.command()
def clean() -> None:
    """Remove sandboxes whose host process is gone, and their folders. Sandboxes in use are left alone."""
    removed = shared_runtime().sweep()
    for sandbox in removed:
        click.echo(f"removed {sandbox.id[:12]}")
    click.echo(f"{len(removed)} stray sandboxes removed")
