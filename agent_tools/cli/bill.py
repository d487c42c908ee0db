"""The bill of materials of an image, in CycloneDX. Needs the extra `sbom`."""

from __future__ import annotations

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from agent_tools.cli.sbom import ImageContents
from agent_tools.engines.docker.image import Origin
from agent_tools.version import __version__


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
