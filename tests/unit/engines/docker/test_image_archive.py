"""The names in archives of images, and which archives are loaded."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

from agent_tools.engines.context import tag_for
from agent_tools.engines.docker import image_file
from agent_tools.engines.docker.image_archive import names_in
from agent_tools.errors import EngineError
from agent_tools.version import __version__

CURRENT = tag_for()


def archive(files: dict[str, Any], compression: str = "") -> io.BytesIO:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=f"w:{compression}") as tar:
        for name, content in files.items():
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    file.seek(0)
    return file


def manifest(*names: str) -> dict[str, Any]:
    return {"layer.tar": b"x" * 5_000, "manifest.json": [{"Config": "c.json", "RepoTags": list(names)}]}


def indexed(name: str, ref: str = "latest") -> dict[str, Any]:
    notes = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": ref}
    return {"index.json": {"manifests": [{"annotations": notes}, {}]}}


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (manifest("agent-tools:a", "localhost/agent-tools:b"), {"agent-tools:a", "agent-tools:b"}),
        ({"manifest.json": [{"RepoTags": None}]}, set()),
        ({**manifest("agent-tools:a"), "repositories": {"other": {"latest": "1"}}}, {"agent-tools:a", "other:latest"}),
        ({**manifest("agent-tools:a"), **indexed("docker.io/library/other:1")}, {"agent-tools:a", "other:1"}),
        (indexed("docker.io/library/agent-tools:a", "quay.io/other:1"), {"agent-tools:a", "quay.io/other:1"}),
        ({"./manifest.json": [{"RepoTags": ["other:1"]}]}, {"other:1"}),
        ({"manifest.json": [{"repotags": ["other:1"]}]}, {"other:1"}),
        ({"manifest.json": [{"RepoTag\u017f": ["other:1"]}]}, {"other:1"}),
        ({"index.json": {"Manifests": [{"ANNOTATIONS": {"io.containerd.image.name": "other:1"}}]}}, {"other:1"}),
    ],
)
@pytest.mark.parametrize("compression", ["", "gz"])
def test_every_name_that_an_engine_may_read_is_found(files: dict[str, Any], names: set[str], compression: str) -> None:
    assert names_in(archive(files, compression)) == names


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no archive",
        archive({"manifest.json": b"[" * 5_000}).getvalue(),
        archive({"manifest.json": b"5"}).getvalue(),
        archive({"manifest.json": [1]}).getvalue(),
        archive({"manifest.json": b" " * (2 << 20)}).getvalue(),
        archive(manifest("agent-tools:a"), "gz").getvalue()[:-30],
    ],
)
def test_what_is_no_archive_of_images_is_an_error(data: bytes) -> None:
    with pytest.raises(EngineError, match="not an archive of images"):
        names_in(io.BytesIO(data))


@pytest.mark.parametrize(
    "files",
    [
        {"manifest.json": [{"RepoTags": ["agent-tools:1"], "repotags": ["python:3"]}]},
        {"manifest.json": b'[{"RepoTags": ["python:3"], "RepoTags": ["agent-tools:1"]}]'},
        {"index.json": {"manifests": [], "Manifests": [{"annotations": {"io.containerd.image.name": "python:3"}}]}},
    ],
)
def test_keys_that_an_engine_takes_for_one_are_refused(files: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="not an archive of images"):
        names_in(archive(files))


MANIFEST = json.dumps(manifest("agent-tools:a")["manifest.json"]).encode()
OTHER = json.dumps(manifest("python:3.13")["manifest.json"]).encode()


@pytest.mark.parametrize(
    "path",
    ["/manifest.json", ".//manifest.json", "././manifest.json", "x/../manifest.json", "x//y", "../x", "x/.", "link/y"],
)
@pytest.mark.parametrize("is_first", [False, True])
def test_a_path_that_an_engine_could_read_as_another_is_refused(path: str, is_first: bool) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "."
        tar.addfile(link)
        members = [("manifest.json", MANIFEST), (path, OTHER)]
        for name, data in reversed(members) if is_first else members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    file.seek(0)
    with pytest.raises(EngineError, match="not an archive of images"):
        names_in(file)


def test_what_follows_the_end_of_an_archive_is_refused() -> None:
    first, second = archive(manifest("agent-tools:a")).getvalue(), archive(manifest("python:3.13")).getvalue()
    with pytest.raises(EngineError, match="not an archive of images"):
        names_in(io.BytesIO(first + second))


class Loading:
    """As much of an engine as loading needs."""

    def __init__(
        self, version: str = __version__, hidden: tuple[str, ...] = (), used: str = "", failure: str = ""
    ) -> None:
        self.loaded: list[str] = []
        self._used = used
        self._failure = failure
        self._version = version
        self._hidden = hidden

    def load_image(self, file: BinaryIO) -> Iterator[str]:
        for name in [*sorted(names_in(file)), *self._hidden]:
            self.loaded.append(name)
            yield f"Loaded image: {name}"
        if self._failure:
            raise EngineError(self._failure)

    def image_facts(self, tag: str) -> dict[str, Any]:
        return {"Config": {"Labels": {"org.opencontainers.image.version": self._version}}}

    def remove_image(self, tag: str) -> None:
        if tag == self._used:
            raise EngineError("a container uses it")
        self.loaded = [name for name in self.loaded if name.removeprefix("localhost/") != tag]


class LoadingInPodman(Loading):
    """Names all images of an archive in one line."""

    def load_image(self, file: BinaryIO) -> Iterator[str]:
        names = [line.removeprefix("Loaded image: ") for line in super().load_image(file)]
        yield f"Loaded image: {','.join(f'localhost/{name}' for name in names)}"


def test_several_images_that_are_named_in_one_line_are_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(archive(manifest("agent-tools:a", "agent-tools:b")).getvalue())
    assert image_file.load(cast("Any", LoadingInPodman()), path) == ["agent-tools:a", "agent-tools:b"]


def test_another_image_is_refused_before_the_engine_gets_it(tmp_path: Path) -> None:
    path, engine = tmp_path / "a.tar", Loading()
    path.write_bytes(archive(manifest("agent-tools:a", "postgres:16")).getvalue())
    with pytest.raises(EngineError, match="'postgres:16': nothing was loaded"):
        image_file.load(cast("Any", engine), path)
    assert engine.loaded == []


def test_all_is_removed_again_if_the_engine_finds_a_name_that_was_hidden(tmp_path: Path) -> None:
    path, engine = tmp_path / "a.tar", Loading(hidden=("localhost/python:3.13",))
    path.write_bytes(archive(manifest("agent-tools:a")).getvalue())
    with pytest.raises(EngineError, match=r"hides that name.* Removed again: agent-tools:a, python:3\.13\."):
        image_file.load(cast("Any", engine), path)
    assert engine.loaded == []


@pytest.mark.parametrize("failure", ["", "the disk is full"])
def test_a_name_that_was_hidden_is_told_also_of_a_file_that_is_in_use_or_was_loaded_in_part(
    tmp_path: Path, failure: str
) -> None:
    path, engine = tmp_path / "a.tar", Loading(hidden=("python:3.13",), used="agent-tools:a", failure=failure)
    path.write_bytes(archive(manifest("agent-tools:a")).getvalue())
    with pytest.raises(EngineError, match=r"hides that name.*removed again: agent-tools:a \(a container uses it\)"):
        image_file.load(cast("Any", engine), path)
    assert engine.loaded == ["agent-tools:a"]


def test_an_image_of_another_version_under_a_current_name_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(archive(manifest("agent-tools:a", CURRENT)).getvalue())
    assert image_file.load(cast("Any", Loading()), path) == sorted(["agent-tools:a", CURRENT])
    for used in ("", CURRENT):
        engine = Loading("0.0.9", used=used)
        with pytest.raises(EngineError, match="not what its name says"):
            image_file.load(cast("Any", engine), path)
        assert sorted(engine.loaded) == sorted(["agent-tools:a", *[used] * bool(used)])
