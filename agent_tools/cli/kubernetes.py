"""`agent-tools kubernetes`: manifests for the Kubernetes engine beyond those in deploy/."""

from __future__ import annotations

import json
from pathlib import Path

import click

from agent_tools import settings
from agent_tools.engines.engine import SandboxSpec
from agent_tools.engines.guest import Guest
from agent_tools.engines.kubernetes import warm_pods
from agent_tools.engines.kubernetes.options import KubernetesOptions
from agent_tools.engines.kubernetes.pod import pod_maker, reference
from agent_tools.runtime.engine_lookup import checked_engine
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.sandbox.options import Options, read_options

DEFAULT_NAMESPACE = "default"


@click.group()
def kubernetes() -> None:
    """Print manifests for the Kubernetes engine: docs/kubernetes.md."""


@kubernetes.command()
@click.option("--size", type=click.IntRange(1, 10_000), default=10, show_default=True, help="Sandboxes that wait.")
@click.option("--engine", "word", default="kubernetes", show_default=True, help="kubernetes[://CONTEXT[/NAMESPACE]]")
@click.option("--set", "given", multiple=True, metavar="NAME=VALUE", help="An option of the sandboxes; JSON or text.")
def pool(size: int, word: str, given: tuple[str, ...]) -> None:
    """Print a pool of warm sandboxes for agent-sandbox: `agent-tools kubernetes pool | kubectl apply -f -`.

    It serves sessions of this release with exactly these options. It connects to no cluster; without a namespace in
    AGENT_TOOLS_KUBERNETES_NAMESPACE or --engine it is for `default`.
    """
    chosen = KubernetesOptions.read(checked_engine(word), settings.kubernetes_options())
    options = Options.read(read_options(given))
    spec = _sandbox(options, options.image or reference(chosen.image, options.recipe))
    items = warm_pods.pool(pod_maker(chosen, DEFAULT_NAMESPACE), spec, size)
    click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2))


def _sandbox(options: Options, image: str) -> SandboxSpec:
    """Return the sandbox specification of sessions with these options, without labels."""
    session = SessionSpec(image, Path(), options.isolation, options.limits)
    return SandboxSpec(
        image=image,
        run_dir=None,
        work_dir=None,
        guest=Guest((0, 0), (0, 0), shares_sockets=False, shares_files=False),
        isolation=session.telling_isolation,
        labels={},
        work_dir_bytes=options.limits.max_work_dir_bytes,
        skills=tuple(each.folder for each in options.skills),
        volumes=options.volumes,
    )
