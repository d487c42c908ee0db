"""The image in a file: saved whole or not at all, and loaded only if it is one of ours."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from agent_tools import __version__
from agent_tools.engines.context import tag_for
from agent_tools.engines.docker.image_file import load, save
from agent_tools.errors import EngineError


def archive_of(*names: str) -> bytes:
    """Return what `docker save` writes, but for the layers."""
    manifest, written = json.dumps([{"RepoTags": names}]).encode(), io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        member = tarfile.TarInfo("manifest.json")
        member.size = len(manifest)
        tar.addfile(member, io.BytesIO(manifest))
    return written.getvalue()


class FileEngine:
    """An engine that has the image as these bytes, and says these lines of an archive."""

    def __init__(self, content: bytes = archive_of(tag_for()), lines: tuple[str, ...] = ()) -> None:
        self.content = content
        self.lines = lines
        self.loaded = b""

    def has_image(self, tag: str) -> bool:
        return True

    def saved_image(self, tag: str) -> Iterator[bytes]:
        assert tag == tag_for()
        yield self.content
        if not self.content:
            raise EngineError("the engine broke off")

    def load_image(self, archive: BinaryIO) -> Iterator[str]:
        self.loaded = archive.read()
        yield from self.lines

    def image_facts(self, tag: str) -> dict[str, Any]:
        return {"Config": {"Labels": {"org.opencontainers.image.version": __version__}}}


def test_an_image_is_saved_as_a_compressed_archive_and_loaded_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "image.tar.gz"
    assert save(FileEngine(), path) == tag_for()  # type: ignore[arg-type]
    assert gzip.decompress(path.read_bytes()) == FileEngine().content
    engine = FileEngine(lines=("Loading layer", f"Loaded image: {tag_for()}"))
    assert load(engine, path) == [tag_for()]  # type: ignore[arg-type]
    assert engine.loaded == path.read_bytes()


def test_an_archive_that_could_not_be_written_whole_is_not_left(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="broke off"):
        save(FileEngine(b""), tmp_path / "image.tar.gz")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_an_archive_without_a_named_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "image.tar.gz").write_bytes(archive_of())
    with pytest.raises(EngineError, match="agent-tools image save"):
        load(FileEngine(), tmp_path / "image.tar.gz")  # type: ignore[arg-type]
