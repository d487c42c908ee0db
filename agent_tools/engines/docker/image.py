"""The sandbox's image: pulled or built once on each machine. context.py computes its tag."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

from agent_tools import settings
from agent_tools.engines.context import REPOSITORY, context_files, packed_context, shipped, tag_for
from agent_tools.engines.docker.connection import environment
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.docker.image_archive import names_in
from agent_tools.engines.engine import FLAVOURS, Recipe, RecipeLike, recipe_of
from agent_tools.errors import EngineError, EngineUnavailable, ImageBuildError
from agent_tools.limits import MIB
from agent_tools.machine.private_folder import private_base
from agent_tools.text import one_line, shorten
from agent_tools.version import __version__

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
    origin = origin_on(base, engine.image_facts(base))
    arguments = {"BASE_IMAGE": base, **stack, **origin.arguments, **settings.build_arguments()}
    with only_build(progress):
        try:
            _run(engine, recipe, arguments, progress)
        except ImageBuildError as exc:
            if not any(words in str(exc) for words in LOST_LAYERS):
                raise
            _run(engine, recipe, arguments, progress)
        engine.prune_build_stage(BUILD_STAGE_LABEL)
    progress(f"Built {tag}")
    return tag


def _run(engine: DockerEngine, recipe: Recipe, arguments: Mapping[str, str], progress: Progress) -> None:
    run_build(engine, packed_context(context_files(recipe)), tag_for(recipe), arguments, progress)


def run_build(
    engine: DockerEngine, context: BinaryIO, tag: str, arguments: Mapping[str, str], progress: Progress
) -> None:
    """Build an image from a context.

    Raises:
        ImageBuildError: a step failed.
    """
    for line in engine.build(context, tag, arguments):
        for part in filter(None, (part.strip() for part in line.splitlines())):
            progress(part)


def _contents(recipe: Recipe) -> str:
    if recipe.below is None:
        return f"Python, IPython and the data stack, {recipe.flavour} (a minute or two, once)"
    return "further packages" if recipe.packages or recipe.debian_packages else f"flavour {recipe.flavour}"


def ensure_base(engine: DockerEngine, progress: Progress = lambda _: None) -> str:
    """Return the base image: the configured one, an existing one, a pulled one, or one made from Debian packages."""
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


# The origin of an image, in the standard labels: the base it was built on, and the version that built it.


PREFIX = "org.opencontainers.image."
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Origin:
    """The origin of an image.

    Attributes:
        base: the name of the image it was built on.
        digest: the base image's digest in its registry, or its id in the engine.
        version: of agent_tools.
    """

    base: str
    digest: str
    version: str = __version__

    @property
    def arguments(self) -> dict[str, str]:
        """The build arguments, from which the build makes labels."""
        return {"BASE_NAME": self.base, "BASE_DIGEST": self.digest, "VERSION": self.version}


def origin_on(base: str, facts: Mapping[str, Any]) -> Origin:
    """Return the origin of an image built on `base`, which may be pinned (NAME@sha256:...), given its `inspect`."""
    name = base.partition("@")[0]
    return Origin(name, _digest(_repository(name), facts))


def origin_of(facts: Mapping[str, Any]) -> Origin:
    """Read the labels in an image's `inspect`; other images may have none."""
    labels = (facts.get("Config") or {}).get("Labels") or {}
    base, digest, version = (labels.get(PREFIX + name) or UNKNOWN for name in ("base.name", "base.digest", "version"))
    return Origin(base, digest, version)


def _digest(repository: str, facts: Mapping[str, Any]) -> str:
    """Return the digest under this repository's name, else any digest, else the id."""
    known = dict(reference.split("@", 1) for reference in reversed(facts.get("RepoDigests") or ()) if "@" in reference)
    return str(known.get(repository) or next(iter(known.values()), None) or facts["Id"])


def _repository(name: str) -> str:
    """An image's name without its tag; a colon before a slash is a registry's port."""
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


# Published images of the sandbox: pulled by the fingerprint of this installation instead of a build.
#
# A release has the digests of its images in `published.json` beside this file, so that the registry cannot replace
# them.
# A repository of the operator's own is asked for the fingerprint as a tag.


RELEASED = Path(__file__).with_name("published.json")
"""`{"repository": ..., "signer": ..., "digests": {fingerprint: "sha256:..."}}`; `scripts/release` writes it."""
ISSUER = "https://token.actions.githubusercontent.com"
VERIFY_SECONDS = 60


@dataclass(frozen=True)
class Source:
    """A published image. `signer` is a regular expression for the signing identity; '' if it is not signed."""

    reference: str
    signer: str = ""


def source_of(tag: str, released: Path = RELEASED) -> Source | None:
    """Return the published image for the fingerprint in a local tag; None if there is none, or pulls are off."""
    repository, fingerprint = settings.image_repository(), tag.partition(":")[2]
    if repository:
        return None if repository == "none" else Source(f"{repository}:{fingerprint}")
    record = json.loads(released.read_text())
    digest = record["digests"].get(fingerprint)
    return Source(f"{record['repository']}@{digest}", record["signer"]) if digest else None


def pull(engine: DockerEngine, source: Source, tag: str, progress: Callable[[str], None]) -> None:
    """Pull a published image, check its signature if cosign is installed, and give it its local tag.

    Raises:
        EngineError: it could not be pulled, or the release did not sign it.
    """
    progress(f"Pulling {source.reference}")
    for line in engine.pull(source.reference):
        progress(line)
    if source.signer:
        _verify(source)
    engine.tag_image(source.reference, tag)
    progress(f"Pulled {tag} from {source.reference}")


def pulled(engine: DockerEngine, tag: str, progress: Callable[[str], None]) -> bool:
    """Return whether an image could be pulled. A failure is reported as progress, since the image can still be built.

    Raises:
        EngineUnavailable: the engine does not answer.
    """
    source = source_of(tag)
    if source is None:
        return False
    try:
        pull(engine, source, tag, progress)
    except EngineUnavailable:
        raise
    except EngineError as exc:
        progress(f"No published image: {exc}. Building it instead")
        return False
    return True


def _verify(source: Source) -> None:
    if not (cosign := shutil.which("cosign")):
        return
    command = [cosign, "verify", "--certificate-oidc-issuer", ISSUER, "--certificate-identity-regexp", source.signer]
    try:
        done = subprocess.run(
            [*command, source.reference], capture_output=True, text=True, timeout=VERIFY_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise EngineError(f"cosign did not answer about {source.reference} within {VERIFY_SECONDS} seconds") from exc
    if done.returncode:
        raise EngineError(f"cosign does not verify {source.reference}: {one_line(shorten(done.stderr, 500))}")


# The sandbox's image in a file, for machines without a network.


CHUNK = 2 * MIB
FAST = 1  # gzip level: a third of the size, in a quarter of the usual time
EVERY = 100 * MIB  # bytes of an archive between two lines of progress


def save(engine: DockerEngine, path: Path, recipe: RecipeLike = (), progress: Progress = lambda _: None) -> str:
    """Write the image, pulled or built first if missing, as a compressed archive for engines; return its tag.

    Raises:
        OSError: the file cannot be written; a partial file is removed.
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
    """Load an archive into the engine; return the tags in it.

    Raises:
        EngineError: it is not an archive of images; or has another's, which would replace what the engine has under
            that name; or one under a name of this installation that another version has built.
        OSError: the file cannot be read.
    """
    progress(f"Loading {path}")
    tags = []
    with path.open("rb") as file:
        names = names_in(file)
        if foreign := sorted(name for name in names if not name.startswith(f"{REPOSITORY}:")):
            raise EngineError(
                f"{path} has images that are not agent_tools' own, such as {foreign[0]!r:.80}: nothing was loaded. "
                "Load it with the engine's own command if you trust it."
            )
        file.seek(0)
        for line in engine.load_image(file):
            progress(line)
            if line.startswith("Loaded image: "):
                tags.append(line.removeprefix("Loaded image: ").removeprefix("localhost/"))
    if not tags:
        raise EngineError(f"{path} has no image with a name: write it with `agent-tools image save`.")
    current = {tag_for(Recipe(flavour=flavour)) for flavour in FLAVOURS}
    for tag in current.intersection(tags):
        if (version := origin_of(engine.image_facts(tag)).version) != __version__:
            engine.remove_image(tag)
            raise EngineError(f"{tag} in {path} is not what its name says: its label names version {version}.")
    return tags
