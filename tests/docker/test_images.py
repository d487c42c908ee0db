"""Images without a build, from a registry and from files; and builds behind a proxy, from an index of one's own."""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import ssl
import subprocess
import sys
import tarfile
import threading
import time
import urllib.parse
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from agent_tools.engines.context import tag_for
from agent_tools.engines.docker import image, image_file, published_image
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.recipe import Recipe
from agent_tools.errors import EngineError, ImageBuildError
from agent_tools.tools import CodeInterpreter
from supply import release
from tests.unit.runtime.egress.network import certificate

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]  # builds wait for each other
ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 30.0  # seconds
CONFIGURATION = """
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def wheel(folder: Path, name: str) -> Path:
    """Write a wheel that no other index has: a module with the value 41."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "value = 41\n")
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", f"{name}.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n")
    return path


class Index(http.server.SimpleHTTPRequestHandler):
    """A package index over a folder, which answers as a proxy does as well: every host is this one."""

    asked: list[str]

    def translate_path(self, path: str) -> str:
        self.asked.append(path)
        return super().translate_path(urllib.parse.urlsplit(path).path)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def served(folder: Path, address: str, context: ssl.SSLContext | None = None) -> Iterator[tuple[int, list[str]]]:
    """Serve a folder, over TLS with a context; yield the port, and what is asked for."""
    asked: list[str] = []
    handler = type("OwnIndex", (Index,), {"asked": asked})
    server = http.server.ThreadingHTTPServer((address, 0), partial(handler, directory=str(folder)))
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port, asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A folder in the layout of an index, with one package."""
    folder = tmp_path / "index"
    name = f"onlyhere{os.getpid()}"
    page = folder / "simple" / name
    page.mkdir(parents=True)
    file = wheel(page, name)
    (page / "index.html").write_text(f'<!DOCTYPE html><a href="{file.name}">{file.name}</a>')
    return folder


@pytest.fixture
def package(index: Path) -> str:
    return next((index / "simple").iterdir()).name


@pytest.fixture
def behind_a_proxy(index: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """An index that only a proxy on this machine reaches; yields what the proxy is asked for."""
    with served(index, "127.0.0.1") as (port, asked):
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("PIP_INDEX_URL", "http://index.invalid/simple")
        monkeypatch.setenv("PIP_TRUSTED_HOST", "index.invalid")
        yield asked


@contextlib.contextmanager
def registry(folder: Path, port: int, *beside: str) -> Iterator[str]:
    """Serve a folder by a registry of Debian's package on this machine, run by a command; yield a repository in it."""
    finder = [str(ROOT / "scripts/lib/debian_program"), "docker-registry", "docker-registry"]
    program = subprocess.run(finder, capture_output=True, text=True, check=True).stdout.split()[-1]
    folder.mkdir(exist_ok=True)
    configuration = folder / "registry.yml"
    configuration.write_text(CONFIGURATION.format(folder=folder, port=port))
    log = (folder / "log").open("wb")
    with log, subprocess.Popen([*beside, program, "serve", configuration], stdout=log, stderr=log) as process:
        try:
            deadline = time.monotonic() + PATIENCE
            while process.poll() is None and time.monotonic() < deadline:
                if b"listening on" in (folder / "log").read_bytes():
                    break
                time.sleep(0.05)
            yield f"127.0.0.1:{port}/agent-tools"
        finally:
            process.terminate()


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[str]:
    with registry(tmp_path / "registry", free_port()) as repository:
        yield repository


def value_of(tool: CodeInterpreter, code: str) -> object:
    execution = tool.run(code, timeout=120)
    assert execution.ok, execution.error
    return execution.value


@pytest.fixture
def small_image(docker_engine: DockerEngine, tmp_path: Path) -> Iterator[Recipe]:
    """A recipe whose image the engine has: as the name of one with a single file, which is soon sent."""
    recipe, archive = Recipe((f"small{os.getpid()}",)), tmp_path / "small.tar"
    with tarfile.open(archive, "w") as tar:
        tar.addfile(tarfile.TarInfo("file"))
    docker_engine.import_image(archive, *tag_for(recipe).split(":"))
    yield recipe
    if docker_engine.has_image(tag_for(recipe)):
        docker_engine.remove_image(tag_for(recipe))


def test_the_first_use_pulls_what_was_pushed(
    docker_engine: DockerEngine, small_image: Recipe, repository: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag, said = tag_for(small_image), list[str]()
    reference = release.push(docker_engine, repository, small_image)
    for name in (reference, tag):
        docker_engine.remove_image(name)
    monkeypatch.setenv("AGENT_TOOLS_IMAGE_REPOSITORY", repository)
    assert image.ensure(docker_engine, small_image, said.append) == tag
    assert docker_engine.has_image(tag)
    assert (said[0], said[-1]) == (f"Pulling {reference}", f"Pulled {tag} from {reference}")
    docker_engine.remove_image(reference)


def test_a_release_pins_the_digest_that_the_registry_has(
    docker_engine: DockerEngine,
    small_image: Recipe,
    repository: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tag, record = tag_for(small_image), tmp_path / "published.json"
    monkeypatch.setattr(release, "RELEASED", record)
    release.pin_images(repository, [small_image])
    source = published_image.source_of(tag, record)
    assert source
    assert source.reference.startswith(f"{repository}@sha256:")
    for name in (f"{repository}:{tag.partition(':')[2]}", tag):
        docker_engine.remove_image(name)
    published_image.pull(docker_engine, source, tag, lambda _: None)
    assert docker_engine.has_image(tag)


def test_an_image_goes_through_a_file_to_an_engine_that_lacks_it(
    docker_engine: DockerEngine, small_image: Recipe, tmp_path: Path
) -> None:
    path = tmp_path / "image.tar.gz"
    assert image_file.save(docker_engine, path, small_image) == tag_for(small_image)
    docker_engine.remove_image(tag_for(small_image))
    assert image_file.load(docker_engine, path) == [tag_for(small_image)]
    assert docker_engine.has_image(tag_for(small_image))


def test_what_no_registry_has_is_built_through_the_proxy_from_the_index_of_this_machine(
    docker_engine: DockerEngine,
    behind_a_proxy: list[str],
    package: str,
    work_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tag = tag_for([package])
    monkeypatch.setenv("AGENT_TOOLS_IMAGE_REPOSITORY", f"127.0.0.1:{free_port()}/agent-tools")
    code = f"import {package}; print({package}.value)"
    command = ["-m", "agent_tools", "run", "--work-dir", str(work_dir), "--package", package, "-c", code]
    try:
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300, check=False)
    finally:
        if docker_engine.has_image(tag):
            docker_engine.remove_image(tag)
    assert (done.returncode, done.stdout) == (0, "41\n"), done.stderr
    assert "No published image: " in done.stderr
    assert f"Built {tag}" in done.stderr
    assert f"http://index.invalid/simple/{package}/" in behind_a_proxy


def test_a_build_trusts_the_authority_that_this_machine_names(
    docker_engine: DockerEngine, index: Path, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe((package,))
    context, bundle = certificate(tmp_path, "localhost")
    with served(index, "127.0.0.1", context) as (port, asked):
        monkeypatch.setenv("PIP_INDEX_URL", f"https://localhost:{port}/simple")
        monkeypatch.setenv("PIP_CERT", str(tmp_path / "none"))
        for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(ImageBuildError):
            image.build(docker_engine, recipe)
        monkeypatch.setenv("PIP_CERT", str(bundle))
        tag = image.build(docker_engine, recipe)
    assert f"/simple/{package}/" in asked
    docker_engine.remove_image(tag)


def test_debian_packages_come_from_the_mirror_through_the_proxy(
    docker_engine: DockerEngine, behind_a_proxy: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEBIAN_MIRROR", "http://mirror.invalid/debian")
    with pytest.raises(ImageBuildError):  # the mirror has nothing
        image.build(docker_engine, Recipe(debian_packages=("sl",)))
    asked = [path for path in behind_a_proxy if path.startswith("http://mirror.invalid/debian/dists/")]
    assert asked
    assert not any("debian.org" in path for path in behind_a_proxy)


def test_a_file_that_is_no_archive_is_told(docker_engine: DockerEngine, tmp_path: Path) -> None:
    (tmp_path / "image.tar.gz").write_bytes(b"nothing")
    with pytest.raises(EngineError):
        image_file.load(docker_engine, tmp_path / "image.tar.gz")


def private_address() -> str:
    """Return an address of this machine that sandboxes may not reach by a list alone."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


def test_pip_in_a_sandbox_asks_the_index_of_this_machine_at_its_private_address(
    new_tool: Callable[..., CodeInterpreter], index: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = private_address()
    with served(index, address) as (port, asked):
        monkeypatch.setenv("PIP_INDEX_URL", f"http://{address}:{port}/simple")
        tool = new_tool(network={"allow": ["pypi"]})
        assert value_of(tool, f"%pip install -q {package}\nimport {package}; {package}.value") == 41
        assert f"/simple/{package}/" in asked
        refused = tool.run("import requests; requests.get('https://pypi.org/simple/')")
    assert refused.error
    assert "not on this sandbox's list" in refused.error.text
