"""The sandbox's image: pulled or built once on each machine. context.py computes its tag."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from agent_tools import settings
from agent_tools.engines.context import context_files, packed_context, tag_for, tag_of
from agent_tools.engines.docker.address import environment
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.docker.image_origin import origin_on
from agent_tools.engines.docker.published_image import pulled
from agent_tools.engines.package_data import shipped
from agent_tools.engines.recipe import Recipe, RecipeLike, recipe_of
from agent_tools.errors import EngineError, EngineUnavailable, ImageBuildError
from agent_tools.machine.private_folder import private_base

REGISTRY_BASE = "python:3.13-slim-trixie"
DEBIAN_BASE = "agent-tools-base:trixie-apt"
BUILD_STAGE_LABEL = "agent_tools.stage=builder"

Progress = Callable[[str], None]
MILESTONES = ("Pulling ", "Pulled ", "No ", "Making ", "Building ", "Built ", "Another ")
"""The first words of this package's own progress lines, as opposed to the engine's and installers' lines."""
log = logging.getLogger("agent_tools.image")
LOST_LAYERS = ("layer does not exist", "failed to get digest", "No such image: sha256:")
"""Error texts of an engine that lost a layer or a stage, as when another user's build ends: the build is retried."""


def ensure(engine: DockerEngine, recipe: RecipeLike = (), progress: Progress = lambda _: None) -> str:
    """Pull or build an image if it is missing, only once among concurrent processes; return its tag.

    Raises:
        ImageBuildError: it could not be built.
        EngineUnavailable: the engine does not answer.
    """
    tag = tag_for(recipe)
    if engine.has_image(tag):
        return tag
    with _noted(tag, progress) as progress, _build_lock(tag, progress):
        if not engine.has_image(tag) and not pulled(engine, tag, progress):
            build(engine, recipe, progress)
    return tag


def preparing() -> str:
    """Return the last line of progress of an image that this process pulls, builds or waits for; '' without one."""
    return next(iter(list(_preparing.values())), "")


_preparing: dict[str, str] = {}


@contextmanager
def _noted(tag: str, progress: Progress) -> Iterator[Progress]:
    def note(line: str) -> None:
        _preparing[tag] = line
        progress(line)

    _preparing[tag] = f"Preparing {tag}"
    try:
        yield note
    finally:
        _preparing.pop(tag, None)


class Images:
    """The images that this process has ensured, each once, and again if one is missing when a sandbox starts.

    Meanwhile `preparing()` returns the last line of progress, and the log has the main lines.
    """

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine
        self._tags: dict[Recipe, str] = {}
        engine.restore_image = self._restore

    def ensure(self, recipe: RecipeLike = ()) -> str:
        """Pull or build an image if it is missing, at its first use in this process; return its tag.

        Raises:
            ImageBuildError: it could not be built.
            EngineUnavailable: the engine does not answer.
        """
        key = recipe_of(recipe)
        if key not in self._tags:
            self._tags[key] = ensure(self._engine, key, self._report)
        return self._tags[key]

    def _restore(self, tag: str) -> bool:
        for recipe, known in list(self._tags.items()):
            if known == tag:
                ensure(self._engine, recipe, self._report)
                return True
        return False

    @staticmethod
    def _report(line: str) -> None:
        if line.startswith(MILESTONES):
            log.warning(line)


def build(engine: DockerEngine, recipe: RecipeLike = (), progress: Progress = lambda _: None) -> str:
    """Build the image now, even if it exists."""
    recipe = recipe_of(recipe)
    tag, below = tag_for(recipe), recipe.below
    stack = {"STACK_IMAGE": ensure(engine, below, progress)} if below else {}
    base = ensure_base(engine, progress)
    progress(f"Building {tag} on {base}: {_contents(recipe)}")
    files = context_files(recipe)
    if tag_of(files) != tag:
        raise ImageBuildError(
            f"{tag} cannot be built: agent_tools was changed here since this process began. Restart it."
        )
    run_build(engine, files, tag, base, stack, progress)
    return tag


def run_build(
    engine: DockerEngine,
    files: Mapping[str, bytes],
    tag: str,
    base: str,
    arguments: Mapping[str, str],
    progress: Progress,
) -> None:
    """Build an image on a base from the files of its context.

    Raises:
        ImageBuildError: a step failed.
    """
    origin = origin_on(base, engine.image_facts(base))
    arguments = {"BASE_IMAGE": base, **arguments, **origin.arguments, **settings.build_arguments()}

    def run() -> None:
        for line in engine.build(packed_context(files), tag, arguments):
            for part in filter(None, (part.strip() for part in line.splitlines())):
                progress(part)

    with only_build(progress):
        try:
            run()
        except ImageBuildError as exc:
            if not any(words in str(exc) for words in LOST_LAYERS):
                raise
            run()
        engine.prune_build_stage(BUILD_STAGE_LABEL)
    progress(f"Built {tag}")


def _contents(recipe: Recipe) -> str:
    if recipe.below is None:
        return f"Python, IPython and the data stack, {recipe.flavour} (a minute or two, once)"
    return "further packages" if recipe.packages or recipe.debian_packages else f"flavour {recipe.flavour}"


def ensure_base(engine: DockerEngine, progress: Progress = lambda _: None) -> str:
    """Return the base image: the configured one, an existing one, a pulled one, or one made from Debian packages.

    Raises:
        ImageBuildError: it cannot be had. EngineUnavailable: the engine does not answer.
    """
    given = settings.base_image()
    for candidate in (given,) if given else (REGISTRY_BASE, DEBIAN_BASE):
        if engine.has_image(candidate):
            return candidate
    wanted = given or REGISTRY_BASE
    try:
        progress(f"Pulling {wanted}")
        for line in engine.pull(wanted):
            progress(line)
        return wanted
    except EngineUnavailable:
        raise
    except EngineError as exc:
        if given:
            raise ImageBuildError(f"AGENT_TOOLS_BASE_IMAGE: {exc}") from exc
        progress(f"No container registry answers ({exc})")
        return _make_debian_base(engine, progress, exc)


def _make_debian_base(engine: DockerEngine, progress: Progress, cause: Exception) -> str:
    script = shipped("docker/debian_base.sh")
    if os.getuid() != 0 or not shutil.which("mmdebstrap"):
        raise ImageBuildError(
            f"No container registry answers, and the base image cannot be made here ({cause}). Either load "
            f"{REGISTRY_BASE} into the engine; or, as root on Debian or Ubuntu, `apt-get install mmdebstrap` and try "
            "again; or set AGENT_TOOLS_BASE_IMAGE to a Python 3.13 image that the engine has."
        ) from cause
    progress("Making the base image from Debian packages (about half a minute)")
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "base.tar"
        made = subprocess.run(["sh", str(script), str(archive)], capture_output=True, text=True, check=False)
        if made.returncode:
            raise ImageBuildError(f"{script} failed: {made.stderr.strip()[-500:]}", made.stderr[-8192:])
        engine.import_image(archive, *DEBIAN_BASE.split(":"))
    return DEBIAN_BASE


@contextmanager
def _build_lock(tag: str, progress: Progress) -> Iterator[None]:
    """Lock builds of this image among the processes of this user."""
    with open(private_base() / _lock_name(tag.replace(":", "-")), "w") as file:
        _take(file, "Another process is building the image; waiting for it", progress)
        yield


@contextmanager
def only_build(progress: Progress) -> Iterator[None]:
    """Lock builds of all images: the end of a build removes stages that another build could use."""
    with open(private_base(settings.builds_dir()) / _lock_name("builds"), "w") as file:
        _take(file, "Another image is being built; waiting for it", progress)
        yield


def _lock_name(what: str) -> str:
    """Return a lock name that differs by engine, so that builds of different engines do not wait for each other."""
    host = environment().get("DOCKER_HOST", "")
    return f"{what}-{hashlib.sha256(host.encode()).hexdigest()[:8]}.lock"


def _take(file: IO[str], message: str, progress: Progress) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        progress(message)
        fcntl.flock(file, fcntl.LOCK_EX)
