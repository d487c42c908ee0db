"""The bill of materials of an image, CycloneDX as JSON: its Python and Debian packages, and its base.

python -m supply.sbom [FLAVOUR]        of the image, which is built if it is missing
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from agent_tools.engines.context import tag_for
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.docker.image_origin import Origin, origin_of
from agent_tools.engines.recipe import Recipe
from agent_tools.tools.code_interpreter import CodeInterpreter
from agent_tools.version import __version__

LISTING = """
import importlib.metadata, json, platform

def debian():
    for paragraph in open("/var/lib/dpkg/status", encoding="utf-8").read().split("\\n\\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Status", "").endswith(" installed"):
            yield fields["Package"], fields["Version"], fields["Architecture"]

print(json.dumps({
    "python": [[each.name, each.version, each.metadata.get("License-Expression") or ""]
               for each in importlib.metadata.distributions()],
    "debian": list(debian()),
    "release": platform.freedesktop_os_release().get("VERSION_ID", ""),
    "interpreter": platform.python_version(),
}))
"""
MAX_LISTING = 4_000_000  # characters: some ten thousands of packages


@dataclass(frozen=True)
class ImageContents:
    """The packages of an image: (name, version, licence) of Python, (name, version, architecture) of Debian."""

    python: tuple[tuple[str, str, str], ...]
    debian: tuple[tuple[str, str, str], ...]
    release: str
    interpreter: str


def contents_of(recipe: Recipe) -> ImageContents:
    """List an image's packages in a fresh sandbox, before any code has run in it."""
    limits = {"max_text_chars": MAX_LISTING}
    with (
        tempfile.TemporaryDirectory(prefix="agent-tools-sbom-") as folder,
        CodeInterpreter({**asdict(recipe), "work_dir": folder, "limits": limits}) as tool,
    ):
        execution = tool.run(LISTING)
    if execution.error is not None:
        sys.exit(f"The image's packages could not be listed: {execution.error}")
    said = json.loads(execution.stdout)
    return ImageContents(_rows(said["python"]), _rows(said["debian"]), str(said["release"]), str(said["interpreter"]))


def _rows(rows: Iterable[Sequence[str]]) -> tuple[tuple[str, str, str], ...]:
    return tuple(sorted({(str(name), str(version), str(more)) for name, version, more in rows}))


def bill_of(tag: str, origin: Origin, contents: ImageContents) -> str:
    """Return the bill of materials as JSON of CycloneDX 1.6."""
    bom = Bom(components=_components(contents))
    bom.metadata.component = image = Component(
        name="agent-tools", version=tag.rpartition(":")[2], type=ComponentType.CONTAINER, bom_ref=tag
    )
    image.properties.update(_properties(origin))
    bom.register_dependency(image, bom.components)
    return str(JsonV1Dot6(bom).output_as_string(indent=2))


def _components(contents: ImageContents) -> list[Component]:
    found = [
        _library(PackageURL("pypi", None, name.lower(), version), licence) for name, version, licence in contents.python
    ]
    for name, version, architecture in contents.debian:
        qualifiers = {"arch": architecture, "distro": f"debian-{contents.release}"}
        found.append(_library(PackageURL("deb", "debian", name, version, qualifiers)))
    cpython = PackageURL("generic", None, "python", contents.interpreter)
    found.append(
        Component(
            name="cpython", version=contents.interpreter, type=ComponentType.PLATFORM, purl=cpython, bom_ref="cpython"
        )
    )
    return found


def _library(purl: PackageURL, licence: str = "") -> Component:
    licences = [LicenseFactory().make_from_string(licence)] if licence else []
    return Component(name=purl.name, version=purl.version, purl=purl, bom_ref=str(purl), licenses=licences)


def _properties(origin: Origin) -> list[Property]:
    facts = {"base.name": origin.base, "base.digest": origin.digest, "version": origin.version, "made_by": __version__}
    return [Property(name=f"agent_tools:{name}", value=value) for name, value in facts.items()]


def main(flavour: str = "lean") -> None:
    """Print the bill of a flavour's image, as a fresh sandbox of it lists its packages."""
    recipe = Recipe.read(flavour=flavour)
    contents = contents_of(recipe)
    print(bill_of(tag_for(recipe), origin_of(DockerEngine().image_facts(tag_for(recipe))), contents))


if __name__ == "__main__":
    main(*sys.argv[1:])
