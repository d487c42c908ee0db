"""The sandbox's image: which one it is, and how it comes to be, once, on whatever machine this is.

The tag is a fingerprint of everything the image is made from, so that a stale image is never run.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

from agent_tools import settings
from agent_tools.errors import EngineError, ImageBuildError, InvalidParams
from agent_tools.runtime.docker.engine import DockerEngine
from agent_tools.runtime.docker.origin import origin_on
from agent_tools.runtime.docker.shipped import shipped
from agent_tools.runtime.files.private_base import private_base
from agent_tools.runtime.recipe import STACKS, Flavour, Recipe, RecipeLike, recipe_of

REPOSITORY = "agent-tools"
REGISTRY_BASE = "python:3.13-slim-trixie"
DEBIAN_BASE = "agent-tools-base:trixie-apt"
BUILD_STAGE_LABEL = "agent_tools.stage=builder"

_PLAIN = re.compile(r"[A-Za-z0-9 ._+*!<>=~,;()\[\]\"'-]+")

Progress = Callable[[str], None]
LOST_LAYER = "layer does not exist"  # an engine may lose one where another image is removed meanwhile; once more helps


def context_files(recipe: RecipeLike = ()) -> dict[str, bytes]:
    """The build context, by name, without what differs from machine to machine (the CA bundle).

    An image that is a layer on another has that one's tag in its context, so that another such image gets another tag.
    """
    recipe = recipe_of(recipe)
    below = recipe.below
    return _stack_files(recipe.flavour) if below is None else _layer_files(recipe, below)


def _stack_files(flavour: Flavour) -> dict[str, bytes]:
    """The context of an image that stands alone."""
    lock = "requirements.lock" if flavour == "lean" else f"flavours/{flavour}.lock"
    files = {
        "Dockerfile": shipped("docker/code_interpreter.dockerfile").read_bytes(),
        "requirements.lock": shipped(f"docker/{lock}").read_bytes(),
    }
    for name in ("font_fallback.py", "matplotlibrc", "session_pip.py"):
        files[name] = shipped(f"docker/{name}").read_bytes()
    for folder, pattern in (("guest", "**/*.py"), ("fonts", "*")):
        top = shipped(folder)
        files.update({f"{folder}/{path.relative_to(top)}": path.read_bytes() for path in sorted(top.glob(pattern))})
    return files


def _layer_files(recipe: Recipe, below: Recipe) -> dict[str, bytes]:
    """The context of a layer: what is asked for, or what a flavour has beyond the image below it.

    A layer with Debian packages has its flavour's, too: the list of all that is installed is in the topmost one.
    """
    is_flavour = below.flavour != recipe.flavour
    lock = shipped(f"docker/flavours/{recipe.flavour}.lock").read_bytes() if is_flavour else b""
    debian = set(recipe.debian_packages)
    if (is_flavour or debian) and recipe.flavour not in STACKS:
        debian.update(shipped(f"docker/flavours/{recipe.flavour}.debian").read_text().split())
    return {
        "Dockerfile": shipped("docker/packages.dockerfile").read_bytes(),
        "debian_packages.sh": shipped("docker/debian_packages.sh").read_bytes(),
        "below": f"{tag_for(below)}\n".encode(),
        "extra-requirements.txt": lock or _lines(validated(recipe.packages)),
        "debian-packages.txt": _lines(sorted(debian)),
    }


def _lines(names: Sequence[str]) -> bytes:
    return "".join(f"{name}\n" for name in names).encode()


def validated(packages: Sequence[str]) -> list[str]:
    """The packages as requirement lines, sorted.

    Raises:
        InvalidParams: an entry is not a plain PEP 508 requirement (a URL, an option, a path).
    """
    if isinstance(packages, str):
        raise InvalidParams(f"packages={packages!r} is one string; give a list such as ['polars==1.0.0'].")
    return sorted({_requirement(entry) for entry in packages})


def _requirement(entry: str) -> str:
    """One entry as one line of a requirements file, in which pip finds the requirement and nothing else."""
    from packaging.requirements import Requirement  # imported by those who need it

    try:
        requirement = Requirement(entry)
        line = str(requirement)  # evaluates escapes in the texts of a marker; refuses one with both kinds of quotes
    except (ValueError, TypeError) as exc:
        raise InvalidParams(f"packages has {entry!r}, which is not a requirement such as 'polars==1.0.0'.") from exc
    if requirement.url:
        raise InvalidParams(f"packages has {entry!r}: packages come from the package index, not from URLs.")
    if not _PLAIN.fullmatch(line):
        raise InvalidParams(
            f"packages has {entry!r}: beside letters and digits a requirement such as 'polars==1.0.0' holds only "
            "spaces, quotes and ._-+*!<>=~,;()[]."
        )
    return line


def tag_for(recipe: RecipeLike = ()) -> str:
    """The image's tag: `agent-tools:<first 16 hex digits of the context's SHA-256>`."""
    digest = hashlib.sha256()
    for name, content in sorted(context_files(recipe).items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return f"{REPOSITORY}:{digest.hexdigest()[:16]}"


def ensure(engine: DockerEngine, recipe: RecipeLike = (), progress: Progress = lambda _: None) -> str:
    """Return the tag of an image that is there, building it first if need be; concurrent processes build it once.

    Raises:
        ImageBuildError: it could not be built.
        EngineUnavailable: no engine answers.
    """
    tag = tag_for(recipe)
    if engine.has_image(tag):
        return tag
    with _build_lock(tag, progress):
        if not engine.has_image(tag):
            build(engine, recipe, progress)
    return tag


class Images:
    """The images that this process has ensured, each once, and once more when one is gone as a sandbox starts."""

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine
        self._tags: dict[Recipe, str] = {}
        engine.restore_image = self._restore

    def ensure(self, recipe: RecipeLike = ()) -> str:
        """Return the tag of an image that was there, or was built, when it was first asked for.

        Raises:
            ImageBuildError: it could not be built.
            EngineUnavailable: no engine answers.
        """
        key = recipe_of(recipe)
        if key not in self._tags:
            self._tags[key] = ensure(self._engine, key)
        return self._tags[key]

    def _restore(self, tag: str) -> bool:
        for recipe, known in list(self._tags.items()):
            if known == tag:
                ensure(self._engine, recipe)
                return True
        return False


def build(engine: DockerEngine, recipe: RecipeLike = (), progress: Progress = lambda _: None) -> str:
    """Build the image now, whether or not it is there."""
    recipe = recipe_of(recipe)
    tag, below = tag_for(recipe), recipe.below
    stack = {"STACK_IMAGE": ensure(engine, below, progress)} if below else {}
    base = ensure_base(engine, progress)
    progress(f"Building {tag} on {base}: {_contents(recipe)}")
    origin = origin_on(base, engine.image_facts(base))
    arguments = {"BASE_IMAGE": base, **stack, **origin.arguments, **settings.package_index()}
    with only_build(progress):
        try:
            _run(engine, recipe, arguments, progress)
        except ImageBuildError as exc:
            if LOST_LAYER not in str(exc):
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
    """The image to build on: a given one, one that is there, pulled, or made from Debian packages; in that order."""
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


def packed_context(files: Mapping[str, bytes]) -> BinaryIO:
    """Return a build context as a tar, with the CA bundle of this machine, which may be empty."""
    bundle = settings.ca_bundle()
    files = {**files, "ca-bundle.crt": bundle.read_bytes() if bundle else b""}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    archive.seek(0)
    return archive


@contextmanager
def _build_lock(tag: str, progress: Progress) -> Iterator[None]:
    """One build at a time among the processes of this user."""
    with open(private_base() / f"{tag.replace(':', '-')}.lock", "w") as file:
        _take(file, "Another process is building the image; waiting for it", progress)
        yield


@contextmanager
def only_build(progress: Progress) -> Iterator[None]:
    """One build at a time of whatever image: the end of one removes stages, of which another could be made."""
    with open(private_base(settings.builds_dir()) / "builds.lock", "w") as file:
        _take(file, "Another image is being built; waiting for it", progress)
        yield


def _take(file: IO[str], told: str, progress: Progress) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        progress(told)
        fcntl.flock(file, fcntl.LOCK_EX)
