"""The sandbox's image in a registry, for engines that pull it: nodes of a cluster, other machines."""

from __future__ import annotations

from agent_tools.errors import EngineError
from agent_tools.runtime.docker.connection import translated
from agent_tools.runtime.docker.engine import DockerEngine
from agent_tools.runtime.docker.image import Progress, ensure
from agent_tools.runtime.recipe import RecipeLike
from agent_tools.text import one_line, shorten


def push(engine: DockerEngine, repository: str, recipe: RecipeLike = (), progress: Progress = lambda _: None) -> str:
    """Push the image, built first if need be, under its fingerprint; return the reference.

    Credentials are those of `docker login`.

    Raises:
        EngineError: the registry does not take it.
    """
    tag = ensure(engine, recipe, progress)
    fingerprint = tag.partition(":")[2]
    with translated():
        api = engine.connection.api(is_patient=True)
        api.tag(tag, repository, fingerprint)
        for line in api.push(repository, fingerprint, stream=True, decode=True):
            if "error" in line:
                said = one_line(shorten(str(line["error"]), 500))
                raise EngineError(f"{repository}:{fingerprint} could not be pushed: {said}")
            progress(str(line.get("status", "")))
    return f"{repository}:{fingerprint}"
