"""Options, configuration and end of the commands that execute in sandboxes for another vendor's agent."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

import click

from agent_tools.cli.image import ensure_with_progress
from agent_tools.cli.options import absolute, config, limit_options, set_option, with_options
from agent_tools.sandbox.options import Options

executor_options = with_options(
    click.option("--audit", metavar="FILE", callback=absolute, help="Write there who ran what (docs/audit.md)."),
    limit_options,
    set_option,
)


def ready_config(**options: Any) -> dict[str, Any]:
    """Return the given options as a configuration for `Sandbox`, with its image in place. Errors as for `config`."""
    cfg = config(**options)
    ensure_with_progress(Options.read(cfg))
    return cfg


def run_until_stopped(work: Coroutine[Any, Any, None]) -> bool:
    """Run work in an event loop; SIGTERM and SIGINT cancel it. Return whether it came to its end."""
    return asyncio.run(_until_stopped(work))


async def _until_stopped(work: Coroutine[Any, Any, None]) -> bool:
    loop, running = asyncio.get_running_loop(), asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    await asyncio.wait((running,))
    if not running.cancelled():
        running.result()
    return not running.cancelled()
