"""What was built is installed from an index, by every line of the pages, and answers. `scripts/release` runs this."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent_tools.cli.mcp_config import uvx_command
from agent_tools.extras import DISTRIBUTION
from agent_tools.version import __version__
from supply import release

PYPI = "https://pypi.org/simple"
SECONDS = 600


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a wheel and an sdist."""
    folder = tmp_path_factory.mktemp("release")
    release.build_python(folder)
    return folder


@contextlib.contextmanager
def index_of(files: Path) -> Iterator[str]:
    """Serve a folder of wheels and sdists as a package index; yield its URL."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "simple" / DISTRIBUTION
        page.mkdir(parents=True)
        for file in files.iterdir():
            (page / file.name).write_bytes(file.read_bytes())
        (page / "index.html").write_text(
            "".join(f'<a href="{file.name}">{file.name}</a>\n' for file in files.iterdir())
        )
        handler = partial(_Quiet, directory=folder)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield f"http://127.0.0.1:{server.server_port}/simple"
            finally:
                server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.mark.timeout(900)
def test_every_install_line_of_the_pages_resolves_where_the_package_is_in_an_index(built: Path, tmp_path: Path) -> None:
    text = "\n".join(release.install_lines(page.read_text(), DISTRIBUTION) for page in release.PAGES)
    lines = sorted(set(re.findall(rf"^pip install ('?{DISTRIBUTION}[^#\n]*)", text, re.MULTILINE)))
    assert len(lines) > 15
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    with index_of(built) as url:
        for line in lines:
            uv = [Path(sys.executable).with_name("uv"), "pip", "install", "--dry-run", "--quiet", "--python", tmp_path]
            done = subprocess.run(
                [*uv, f"--index={url}", *shlex.split(line)], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{line}: {done.stderr}"


@pytest.mark.docker
@pytest.mark.timeout(900)
def test_a_release_is_installed_by_pip_and_by_uv_and_answers(docker_engine: object, built: Path) -> None:
    with index_of(built) as url, tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", f"{folder}/venv"], check=True)
        pip = (f"{folder}/venv/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _run(folder, *pip, f"--index-url={url}", f"--extra-index-url={PYPI}", f"{DISTRIBUTION}[mcp]=={__version__}")
        _use(folder, [f"{folder}/venv/bin/{DISTRIBUTION}"])
        uv = (
            str(Path(sys.executable).with_name("uv")),
            "tool",
            "run",
            f"--index={url}",
            "--index-strategy=unsafe-best-match",
        )
        _use(folder, [*uv, "--with", f"{DISTRIBUTION}[mcp]=={__version__}", DISTRIBUTION])


def _use(folder: str, command: list[str]) -> None:
    assert _run(folder, *command, "--version").split()[-1] == __version__
    _run(folder, *command, "doctor")
    assert _run(folder, *command, "run", "-c", "print(6 * 7)") == "42\n"
    assert asyncio.run(_ask_mcp(folder, command)) == "42"


async def _ask_mcp(folder: str, command: list[str]) -> str:
    from mcp import Client, StdioServerParameters

    server = StdioServerParameters(command=command[0], args=[*command[1:], "mcp"], env=_environment(folder))
    async with Client(server) as client:
        answer = await client.call_tool("run_python", {"code": "6 * 7"})
        assert answer.structured_content
        return str(answer.structured_content["result"])


def _run(folder: str, *command: str) -> str:
    options: dict[str, Any] = {"cwd": folder, "env": _environment(folder), "timeout": SECONDS, "text": True}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, **options)
    assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout}"
    return str(done.stdout)


def _environment(folder: str) -> dict[str, str]:
    """Return variables with which uv keeps nothing, and nothing of this checkout is found."""
    own = {"UV_TOOL_DIR": f"{folder}/tools", "UV_CACHE_DIR": f"{folder}/cache"}
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")} | own


def test_the_command_that_mcp_config_prints_for_uvx_starts_this_version() -> None:
    tool = [Path(sys.executable).with_name("uv"), "tool", "run", *uvx_command()[1:4]]
    done = subprocess.run([*tool, "--version"], capture_output=True, text=True, check=False)
    assert done.stdout.split()[-1:] == [__version__], done.stderr
