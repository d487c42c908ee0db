"""The gateway's image: this package with the gateway's dependencies, in the layout of a checkout."""

from __future__ import annotations

from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.docker.image import Progress, ensure_base, run_build
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
    run_build(engine, context_files(), tag, base, {"COMPILE": compiled}, progress)
    return tag
