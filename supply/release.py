"""Makes a release and tries it, or turns the pages' install lines to the package index.

scripts/release [FOLDER]                 build into dist/, or FOLDER, and try what was built
scripts/release [FOLDER] --push NAME     push the images to a registry before, and pin their digests in the wheel
scripts/release --published              turn the pages' install lines to the package index, after the first upload
"""

from __future__ import annotations

import re
from pathlib import Path

from agent_tools.extras import DISTRIBUTION

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

_SOURCE = re.compile(r"^( +package_source: )(\S+)", re.MULTILINE)
_INSTALL = re.compile(rf"(pip install '?)(?:\.|{DISTRIBUTION})(?=[\s\[])")
_NOTE = "  # in a checkout"
_NOTED = re.compile(rf"{_NOTE}$", re.MULTILINE)
_BARE = re.compile(r"^pip install '?\.[^#\n]*(?<! )$", re.MULTILINE)
_UVX = re.compile(rf'"(?:/path/to/checkout|{DISTRIBUTION})\[mcp\]"')


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
