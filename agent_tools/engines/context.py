"""The build context of an image, and the tag made of its fingerprint, so that a stale image is never run."""

from __future__ import annotations

import functools
import hashlib
import io
import re
import tarfile
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from agent_tools import settings
from agent_tools.engines.package_data import shipped
from agent_tools.engines.recipe import STACKS, Flavour, Recipe, RecipeLike, recipe_of
from agent_tools.errors import InvalidParams

REPOSITORY = "agent-tools"
_PLAIN = re.compile(r"[A-Za-z0-9 ._+*!<>=~,;()\[\]\"'-]+")
_OPTION = re.compile(r"[\s=\"']-")


def context_files(recipe: RecipeLike = ()) -> dict[str, bytes]:
    """Return the build context, by name, without the CA bundle, which differs between machines.

    The context of a layer contains the tag of the image below it, so that a change below changes its tag, too.
    """
    recipe = recipe_of(recipe)
    below = recipe.below
    return _stack_files(recipe.flavour) if below is None else _layer_files(recipe, below)


def _stack_files(flavour: Flavour) -> dict[str, bytes]:
    """Return the context of an image that is not a layer."""
    lock = "requirements.lock" if flavour == "lean" else f"flavours/{flavour}.lock"
    files = {
        "Dockerfile": shipped("docker/code_interpreter.dockerfile").read_bytes(),
        "requirements.lock": shipped(f"docker/{lock}").read_bytes(),
    }
    for name in ("uv.lock", "font_fallback.py", "font_links.sh", "matplotlibrc", "no_pip.py", "session_pip.py"):
        files[name] = shipped(f"docker/{name}").read_bytes()
    for folder, pattern in (("guest", "**/*.py"), ("fonts", "*"), ("docker/datasets", "*"), ("docker/modules", "*.py")):
        top = shipped(folder)
        name = folder.removeprefix("docker/")
        files.update({f"{name}/{path.relative_to(top)}": path.read_bytes() for path in sorted(top.glob(pattern))})
    return files


def _layer_files(recipe: Recipe, below: Recipe) -> dict[str, bytes]:
    """Return the context of a layer: the requested packages, or the flavour's packages beyond the image below.

    A layer with Debian packages lists those of its flavour, too: the topmost layer has the list of all packages.
    """
    is_flavour = below.flavour != recipe.flavour
    npm = shipped("docker/flavours/office.npm").read_bytes() if is_flavour and recipe.flavour == "office" else b""
    lock = shipped(f"docker/flavours/{recipe.flavour}.lock").read_bytes() if is_flavour else b""
    debian = set(recipe.debian_packages)
    if (is_flavour or debian) and recipe.flavour not in STACKS:
        debian.update(of_debian(recipe.flavour))
    return {
        "Dockerfile": shipped("docker/packages.dockerfile").read_bytes(),
        "debian_packages.sh": shipped("docker/debian_packages.sh").read_bytes(),
        "uv.lock": shipped("docker/uv.lock").read_bytes(),
        "npm_packages.py": shipped("docker/npm_packages.py").read_bytes(),
        "npm-packages.txt": npm,
        "below": f"{tag_for(below)}\n".encode(),
        "extra-requirements.txt": lock or _lines(validated(recipe.packages)),
        "debian-packages.txt": _lines(sorted(debian)),
    }


def of_debian(flavour: Flavour) -> list[str]:
    """Return the Debian packages of a flavour."""
    return shipped(f"docker/flavours/{flavour}.debian").read_text().split()


def _lines(names: Sequence[str]) -> bytes:
    return "".join(f"{name}\n" for name in names).encode()


def validated(packages: Sequence[str]) -> list[str]:
    """Return the packages as requirement lines, sorted.

    Raises: InvalidParams: an entry is not a plain PEP 508 requirement (a URL, an option, a path).
    """
    if isinstance(packages, str):
        raise InvalidParams(
            f"packages={packages!r} is one string; give a list such as ['polars==1.0.0'], or --package polars."
        )
    return sorted({_requirement(entry) for entry in packages})


def _requirement(entry: str) -> str:
    """Return one entry as a line of a requirements file in which pip can only read a requirement."""
    from packaging.requirements import Requirement  # imported only where needed

    try:
        requirement = Requirement(entry)
        line = str(requirement)  # evaluates escapes in the texts of a marker; rejects a text with both kinds of quotes
    except (ValueError, TypeError) as exc:
        raise InvalidParams(f"packages has {entry!r}, which is not a requirement such as 'polars==1.0.0'.") from exc
    if requirement.url:
        raise InvalidParams(f"packages has {entry!r}: packages come from the package index, not from URLs.")
    if _OPTION.search(line):
        raise InvalidParams(f"packages has {entry!r}: no part of a requirement begins with a hyphen, as options do.")
    if not _PLAIN.fullmatch(line):
        raise InvalidParams(
            f"packages has {entry!r}: beside letters and digits a requirement such as 'polars==1.0.0' holds only "
            "spaces, quotes and ._-+*!<>=~,;()[]."
        )
    return line


def tag_for(recipe: RecipeLike = ()) -> str:
    """Return the image's tag: `agent-tools:<first 16 hex digits of the context's SHA-256>`; its files are read once."""
    return _tag(recipe_of(recipe))


@functools.lru_cache(maxsize=128)
def _tag(recipe: Recipe) -> str:
    return tag_of(context_files(recipe))


def tag_of(files: Mapping[str, bytes]) -> str:
    """Return the tag of the image that a build context makes."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return f"{REPOSITORY}:{digest.hexdigest()[:16]}"


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
