"""`agent-tools image`: build, pull, save, load, show and remove the sandbox's image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from agent_tools import settings
from agent_tools.cli.options import PathOption, recipe_options
from agent_tools.engines import context
from agent_tools.engines.docker import gateway_image, image_file, published_image
from agent_tools.engines.docker import image as images
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.docker.image_origin import origin_of
from agent_tools.engines.recipe import FLAVOURS, Recipe, RecipeLike
from agent_tools.limits import MIB
from agent_tools.runtime.engine_lookup import DOCKER
from agent_tools.sandbox.options import Options

console = Console(stderr=True, highlight=False)


@click.group()
def image() -> None:
    """Build, pull, save, load, show or remove the sandbox's image; build the gateway's."""


@image.command()
@recipe_options
@click.option("--if-missing", is_flag=True, help="Pull a published image, rather than build one.")
@click.option("--again", is_flag=True, help="Build it even if the engine has it.")
def build(if_missing: bool, again: bool, **options: Any) -> None:
    """Build the image now, with progress, unless the engine has it; otherwise the first use builds it."""
    engine, recipe = DockerEngine(), Recipe.read(**options)
    if not again and engine.has_image(context.tag_for(recipe)):
        console.print(f"image: {context.tag_for(recipe)} is there{'' if if_missing else '; --again builds it anew'}")
        return
    _with_progress(engine, recipe, always=not if_missing)


@image.command()
@recipe_options
def show(**options: Any) -> None:
    """Show the current image, its base, and the older images on the engine."""
    engine = DockerEngine()
    wanted = context.tag_for(Recipe.read(**options))
    found_images = engine.images(context.REPOSITORY)
    click.echo(f"{'size':>9}  {'created':19}  image")
    for found in found_images:
        for tag in found.get("RepoTags") or ():
            created = engine.image_facts(tag)["Created"][:19]
            size = f"{found['Size'] / MIB:.0f} MiB"
            click.echo(f"{size:>9}  {created}  {tag}{' (in use)' if tag == wanted else ''}")
    if not engine.has_image(wanted):
        click.echo(f"{wanted}: missing; `agent-tools image build` makes it")
        return
    origin = origin_of(engine.image_facts(wanted))
    click.echo(f"{wanted}: present\nbuilt on {origin.base} ({origin.digest}) by agent_tools {origin.version}")


@image.command()
@click.option("--tag", help="Its name.  [default: agent-tools-gateway with this version]")
def gateway(tag: str | None) -> None:
    """Build the image of the gateway itself, from this installation, and print its name: docs/deploy.md."""
    named = {"tag": tag} if tag else {}
    click.echo(gateway_image.build(DockerEngine(), **named, progress=print_main_lines))


@image.command()
@click.option(
    "--from", "repository", metavar="REPOSITORY", help="Pull from here.  [default: AGENT_TOOLS_IMAGE_REPOSITORY]"
)
@recipe_options
def pull(repository: str | None, **options: Any) -> None:
    """Pull the published image of this installation, and print its name; the first use does this automatically.

    Needs a release, whose images are known by their digests, or a repository of your own: docs/mirrors.md.
    """
    tag = context.tag_for(Recipe.read(**options))
    source = (
        published_image.Source(f"{repository}:{tag.partition(':')[2]}")
        if repository
        else published_image.source_of(tag)
    )
    if source is None:
        raise click.ClickException(
            f"No registry is known to have {tag}: give --from, or set AGENT_TOOLS_IMAGE_REPOSITORY. "
            "`agent-tools image build` builds it."
        )
    published_image.pull(DockerEngine(), source, tag, print_main_lines)
    click.echo(tag)


@image.command()
@click.argument("file", type=PathOption(dir_okay=False))
@recipe_options
def save(file: Path, **options: Any) -> None:
    """Write the image into FILE, a gzipped archive, for machines without a network; build a missing image first."""
    click.echo(image_file.save(DockerEngine(), file, Recipe.read(**options), print_main_lines))


@image.command()
@click.argument("file", type=PathOption(exists=True, dir_okay=False))
def load(file: Path) -> None:
    """Load FILE, written by `image save`, into the engine."""
    tags = image_file.load(DockerEngine(), file, print_main_lines)
    current = {context.tag_for(Recipe(flavour=flavour)) for flavour in FLAVOURS}
    for tag in tags:
        click.echo(tag if tag in current else f"{tag} (not an image of this installation, which is another version)")


@image.command()
@click.option("--all", "everything", is_flag=True, help="Remove the current image too, not only older ones.")
def rm(everything: bool) -> None:
    """Remove the images of agent-tools that are no longer current. Every flavour's newest stays."""
    engine = DockerEngine()
    current = {context.tag_for(Recipe(flavour=flavour)) for flavour in FLAVOURS}
    tags = [tag for found in engine.images(context.REPOSITORY) for tag in found.get("RepoTags") or ()]
    for tag in tags:
        if everything or tag not in current:
            engine.remove_image(tag)
            click.echo(f"removed {tag}")


def ensure_with_progress(options: Options) -> None:
    """Build a sandbox's image if it is missing, with progress. Engines other than Docker get theirs in other ways."""
    if options.image or (options.engine or settings.engine()) != DOCKER:
        return
    engine = DockerEngine()
    if not engine.has_image(context.tag_for(options.recipe)):
        _with_progress(engine, options.recipe, always=False)


def _with_progress(engine: DockerEngine, recipe: RecipeLike, always: bool) -> None:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("Preparing the sandbox's image")

        def report(line: str) -> None:
            progress.update(task, description=line.replace("[", "\\[")[:100])
            if not console.is_terminal:
                print_main_lines(line)

        make = images.build if always else images.ensure
        tag = make(engine, recipe, report)
    console.print(f"image: {tag} is ready")


def print_main_lines(line: str) -> None:
    """Print a line of progress where no spinner can turn: our own sentences, build steps, and pip's results."""
    if line.startswith((*images.MILESTONES, "Saving ", "Loading ", "Step ", "Successfully ")):
        console.print(line[:118], markup=False)
