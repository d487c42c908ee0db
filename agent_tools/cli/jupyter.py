"""`agent-tools jupyter`: kernels in sandboxes, for Jupyter's programs and with Jupyter's API."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Any

import click

from agent_tools import settings
from agent_tools.cli.image import ensure_with_progress
from agent_tools.cli.live_output import notes
from agent_tools.cli.options import PathOption, config, limit_options
from agent_tools.extras import pip_install
from agent_tools.jupyter.kernelspec import KernelSpec, is_plain, sandbox_config
from agent_tools.jupyter.launcher import launch
from agent_tools.sandbox.options import Options, read_options

FOLDERS = click.Choice(("cwd", "fresh"))
_OUTPUTS = click.option(
    "--outputs", type=click.Choice(("all", "plain")), default="all", help="Plain: without HTML, scripts and widgets."
)
_OTHERS = click.option(
    "--set", "others", multiple=True, metavar="NAME=VALUE", help="Any other option of `Sandbox`, as JSON; repeatable."
)


@click.group()
def jupyter() -> None:
    """Run notebooks in sandboxes: `install` a kernelspec, or `serve` Jupyter's API."""


@jupyter.command()
@click.option("--name", default="agent-tools", show_default=True, help="The kernel's name.")
@click.option("--title", default="Python (sealed)", show_default=True, help="The name that Jupyter shows.")
@click.option("--user", is_flag=True, help="For this user (default).")
@click.option("--sys-prefix", is_flag=True, help="For the Python that runs this, e.g. in a virtual environment.")
@click.option("--prefix", type=PathOption(file_okay=False), help="Below this folder.")
@click.option("--work-dir", type=FOLDERS, default="cwd", help="The notebook's folder (cwd), or a fresh one each time.")
@click.option("--no-build", is_flag=True, help="Do not build the image now; the first kernel does, and waits for it.")
@_OUTPUTS
@limit_options
@_OTHERS
def install(name: str, no_build: bool, others: tuple[str, ...], **options: Any) -> None:
    """Install a kernelspec, by which JupyterLab, Notebook, VS Code, papermill and others start kernels in sandboxes.

    `jupyter kernelspec remove NAME` removes it.
    """
    user, sys_prefix, prefix = (options.pop(each) for each in ("user", "sys_prefix", "prefix"))
    if user + sys_prefix + (prefix is not None) > 1:
        raise click.UsageError("Give one of --user, --sys-prefix and --prefix.")
    shown = {each: options.pop(each) for each in ("title", "work_dir", "outputs")}
    cfg = {**config(**options), **read_options(others)}
    spec = KernelSpec(cfg, **shown)
    if not spec.title.strip():
        raise click.UsageError("--title is empty: it is the name that people choose the kernel by.")
    if not no_build:
        ensure_with_progress(Options.read(cfg))
    where = sys.prefix if sys_prefix else prefix and str(prefix)
    click.echo(f"installed {spec.install(name, user=where is None, prefix=where)}")


@jupyter.command()
@click.option("-f", "connection_file", required=True, type=PathOption(), help="Where clients reach it.")
@click.option("--work-dir", type=FOLDERS, default="cwd", help="This folder (cwd), or a fresh one.")
@_OUTPUTS
@_OTHERS
def kernel(connection_file: Path, work_dir: str, outputs: str, others: tuple[str, ...]) -> None:
    """Run as a kernel, for clients that do not know provisioners."""
    cfg = sandbox_config(read_options(others), work_dir, str(Path.cwd()))
    sys.exit(launch(connection_file, cfg, is_plain=is_plain(outputs)))


@jupyter.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8888, show_default=True, help="Port to listen on.")
@click.option("--token", help="The token of requests; better set AGENT_TOOLS_JUPYTER_TOKEN.  [default: random]")
@click.option("--max-kernels", type=click.IntRange(1), default=16, show_default=True, help="Kernels at the same time.")
@click.option(
    "--idle-timeout",
    type=click.IntRange(1),
    default=3600,
    show_default=True,
    help="Seconds a kernel may be unused.",
)
@click.option("--list-kernels", "lists_kernels", is_flag=True, help="Let clients see the kernels of others.")
@_OUTPUTS
@limit_options
@_OTHERS
def serve(host: str, port: int, token: str | None, others: tuple[str, ...], **options: Any) -> None:
    """Serve Jupyter's REST and websocket API; each kernel has a sandbox and a fresh folder of its own."""
    try:
        from agent_tools.jupyter import server  # an extra of its own
    except ImportError as exc:
        raise click.ClickException(f"The server needs more: {pip_install('jupyter')}") from exc
    bounds = {each: options.pop(each) for each in ("max_kernels", "idle_timeout", "lists_kernels")}
    outputs = options.pop("outputs")
    cfg, given = {**config(**options), **read_options(others)}, token or settings.jupyter_token()
    spec = KernelSpec(cfg, "fresh", outputs=outputs)
    ensure_with_progress(Options.read(cfg))
    chosen = given or secrets.token_urlsafe(24)
    shown = "the one given" if given else chosen
    notes.print(f"http://{host}:{port}, token: {shown}", markup=False, soft_wrap=True)
    try:
        server.serve(server.ServerConfig(chosen, spec, host, port, **bounds))
    except OSError as exc:
        raise click.ClickException(f"{host}:{port} cannot be listened on: {exc.strerror or exc}.") from exc
