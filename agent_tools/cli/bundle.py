"""`agent-tools bundle`: a folder from which a machine without a network installs this package and its images."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import click

from agent_tools.cli.image import print_main_lines
from agent_tools.cli.options import PathOption
from agent_tools.engines.docker import image_file
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.recipe import FLAVOURS, Flavour, Recipe
from agent_tools.errors import EngineError, InvalidParams
from agent_tools.extras import DISTRIBUTION, requirement
from agent_tools.version import __version__

INSTALL = """#!/bin/sh
# Installs {distribution} {version} from this folder, without a network, and loads its images into the engine.
#
#   sh install.sh [VENV]     VENV is made; the default is ./agent-tools
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=${{1:-$PWD/agent-tools}}
python=${{PYTHON:-$(command -v python{python} || command -v python3)}}
fail() {{ echo "install.sh: $*" >&2; exit 1; }}

"$python" -I -c 'import platform, sys; sys.exit((sys.version_info[:2], platform.machine()) != ({info}, "{machine}"))' ||
    fail "this folder is for Python {python} on {machine}; name one in PYTHON"
(cd "$here" && sha256sum --check --quiet SHA256SUMS) || fail "the folder is not complete, or was changed"
[ "$(cd "$here" && find wheels images ! -type d | wc -l)" -eq "$(grep -cE '  (wheels|images)/' "$here/SHA256SUMS")" ] ||
    fail "the folder has files in wheels or images that SHA256SUMS does not name: delete them"
"$python" -I -m venv "$venv"
"$venv/bin/python" -I -m pip --disable-pip-version-check install --quiet --no-index \\
    --find-links "$here/wheels" '{wanted}'
for image in "$here"/images/*; do "$venv/bin/agent-tools" image load "$image"; done
"$venv/bin/agent-tools" doctor
echo "install.sh: ready: $venv/bin/agent-tools"
"""


@click.command()
@click.argument("folder", type=PathOption(file_okay=False))
@click.option("--extra", "extras", multiple=True, help="An extra to include, such as mcp or gateway; repeatable.")
@click.option("--flavour", "flavours", multiple=True, type=click.Choice(FLAVOURS), help="Repeatable.  [default: lean]")
def bundle(folder: Path, extras: tuple[str, ...], flavours: tuple[Flavour, ...]) -> None:
    """Write everything that a machine without a network needs into FOLDER: wheels, images, checksums and install.sh.

    The wheels are for this Python and this kind of machine. There, `sh install.sh` installs and checks everything.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InvalidParams(f"{folder} is not empty: name a new folder.")
    for name in ("wheels", "images"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    _gather_wheels(folder / "wheels", extras)
    for flavour in dict.fromkeys(flavours or ("lean",)):
        path = folder / "images" / f"agent-tools-{flavour}.tar.gz"
        image_file.save(DockerEngine(), path, Recipe(flavour=flavour), print_main_lines)
    (folder / "install.sh").write_text(_install_script(extras))
    lines = [f"{_sha256(path)}  {path.relative_to(folder)}\n" for path in sorted(folder.rglob("*")) if path.is_file()]
    (folder / "SHA256SUMS").write_text("".join(lines))
    click.echo(f"{folder}: {len(lines)} files. There, compare by hand what `sha256sum SHA256SUMS` prints:")
    click.echo(_sha256(folder / "SHA256SUMS"))
    click.echo("then run: sha256sum --check --quiet SHA256SUMS && sh install.sh")


def _gather_wheels(folder: Path, extras: Sequence[str]) -> None:
    if find_spec("pip") is None:
        raise InvalidParams(f"A bundle needs pip beside this package: {sys.executable} -m ensurepip")
    options = ("--quiet", "--disable-pip-version-check", "--wheel-dir", str(folder))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pip", "wheel", *options, requirement(",".join(extras))], check=False
    )
    if done.returncode:
        raise EngineError("The wheels could not be downloaded: see pip's output above.")


def _install_script(extras: Sequence[str]) -> str:
    return INSTALL.format(
        distribution=DISTRIBUTION,
        version=__version__,
        python=f"{sys.version_info[0]}.{sys.version_info[1]}",
        info=tuple(sys.version_info[:2]),
        machine=platform.machine(),
        wanted=f"{DISTRIBUTION}{'[' + ','.join(extras) + ']' if extras else ''}=={__version__}",
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
