"""The sandbox's image in a registry or in a file, for other engines: nodes of a cluster, machines without a network."""

from __future__ import annotations

import contextlib
import gzip
import os
from pathlib import Path

from agent_tools.engines.docker.connection import translated
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.docker.image import Progress, ensure
from agent_tools.engines.recipe import RecipeLike
from agent_tools.errors import EngineError, InvalidParams
from agent_tools.limits import MIB
from agent_tools.text import one_line, shorten

CHUNK = 2 * MIB
FAST = 1  # the level of gzip: a third of the size, in a quarter of the usual time
EVERY = 100 * MIB  # bytes of an archive between two lines of progress


def push(engine: DockerEngine, repository: str, recipe: RecipeLike = (), progress: Progress = lambda _: None) -> str:
    """Push the image, built first if need be, under its fingerprint; return the reference.

    Credentials are those of `docker login`.

    Raises:
        EngineError: the registry does not take it.
        InvalidParams: the repository has a tag or a digest, or is empty.
    """
    if not repository or "@" in repository or ":" in repository.rpartition("/")[2]:
        hint = "give a name without a tag, such as registry.example.com/team/agent-tools"
        raise InvalidParams(f"The repository {repository!r:.200} is not usable: {hint}.")
    tag = ensure(engine, recipe, progress)
    fingerprint = tag.partition(":")[2]
    with translated():
        api = engine.connection.api(is_patient=True)
        api.tag(tag, repository, fingerprint)
        try:
            for line in api.push(repository, fingerprint, stream=True, decode=True):
                if "error" in line:
                    said = one_line(shorten(str(line["error"]), 500))
                    raise EngineError(f"{repository}:{fingerprint} could not be pushed: {said}")
                progress(str(line.get("status", "")))
        except BaseException:
            with contextlib.suppress(EngineError):  # the name alone goes: the image has another
                engine.remove_image(f"{repository}:{fingerprint}")
            raise
    return f"{repository}:{fingerprint}"


def save(engine: DockerEngine, path: Path, recipe: RecipeLike = (), progress: Progress = lambda _: None) -> str:
    """Write the image, pulled or built first if need be, as a compressed archive that engines load; return its tag.

    Raises:
        OSError: the file cannot be written; no part of it is left.
    """
    tag = ensure(engine, recipe, progress)
    progress(f"Saving {tag}")
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    written = 0
    try:
        with gzip.open(draft, "wb", compresslevel=FAST) as file:
            for data in engine.saved_image(tag):
                file.write(data)
                if written // EVERY != (written := written + len(data)) // EVERY:
                    progress(f"Saving {tag}: {written // MIB} MiB")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return tag


def load(engine: DockerEngine, path: Path, progress: Progress = lambda _: None) -> list[str]:
    """Load an archive into the engine; return the tags that it brought.

    Raises:
        EngineError: it is not an archive of images.
        OSError: the file cannot be read.
    """
    progress(f"Loading {path}")
    tags = []
    with path.open("rb") as file:
        for line in engine.load_image(file):
            progress(line)
            if line.startswith("Loaded image: "):
                tags.append(line.removeprefix("Loaded image: ").removeprefix("localhost/"))
    if not tags:
        raise EngineError(f"{path} has no image with a name: write it with `agent-tools image save`.")
    return tags
