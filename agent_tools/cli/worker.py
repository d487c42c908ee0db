"""`agent-tools worker`: programs that fetch work from a vendor and do it in sandboxes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from agent_tools import settings
from agent_tools.cli.executors import executor_options, ready_config, run_until_stopped
from agent_tools.cli.live_output import notes
from agent_tools.cli.options import PathOption
from agent_tools.integrations.claude_agents import ClaudeWorker


@click.group()
def worker() -> None:
    """Fetch work from a vendor, and do it in sandboxes."""


@worker.command()
@click.option("--environment-id", required=True, metavar="ID", help="The id of the self-hosted environment.")
@click.option("--sessions", type=click.IntRange(1, 64), default=4, show_default=True, help="Sessions at once.")
@click.option(
    "--seconds", type=float, default=3600, show_default=True, help="How long a session may use its container."
)
@click.option("--keep", type=PathOption(file_okay=False), help="Keep each session's files here, below its id.")
@click.option("-f", "--file", "files", multiple=True, help="A path or URL to copy into each session; repeatable.")
@executor_options
def claude(
    environment_id: str, sessions: int, seconds: float, keep: Path | None, files: tuple[str, ...], **options: Any
) -> None:
    """Run the tools of Claude Managed Agents' sessions, each session in a sealed container of its own.

    ANTHROPIC_ENVIRONMENT_KEY is the environment's key; it stays in this process.
    """
    key = settings.api_key("ANTHROPIC_ENVIRONMENT_KEY")
    if not key:
        raise click.UsageError("Set ANTHROPIC_ENVIRONMENT_KEY to the key of the environment.")
    cfg = ready_config(**options)
    made = ClaudeWorker(environment_id, key, sessions=sessions, seconds=seconds, keep=keep, files=files, options=cfg)
    notes.print(f"worker: {sessions} sessions at once; Ctrl-C ends it", style="dim", markup=False)
    if not run_until_stopped(made.run()):
        notes.print("worker: stopped", style="dim", markup=False)
