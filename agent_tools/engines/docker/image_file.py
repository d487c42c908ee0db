"""The sandbox's image in a file, for machines without a network."""

from __future__ import annotations

import errno
import gzip
import os
from collections.abc import Sequence
from pathlib import Path

from agent_tools.engines.context import REPOSITORY, tag_for
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.docker.image import Progress, ensure
from agent_tools.engines.docker.image_archive import names_in, plain_name
from agent_tools.engines.docker.image_origin import origin_of
from agent_tools.engines.recipe import FLAVOURS, Recipe, RecipeLike
from agent_tools.errors import EngineError
from agent_tools.limits import MIB
from agent_tools.machine.folder import replacing
from agent_tools.version import __version__

FAST = 1  # gzip level: a third of the size, in a quarter of the usual time
EVERY = 100 * MIB  # bytes of an archive between two lines of progress


def save(engine: DockerEngine, path: Path, recipe: RecipeLike = (), progress: Progress = lambda _: None) -> str:
    """Write the image, pulled or built first if missing, as a compressed archive for engines; return its tag.

    Raises:
        OSError: the file cannot be written; a partial file is removed.
    """
    tag = ensure(engine, recipe, progress)
    progress(f"Saving {tag}")
    target, written = path.resolve(), 0
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    with (
        replacing(target.parent, target.name, (os.getuid(), os.getgid()), 0o644) as draft,
        gzip.open(draft, "wb", compresslevel=FAST) as file,
    ):
        for data in engine.saved_image(tag):
            file.write(data)
            if written // EVERY != (written := written + len(data)) // EVERY:
                progress(f"Saving {tag}: {written // MIB} MiB")
    return tag


def load(engine: DockerEngine, path: Path, progress: Progress = lambda _: None) -> list[str]:
    """Load an archive into the engine; return the tags in it.

    Raises:
        EngineError: it is not an archive of images; or has another's, which would replace what the engine has under
            that name; or one under a name of this installation that another version has built; or the engine has
            found other names in it.
        OSError: the file cannot be read.
    """
    progress(f"Loading {path}")
    tags: list[str] = []
    with path.open("rb") as file:
        names = names_in(file)
        if foreign := sorted(name for name in names if not name.startswith(f"{REPOSITORY}:")):
            raise EngineError(
                f"{path} has images that are not agent_tools' own, such as {foreign[0]!r:.80}: nothing was loaded. "
                "Load it with the engine's own command if you trust it."
            )
        file.seek(0)
        try:
            for line in engine.load_image(file):
                progress(line)
                if line.startswith("Loaded image: "):
                    tags += map(plain_name, line.removeprefix("Loaded image: ").split(","))  # Podman names all at once
        finally:  # an engine may fail after it has taken some
            if hidden := sorted(set(tags) - names):
                found = f"The engine has found {hidden[0]!r:.80} in {path}, which hides that name, and loaded it."
                lost = "An image that the engine had under that name is lost. Do not use this file."
                raise EngineError(f"{found} {_removed(engine, tags)} {lost}")
    if not tags:
        raise EngineError(f"{path} has no image with a name: write it with `agent-tools image save`.")
    current = {tag_for(Recipe(flavour=flavour)) for flavour in FLAVOURS}
    for tag in current.intersection(tags):
        if (version := origin_of(engine.image_facts(tag)).version) != __version__:
            wrong = f"{tag} in {path} is not what its name says: its label names version {version}."
            raise EngineError(f"{wrong} {_removed(engine, [tag])}")
    return tags


def _removed(engine: DockerEngine, tags: Sequence[str]) -> str:
    """Remove images that were loaded; return a sentence on it, with those that the engine keeps."""
    kept = []
    for tag in tags:
        try:
            engine.remove_image(tag)
        except EngineError as exc:
            kept.append(f"{tag} ({exc})")
    return f"Not all could be removed again: {'; '.join(kept)}." if kept else f"Removed again: {', '.join(tags)}."
