"""`agent-tools backup` and `restore`: the gateway's database and files."""

from __future__ import annotations

from pathlib import Path

import click

from agent_tools.cli.keys import found_config, store_options
from agent_tools.cli.options import PathOption
from agent_tools.cli.terminal.show import notes
from agent_tools.gateway.serving import backup as backups


@click.command()
@click.argument("folder", type=PathOption())
@store_options
def backup(folder: Path, data_dir: Path | None, database: str | None) -> None:
    """Copy a gateway's database and files into FOLDER, which is empty or new. The gateway may run.

    The database is found as `agent-tools serve` finds it: by these options, or by AGENT_TOOLS_GATEWAY_DATABASE and
    AGENT_TOOLS_GATEWAY_DATA_DIR. PostgreSQL needs pg_dump, at least as new as the server.
    """
    backups.back_up(found_config(data_dir=data_dir, database=database), folder)
    notes.print(f"backup: {folder}; it holds what users said and their files", markup=False, soft_wrap=True)


@click.command()
@click.argument("folder", type=PathOption())
@store_options
def restore(folder: Path, data_dir: Path | None, database: str | None) -> None:
    """Fill an empty data folder, and an empty database, from the backup in FOLDER. Nothing is overwritten.

    Run it as the gateway's user, or as root where sandboxes have users of their own, before the gateway is started.
    """
    config = found_config(data_dir=data_dir, database=database)
    backups.restore(folder, config)
    notes.print(f"restored: {config.data_dir}", markup=False, soft_wrap=True)
