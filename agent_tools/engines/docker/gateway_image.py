"""The gateway's image: this package with the gateway's dependencies, in the layout of a checkout."""

from __future__ import annotations

from agent_tools import settings
from agent_tools.engines.context import packed_context
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.docker.image import BUILD_STAGE_LABEL, Progress, ensure_base, only_build, run_build
from agent_tools.engines.docker.image_origin import origin_on
from agent_tools.engines.package_data import package_files, shipped
from agent_tools.version import __version__

REPOSITORY = "agent-tools-gateway"


def context_files() -> dict[str, bytes]:
    """Return the build context, by name, without the CA bundle."""
    files = {f"agent_tools/{name}": path.read_bytes() for name, path in package_files()}
    for folder in ("docker", "fonts"):
        top = shipped(folder)
        found = (path for path in top.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        files |= {f"{folder}/{path.relative_to(top)}": path.read_bytes() for path in found}
    return {**files, "Dockerfile": files["docker/gateway.dockerfile"]}


def build(
    engine: DockerEngine,
    tag: str = f"{REPOSITORY}:{__version__}",
    progress: Progress = lambda _: None,
    *,
    compiled: str = ".",
) -> str:
    """Build the image with bytecode for this folder of its libraries, by default for all, and return its tag.

    Raises:
        ImageBuildError: it could not be built.
        EngineUnavailable: the engine does not answer.
    """
    base = ensure_base(engine, progress)
    progress(f"Building {tag} on {base}")
    arguments = {
        "BASE_IMAGE": base,
        "COMPILE": compiled,
        **origin_on(base, engine.image_facts(base)).arguments,
        **settings.build_arguments(),
    }
    with only_build(progress):
        run_build(engine, packed_context(context_files()), tag, arguments, progress)
        engine.prune_build_stage(BUILD_STAGE_LABEL)
    progress(f"Built {tag}")
    return tag
