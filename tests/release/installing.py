"""What was built is installed from an index, by every line of the pages, and answers. `scripts/release` runs this."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from agent_tools.extras import DISTRIBUTION
from agent_tools.mcp.clients import uvx
from agent_tools.version import __version__
from supply import release


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a wheel and an sdist."""
    folder = tmp_path_factory.mktemp("release")
    release.build_python(folder)
    return folder


@pytest.mark.timeout(900)
def test_every_install_line_of_the_pages_resolves_where_the_package_is_in_an_index(built: Path, tmp_path: Path) -> None:
    text = "\n".join(release.install_lines(page.read_text(), DISTRIBUTION) for page in release.PAGES)
    lines = sorted(set(re.findall(rf"^pip install ('?{DISTRIBUTION}[^#\n]*)", text, re.MULTILINE)))
    assert len(lines) > 15
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    with release.index_of(built) as url:
        for line in lines:
            uv = [Path(sys.executable).with_name("uv"), "pip", "install", "--dry-run", "--quiet", "--python", tmp_path]
            done = subprocess.run(
                [*uv, f"--index={url}", *shlex.split(line)], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{line}: {done.stderr}"


@pytest.mark.docker
@pytest.mark.timeout(900)
def test_a_release_is_installed_by_pip_and_by_uv_and_answers(docker_engine: object, built: Path) -> None:
    release.try_release(built)


def test_the_command_that_mcp_config_prints_for_uvx_starts_this_version() -> None:
    tool = [Path(sys.executable).with_name("uv"), "tool", "run", *uvx()[1:4]]
    done = subprocess.run([*tool, "--version"], capture_output=True, text=True, check=False)
    assert done.stdout.split()[-1:] == [__version__], done.stderr
