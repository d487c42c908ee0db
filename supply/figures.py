"""Bring the libraries that draw interactive figures: `python -m supply.figures FOLDER`.

The folder is a project of its own whose package `agent_tools_figures` holds the files and their licences, and no code:
`pip install FOLDER` installs it, or the gateway is given the package's folder with `--set figures=`. npm fetches the
packages, at these versions and with these digests alone.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

NAME = "agent_tools_figures"


@dataclass(frozen=True)
class Library:
    """A package of npm: its version, the SHA-512 of its archive, and which of its files becomes which of ours."""

    name: str
    version: str
    digest: str
    source: str
    file: str


LIBRARIES = (
    Library(
        "plotly.js-cartesian-dist-min",
        "4.1.1",
        "o8GrFeusncwBIxbBynRJpY4pkgVB6caM+JLpwrLYbbsO7dZ8FJ+SVN2Fr+L7kiG/Z6w4P5O0Jus/Qr5EefHVeg==",
        "plotly-cartesian.min.js",
        "plotly.min.js",
    ),
    Library(
        "vega",
        "6.4.0",
        "rHXCq2LpEWCLMjXBEj7hocY9G0/i5TGYRayGGSj06VTF4+l2IG2Z7oeZKCjWbUh/7hTE/mVhbaOPB72wCElh6g==",
        "build/vega.min.js",
        "vega.min.js",
    ),
    Library(
        "vega-lite",
        "6.4.3",
        "d/7hPjfz560UERaQuTmGgIVfXAe3g2hJWeC+igDeaGohUdEoNrHLXgR/yTOBT8vV/lIuuKnw+0/xWWblkDwkMQ==",
        "build/vega-lite.min.js",
        "vega-lite.min.js",
    ),
    Library(
        "vega-interpreter",
        "2.3.2",
        "JDAoi3taFcCDLujZG84TNNUXdkAZ5WsSHssx8lWVYaxb9Slsjk7v7PtRIYXpSlUwLaKGRBqoJ9KDs36Z0eMEIw==",
        "build/vega-interpreter.js",
        "vega-interpreter.js",
    ),
)
_CLASSIC = (  # of the one file that is a module: a classic script, with what it imports from Vega itself
    (
        b"import { ascending, isString, DisallowedObjectProperties } from 'vega-util';",
        b"const { ascending, isString, DisallowedObjectProperties } = globalThis.vega;",
    ),
    (
        b"export { expression as expressionInterpreter };",
        b"globalThis.expressionInterpreter = expression;",
    ),
)
_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "agent-tools-figures"
version = "1"
description = "plotly.js, Vega and Vega-Lite for the page of agent_tools' gateway: data only"
license = {text = "MIT AND BSD-3-Clause"}
requires-python = ">=3.10"

[tool.hatch.build.targets.wheel]
packages = ["agent_tools_figures"]
"""


def bring(folder: Path) -> Path:
    """Write the project into a folder; return the folder of its package.

    Raises:
        ValueError: an archive is another one than it was when its digest was taken.
        subprocess.CalledProcessError: npm did not get it.
    """
    package = folder / NAME
    package.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(_PROJECT, encoding="utf-8")
    (package / "__init__.py").write_text('"""Files for a browser; no code."""\n', encoding="utf-8")
    for library in LIBRARIES:
        with tempfile.TemporaryDirectory() as place:
            _extract(library, _fetched(library, Path(place)), package)
    return package


def _fetched(library: Library, place: Path) -> Path:
    command = ["npm", "pack", "--silent", "--ignore-scripts", f"{library.name}@{library.version}"]
    subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL)
    (archive,) = place.glob("*.tgz")
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if digest != library.digest:
        raise ValueError(f"{library.name} {library.version} has another digest than it should have: {digest}")
    return archive


def _extract(library: Library, archive: Path, package: Path) -> None:
    with tarfile.open(archive) as members:
        for source, file in ((library.source, library.file), ("LICENSE", f"LICENSE-{library.name}.txt")):
            content = members.extractfile(f"package/{source}")
            if content is None:
                raise ValueError(f"{library.name} {library.version} has no {source}")
            with content:
                text = content.read()
            for before, after in _CLASSIC:
                text = text.replace(before, after)
            (package / file).write_bytes(text)


if __name__ == "__main__":
    print(bring(Path(sys.argv[1])))
