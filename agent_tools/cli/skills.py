"""`agent-tools skills`: checks Agent Skills before a model uses them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
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
    found = folders_of(folder)
    bad = 0
    for each in found:
        try:
            lines = list(_report(read_folder(each)))
        except InvalidParams as exc:
            lines, bad = [f"{each}: not usable. {exc}"], bad + 1
        click.echo("\n".join(lines))
    sys.exit(1 if bad else 0)


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
    scripts = {path: file.data for path, file in bundle.files.items() if path.endswith(".py")}
    own = {part.removesuffix(".py") for path in scripts for part in path.split("/")}
    return set().union(*map(_imports, scripts.values())) - own - sys.stdlib_module_names


def _imports(source: bytes) -> set[str]:
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.partition(".")[0] for name in plain | named}
