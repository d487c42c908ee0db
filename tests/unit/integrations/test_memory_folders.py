"""A memory store's folder: both ways, and a sandbox that lies about names and sizes."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from agent_tools.integrations.memory_folders import MAX_BYTES, MAX_FILES, MAX_LEVELS, MemoryFolder
from agent_tools.results.files import FileInfo


class Files:
    """A sandbox with these files below memory/notes; `listed` are entries that it lists in every folder instead."""

    def __init__(self, files: dict[str, bytes], listed: list[FileInfo] | None = None) -> None:
        self.files, self.listed, self.reads = files, listed, 0

    async def write_file(self, path: str, data: bytes) -> None:
        self.files[path.removeprefix("memory/notes/")] = data

    async def remove(self, path: str) -> None:
        del self.files[path.removeprefix("memory/notes/")]

    async def read_file(self, path: str, max_bytes: int) -> bytes:
        self.reads += 1
        return self.files.get(path.removeprefix("memory/notes/"), b"hostile")[:max_bytes]

    async def list_files(self, path: str) -> list[FileInfo]:
        if self.listed is not None:
            return self.listed
        return [entry(name, len(data), data) for name, data in self.files.items()] if path == "memory/notes/" else []


def entry(name: str, size: int = 1, data: bytes = b"", kind: Any = "file") -> FileInfo:
    return FileInfo(name, name, kind, size, float(hash(data) % 1_000), 0o644)


def step(folder: MemoryFolder, sandbox: Any) -> None:
    asyncio.run(folder.push(sandbox))
    asyncio.run(folder.pull(sandbox))


@pytest.fixture
def folder(tmp_path: Path) -> MemoryFolder:
    root = tmp_path / "notes"
    root.mkdir()
    (root / "a").write_bytes(b"1")
    (root / ".anthropic-memory-store").write_bytes(b"marker")
    return MemoryFolder(root, is_read_only=False)


def test_changes_go_both_ways_and_unchanged_files_are_not_read_again(folder: MemoryFolder) -> None:
    sandbox = Files({})
    step(folder, sandbox)
    assert sandbox.files == {"a": b"1"}
    sandbox.files.update(a=b"22", b=b"3")
    step(folder, sandbox)
    assert {path.name: path.read_bytes() for path in folder.root.iterdir()} == {
        "a": b"22",
        "b": b"3",
        ".anthropic-memory-store": b"marker",
    }
    before = sandbox.reads
    (folder.root / "b").write_bytes(b"of the host")
    (folder.root / "a").unlink()
    asyncio.run(folder.push(sandbox))
    assert sandbox.files == {"b": b"of the host"}
    step(folder, sandbox)
    assert sandbox.reads == before + 1
    del sandbox.files["b"]
    asyncio.run(folder.pull(sandbox))
    assert not (folder.root / "b").exists()


def test_a_file_that_has_become_too_large_is_kept_as_it_was(folder: MemoryFolder) -> None:
    sandbox = Files({})
    step(folder, sandbox)
    sandbox.files["a"] = bytes(MAX_BYTES + 1)
    step(folder, sandbox)
    assert (folder.root / "a").read_bytes() == b"1"


@pytest.mark.parametrize("name", ["../out", "..", ".", "", "d/../../out", "/out", "a\0b", ".anthropic-memory-store"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_no_name_leads_out_of_the_folder(folder: MemoryFolder, name: str, kind: str) -> None:
    step(folder, Files({}, [entry("a"), entry(name, kind=kind)]))
    assert sorted(path.name for path in folder.root.parent.iterdir()) == ["notes"]
    assert (folder.root / ".anthropic-memory-store").read_bytes() == b"marker"


def test_folders_without_end_are_left(folder: MemoryFolder) -> None:
    sandbox = Files({}, [entry("a"), entry("deeper", kind="folder")])
    step(folder, sandbox)
    assert sandbox.reads <= MAX_LEVELS + 2
    step(folder, Files({}, [entry(str(number)) for number in range(MAX_FILES + 9)]))
    assert (folder.root / "a").exists()  # since not all were listed


def test_paths_below_the_folder_are_known(folder: MemoryFolder) -> None:
    assert folder.inside(f"{folder.root}/x/../y") == "memory/notes/y"
    assert folder.inside(str(folder.root)) == "memory/notes"
    assert folder.inside(f"{folder.root}/../other") is None
    assert folder.inside("notes/a") is None


def test_a_path_that_the_api_makes_of_a_name_is_the_same_inside(tmp_path: Path) -> None:
    mounted = MemoryFolder(Path("/mnt/memory/my-notes"), False, tmp_path)
    assert mounted.volume
    assert (mounted.volume.target, mounted.volume.source) == ("/mnt/memory/my-notes", str(tmp_path))
    assert mounted.inside("/mnt/memory/my-notes/x/../y") == "/mnt/memory/my-notes/y"
    assert mounted.inside("/mnt/memory/my-notes/../other") is None


@pytest.mark.parametrize("root", ["/mnt/memory", "/mnt/memory/..", "/mnt/memory/a/b", "/mnt/data", "/etc", "/"])
def test_nothing_is_mounted_at_another_path(tmp_path: Path, root: str) -> None:
    assert MemoryFolder(Path(root), False, tmp_path).volume is None


def test_a_folder_of_the_host_in_a_files_place_fails_no_call(folder: MemoryFolder) -> None:
    sandbox = Files({"b": b"2"})
    step(folder, sandbox)
    del sandbox.files["a"]
    (folder.root / "a").unlink()
    (folder.root / "a").mkdir()
    asyncio.run(folder.pull(sandbox))
    assert (folder.root / "a").is_dir()
    sandbox.files.update({"a": b"1", "c": b"3"})
    step(folder, sandbox)
    assert (folder.root / "c").read_bytes() == b"3"


def test_the_host_is_read_beside_the_event_loop(folder: MemoryFolder) -> None:
    readers = []

    class Root(type(folder.root)):  # type: ignore[misc]
        def rglob(self, pattern: str) -> Any:
            readers.append(threading.get_ident())
            return super().rglob(pattern)

    folder.root = Root(folder.root)
    step(folder, Files({}))
    assert readers
    assert threading.get_ident() not in readers
