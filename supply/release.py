"""Makes a release and tries it, or turns the pages' install lines to the package index.

    scripts/release [FOLDER]                 build the wheel, the sdist, bills of materials and checksums, and try them
    scripts/release [FOLDER] --push NAME     push the images to a registry before, and pin their digests in the wheel;
                                             --images-only does no more; --platform builds for several by buildx
    scripts/release --published              turn the pages' install lines to the package index, after the first upload

FOLDER is dist, unless it is given. The notes of a release are its section of CHANGELOG.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from agent_tools.engines.context import context_files, packed_context, tag_for
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.docker.image import REGISTRY_BASE, ensure
from agent_tools.engines.docker.published_image import RELEASED
from agent_tools.engines.recipe import FLAVOURS, Recipe
from agent_tools.errors import EngineError
from agent_tools.extras import DISTRIBUTION
from agent_tools.version import __version__

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
TESTS = tuple(f"tests/release/{name}.py" for name in ("installing", "bundle", "first_minutes"))

_SOURCE = re.compile(r"^( +package_source: )(\S+)", re.MULTILINE)
_INSTALL = re.compile(rf"(pip install '?)(?:\.|{DISTRIBUTION})(?=[\s\[])")
_NOTE = "  # in a checkout"
_NOTED = re.compile(rf"{_NOTE}$", re.MULTILINE)
_BARE = re.compile(r"^pip install '?\.[^#\n]*(?<! )$", re.MULTILINE)
_UVX = re.compile(rf'"(?:/path/to/checkout|{DISTRIBUTION})\[mcp\]"')


def main(arguments: Sequence[str] | None = None) -> int:
    """Make a release and try it."""
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist", metavar="FOLDER")
    parser.add_argument("--push", metavar="REPOSITORY", help="push the images there, and pin them in the wheel")
    parser.add_argument("--flavour", action="append", choices=FLAVOURS, help="of the images; default: lean; repeatable")
    parser.add_argument("--platform", help="of the images, such as linux/amd64,linux/arm64; needs docker buildx")
    parser.add_argument("--images-only", action="store_true", help="with --push: build nothing else")
    parser.add_argument("--published", action="store_true", help="turn the pages to the package index, and do no more")
    given = parser.parse_args(arguments)
    if given.published:
        turn_pages(DISTRIBUTION)
        return 0
    if given.push:
        pin_images(given.push, [Recipe(flavour=flavour) for flavour in given.flavour or ["lean"]], given.platform)
    if given.images_only:
        return 0
    build(given.folder)
    tried = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-pno:cacheprovider", *TESTS], cwd=ROOT, check=False
    )
    print(f"release: {__version__} is in {given.folder}")
    return tried.returncode


# -- building ---------------------------------------------------------------------------------------------------------


def build(folder: Path) -> None:
    """Build all files of a release into a folder."""
    build_python(folder / "python")
    subprocess.run([ROOT / "scripts/try", "sbom", folder.resolve() / "sbom"], check=True)
    (folder / "NOTES.md").write_text(notes((ROOT / "CHANGELOG.md").read_text(), __version__))
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(lines))


def notes(changelog: str, version: str) -> str:
    """Return the section of a version.

    Raises:
        ValueError: there is none.
    """
    found = re.search(rf"^## {re.escape(version)}(?= |$)[^\n]*\n+(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"CHANGELOG.md has no section of {version}.")
    return found[1]


def build_python(folder: Path) -> None:
    """Build the sdist, and the wheel from it."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)


def pin_images(repository: str, recipes: Sequence[Recipe], platforms: str | None = None) -> None:
    """Push the images, and write their digests into the record that the wheel carries."""
    push = partial(_push_by_buildx, platforms) if platforms else _push
    digests = {tag_for(recipe).partition(":")[2]: push(repository, recipe) for recipe in recipes}
    workflow = os.environ.get("GITHUB_REPOSITORY", "")
    signer = f"^https://github.com/{workflow}/.github/workflows/release.yml@" if workflow else ""
    record = {"repository": repository, "signer": signer, "digests": digests}
    RELEASED.write_text(json.dumps(record, indent=2) + "\n")


def _push(repository: str, recipe: Recipe) -> str:
    engine = DockerEngine()
    reference = push(engine, repository, recipe)
    digests = [each for each in engine.image_facts(reference)["RepoDigests"] if each.startswith(f"{repository}@")]
    return str(digests[0]).partition("@")[2]


def push(engine: DockerEngine, repository: str, recipe: Recipe) -> str:
    """Push an image, made first if it is missing, under its fingerprint; return the reference.

    Credentials are those of `docker login`.

    Raises:
        EngineError: the registry rejects it.
    """
    tag = ensure(engine, recipe)
    fingerprint = tag.partition(":")[2]
    api = engine.connection.api(is_patient=True)
    api.tag(tag, repository, fingerprint)
    try:
        for line in api.push(repository, fingerprint, stream=True, decode=True):
            if "error" in line:
                raise EngineError(f"{repository}:{fingerprint} could not be pushed: {line['error']}")
    except BaseException:
        engine.remove_image(f"{repository}:{fingerprint}")  # the name alone: the image has another
        raise
    return f"{repository}:{fingerprint}"


def _push_by_buildx(platforms: str, repository: str, recipe: Recipe) -> str:
    """Push an image for every platform; the one below it was pushed before."""
    stack = [f"STACK_IMAGE={repository}:{tag_for(recipe.below).partition(':')[2]}"] if recipe.below else []
    arguments = [f"BASE_IMAGE={REGISTRY_BASE}", f"BASE_NAME={REGISTRY_BASE}", f"VERSION={__version__}", *stack]
    with tempfile.NamedTemporaryFile() as facts:
        subprocess.run(
            [
                *("docker", "buildx", "build", f"--platform={platforms}", "--push", f"--metadata-file={facts.name}"),
                *(f"--build-arg={argument}" for argument in arguments),
                *(f"--tag={repository}:{tag_for(recipe).partition(':')[2]}", "-"),
            ],
            input=packed_context(context_files(recipe)).read(),
            check=True,
        )
        return str(json.loads(Path(facts.name).read_text())["containerimage.digest"])


# -- the pages' install lines -----------------------------------------------------------------------------------------


def package_source(mkdocs: str) -> str:
    """Return what the pages install, of the text of mkdocs.yml: '.', a checkout, or the name of the distribution."""
    found = _SOURCE.search(mkdocs)
    assert found
    return found[2]


def install_lines(page: str, source: str) -> str:
    """Return a page whose lines install this project from there, and say where that is a checkout."""
    is_checkout = source == "."
    page = _INSTALL.sub(rf"\g<1>{source}", _NOTED.sub("", page))
    page = _UVX.sub(f'"{"/path/to/checkout" if is_checkout else source}[mcp]"', page)
    return _BARE.sub(rf"\g<0>{_NOTE}", page) if is_checkout else page.replace("# in a checkout; ", "# ")


def turn_pages(source: str) -> None:
    """Write the pages and mkdocs.yml so that they install from there."""
    for path in PAGES:
        path.write_text(install_lines(path.read_text(), source))
    mkdocs = ROOT / "mkdocs.yml"
    mkdocs.write_text(_SOURCE.sub(rf"\g<1>{source}", mkdocs.read_text()))


if __name__ == "__main__":
    raise SystemExit(main())
