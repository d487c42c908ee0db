"""The bill of materials of an image, as CycloneDX: what it holds when it runs, and not what it was meant to hold."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from agent_tools import __version__
from agent_tools.runtime.docker.origin import Origin
from agent_tools.tools.code_interpreter import CodeInterpreter

if TYPE_CHECKING:
    from cyclonedx.model.component import Component

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
class Contents:
    """What an image holds: (name, version, licence) and (name, version, architecture)."""

    python: tuple[tuple[str, str, str], ...]
    debian: tuple[tuple[str, str, str], ...]
    release: str
    interpreter: str


def contents_of(packages: Sequence[str]) -> Contents:
    """Ask an image in a fresh sandbox, before any user's code has run in it."""
    limits = {"max_text_chars": MAX_LISTING}
    with (
        tempfile.TemporaryDirectory(prefix="agent-tools-sbom-") as folder,
        CodeInterpreter({"packages": list(packages), "work_dir": folder, "limits": limits}) as tool,
    ):
        execution = tool.run(LISTING)
    if execution.error is not None:
        raise click.ClickException(f"The image could not be asked what it holds: {execution.error}")
    said = json.loads(execution.stdout)
    return Contents(_rows(said["python"]), _rows(said["debian"]), str(said["release"]), str(said["interpreter"]))


def bill_of(tag: str, origin: Origin, contents: Contents) -> str:
    """The bill of materials, as JSON of CycloneDX 1.6.

    Raises:
        ClickException: the extra `sbom` is not installed.
    """
    try:
        from cyclonedx.model.bom import Bom
        from cyclonedx.model.component import Component, ComponentType
        from cyclonedx.output.json import JsonV1Dot6
    except ImportError as exc:
        raise click.ClickException("This needs the extra `sbom`: pip install 'agent-tools-sandbox[sbom]'") from exc

    bom = Bom(components=_components(contents))
    bom.metadata.component = image = Component(
        name="agent-tools", version=tag.rpartition(":")[2], type=ComponentType.CONTAINER, bom_ref=tag
    )
    image.properties.update(_properties(origin))
    bom.register_dependency(image, bom.components)
    return str(JsonV1Dot6(bom).output_as_string(indent=2))


def _components(contents: Contents) -> list[Component]:
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

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


def _library(purl: Any, licence: str = "") -> Component:
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model.component import Component

    licences = [LicenseFactory().make_from_string(licence)] if licence else []
    return Component(name=purl.name, version=purl.version, purl=purl, bom_ref=str(purl), licenses=licences)


def _properties(origin: Origin) -> list[Any]:
    from cyclonedx.model import Property

    told = {"base.name": origin.base, "base.digest": origin.digest, "version": origin.version, "made_by": __version__}
    return [Property(name=f"agent_tools:{name}", value=value) for name, value in told.items()]


def _rows(rows: Iterable[Sequence[str]]) -> tuple[tuple[str, str, str], ...]:
    return tuple(sorted({(str(name), str(version), str(more)) for name, version, more in rows}))
