"""The sandbox's image in a registry, for engines that pull it: nodes of a cluster, other machines."""

from __future__ import annotations

import contextlib

from agent_tools.engines.docker.connection import translated
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.docker.image import Progress, ensure
from agent_tools.engines.recipe import RecipeLike
from agent_tools.errors import EngineError, InvalidParams
from agent_tools.text import one_line, shorten


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
