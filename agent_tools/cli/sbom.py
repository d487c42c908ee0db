"""The packages of an image, as a fresh sandbox of it lists them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import click

from agent_tools.engines.engine import Recipe
from agent_tools.tools.code_interpreter import CodeInterpreter

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
    """List an image's packages in a fresh sandbox, before any user's code has run in it."""
    limits = {"max_text_chars": MAX_LISTING}
    with (
        tempfile.TemporaryDirectory(prefix="agent-tools-sbom-") as folder,
        CodeInterpreter({**asdict(recipe), "work_dir": folder, "limits": limits}) as tool,
    ):
        execution = tool.run(LISTING)
    if execution.error is not None:
        raise click.ClickException(f"The image's packages could not be listed: {execution.error}")
    said = json.loads(execution.stdout)
    return ImageContents(_rows(said["python"]), _rows(said["debian"]), str(said["release"]), str(said["interpreter"]))


def _rows(rows: Iterable[Sequence[str]]) -> tuple[tuple[str, str, str], ...]:
    return tuple(sorted({(str(name), str(version), str(more)) for name, version, more in rows}))
