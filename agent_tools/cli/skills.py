"""`agent-tools skills`: checks Agent Skills before a model uses them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click

from agent_tools.cli.options import PathOption
from agent_tools.errors import InvalidParams
from agent_tools.limits import size_text
from agent_tools.skills.bundle import Bundle, read_folder
from agent_tools.skills.shelf import folders_of


@click.group()
def skills() -> None:
    """Agent Skills: folders of instructions and scripts that a model reads when a task fits them."""


@skills.command()
@click.argument("folder", metavar="DIR", type=PathOption(file_okay=False, exists=True))
def check(folder: Path) -> None:
    """Check the skill in DIR, or each skill in a folder of DIR; the exit code is 1 if one cannot be used.

    For each it prints the files, their size, and the imported modules that are neither Python's nor the skill's.
    """
    code = 0
    for each in folders_of(folder):
        try:
            report = "\n".join(_report(read_folder(each)))
        except InvalidParams as exc:
            report, code = f"{each}: not usable. {exc}", 1
        click.echo(report)
    sys.exit(code)


def _report(bundle: Bundle) -> Iterator[str]:
    manifest, files = bundle.manifest, bundle.files
    yield f"{manifest.name}: {len(files)} files, {size_text(sum(len(file.data) for file in files.values()))}"
    yield from (f"  warning: {each}" for each in manifest.warnings)
    if manifest.compatibility:
        yield f"  says of its needs: {manifest.compatibility}"
    if needed := sorted(_imported(bundle)):
        yield f"  imports: {', '.join(needed)}"


def _imported(bundle: Bundle) -> set[str]:
    """Return the top modules that the Python files import, without those of Python and of the skill."""
    found, own = set[str](), set(sys.stdlib_module_names)
    for path, file in bundle.files.items():
        if path.endswith(".py"):
            own.update(part.removesuffix(".py") for part in path.split("/"))
            with suppress(SyntaxError, ValueError, RecursionError, MemoryError):  # it may be no Python of today
                for node in ast.walk(ast.parse(file.data)):
                    if isinstance(node, ast.Import):
                        found.update(alias.name for alias in node.names)
                    elif isinstance(node, ast.ImportFrom) and not node.level:
                        found.add(str(node.module))
    return {name.partition(".")[0] for name in found} - own
