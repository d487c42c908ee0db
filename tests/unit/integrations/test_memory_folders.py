"""A memory store's folder: both ways, with the guest's own file server."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent_tools.errors import FileRejected
from agent_tools.guest.wire.files import CONTENT, pack_head
from agent_tools.guest.wire.framing import pack
from agent_tools.integrations.memory_folders import LIMITS, MemoryFolder
from agent_tools.limits import Limits
from agent_tools.machine import folder as folders
from agent_tools.runtime.files.file_conversation import Conversation
from agent_tools.runtime.files.guest_files import GuestFiles
from tests.unit.runtime.files.file_server import FileServers, content, write


class Store:
    """A memory store's folder on the host, and what the sandbox has of it."""

    def __init__(self, top: Path, servers: FileServers) -> None:
        self.host, self.inside = top / "notes", top / "work" / "memory" / "notes"
        self.folder = MemoryFolder(self.host, is_read_only=False)
        self._servers = servers
        self.start()
        self.sandbox: Any = SimpleNamespace(sync=SimpleNamespace(_files=lambda: self.files))

    def start(self) -> None:
        """Start a container."""
        ended = self._ended = threading.Event()
        self.files = GuestFiles(Limits(), lambda most: None if ended.is_set() else self._servers.connect(most))

    def end(self) -> None:
        """End the container."""
        self._ended.set()
        self.files.close()

    def push(self) -> None:
        asyncio.run(self.folder.push(self.sandbox))

    def pull(self) -> str:
        return asyncio.run(self.folder.pull())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    write(tmp_path / "notes", {"a": b"1", ".anthropic-memory-store": b"marker"})
    (tmp_path / "work").mkdir()
    servers = FileServers(tmp_path / "work")
    store = Store(tmp_path, servers)
    store.push()
    yield store
    store.end()
    store.folder.close()
    servers.wait()


def test_changes_go_both_ways(store: Store) -> None:
    assert content(store.inside) == {"a": b"1"}
    write(store.inside, {"a": b"22", "b/c": b"3"})
    assert store.pull() == ""
    assert content(store.host) == {"a": b"22", "b/c": b"3", ".anthropic-memory-store": b"marker"}
    (store.host / "a").unlink()
    write(store.host, {"b/c": b"of the host"})
    store.push()
    assert content(store.inside) == {"b/c": b"of the host"}
    (store.inside / "b" / "c").unlink()
    store.pull()
    assert content(store.host) == {".anthropic-memory-store": b"marker"}


def test_a_new_container_that_has_no_files_gets_them_and_deletes_none(store: Store) -> None:
    store.end()
    shutil.rmtree(store.inside)
    store.start()
    store.push()
    assert content(store.inside) == {"a": b"1"}
    assert store.pull() == ""
    assert content(store.host) == {"a": b"1", ".anthropic-memory-store": b"marker"}


def test_a_new_container_that_has_the_folder_of_the_last_one_keeps_what_code_changed(store: Store) -> None:
    write(store.host, {"b": b"2"})
    store.push()
    write(store.inside, {"a": b"of code"})
    (store.host / "b").unlink()
    store.end()
    store.start()
    store.push()
    assert content(store.inside) == {"a": b"of code"}
    store.pull()
    assert content(store.host) == {"a": b"of code", ".anthropic-memory-store": b"marker"}


def test_a_container_that_ends_before_the_pull_is_not_replaced_by_an_empty_one(store: Store) -> None:
    store.end()
    shutil.rmtree(store.inside)
    store.start()
    with pytest.raises(FileRejected, match="sandbox has ended"):
        store.pull()
    assert content(store.host) == {"a": b"1", ".anthropic-memory-store": b"marker"}


def test_a_file_that_the_host_replaces_by_one_of_the_same_size_and_time_goes_in(store: Store) -> None:
    times = (store.host / "a").stat()
    write(store.host, {"new": b"2"})
    os.utime(store.host / "new", ns=(times.st_atime_ns, times.st_mtime_ns))
    (store.host / "new").replace(store.host / "a")  # as the vendor's program writes
    store.push()
    assert content(store.inside) == {"a": b"2"}


def test_a_file_that_has_become_too_large_is_kept_as_it_was_and_others_are_copied(store: Store) -> None:
    write(store.inside, {"a": bytes(LIMITS.max_file_bytes + 1), "b": b"2"})
    with (store.inside / "sparse").open("wb") as file:
        file.truncate(2**42)
    assert "a (it is larger than" in store.pull()
    store.push()
    store.pull()
    assert content(store.host) == {"a": b"1", "b": b"2", ".anthropic-memory-store": b"marker"}


def test_code_changes_no_file_of_the_vendors_own(store: Store) -> None:
    write(
        store.inside, {".anthropic-memory-store": b"forged", "d/.anthropic-x": b"forged", ".anthropic-d/x": b"forged"}
    )
    store.pull()
    assert content(store.host) == {"a": b"1", ".anthropic-memory-store": b"marker"}


NAMES = ["kept", "../out", "..", ".", "", "d/../../out", "/out", "a\0b", ".anthropic-memory-store"]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    heads = [{"entries": [[name, 1, 1, 1]], "total": 1}, {}]
    answers = b"".join(map(pack_head, heads))
    with ExitStack() as stack:

        def connect(max_parts: int) -> Conversation:
            ours, theirs = socket.socketpair()
            stack.enter_context(theirs).sendall(answers + pack(CONTENT, b"x") + pack(CONTENT, b""))
            return Conversation(ours, max_parts)

        write(tmp_path, {"notes/.anthropic-memory-store": b"marker"})
        folder = MemoryFolder(tmp_path / "notes", is_read_only=False)
        files = GuestFiles(Limits(), connect)
        stack.callback(files.close)
        sandbox: Any = SimpleNamespace(sync=SimpleNamespace(_files=lambda: files))
        asyncio.run(folder.push(sandbox))
        with suppress(FileRejected):
            asyncio.run(folder.pull())
        folder.close()
    taken = {"notes/kept": b"x"} if name == "kept" else {}
    assert content(tmp_path) == {"notes/.anthropic-memory-store": b"marker", **taken}


def test_what_is_read_only_is_not_copied_out(store: Store) -> None:
    store.folder.is_read_only = True
    write(store.inside, {"a": b"2"})
    store.pull()
    assert (store.host / "a").read_bytes() == b"1"


def test_a_link_in_a_files_place_deletes_the_file_and_leads_nowhere(store: Store, tmp_path: Path) -> None:
    write(tmp_path, {"secret": b"of the host"})
    (store.inside / "a").unlink()
    (store.inside / "a").symlink_to(tmp_path / "secret")
    store.pull()
    assert content(store.host) == {".anthropic-memory-store": b"marker"}


def test_a_folder_of_the_host_in_a_files_place_is_left(store: Store) -> None:
    (store.inside / "a").unlink()
    (store.host / "a").unlink()
    (store.host / "a").mkdir()
    store.pull()
    assert (store.host / "a").is_dir()
    write(store.inside, {"c": b"3"})
    store.pull()
    assert (store.host / "c").read_bytes() == b"3"


def test_paths_below_the_folder_are_known(store: Store) -> None:
    assert store.folder.inside(f"{store.host}/x/../y") == "memory/notes/y"
    assert store.folder.inside(str(store.host)) == "memory/notes"
    assert store.folder.inside(f"{store.host}/../other") is None
    assert store.folder.inside("notes/a") is None


def test_a_path_that_the_api_makes_of_a_name_is_the_same_inside() -> None:
    mounted = MemoryFolder(Path("/mnt/memory/my-notes"), False, can_mount=True)
    assert mounted.volume
    assert mounted.volume.folder
    assert mounted.volume.target == "/mnt/memory/my-notes"
    assert mounted.volume.folder.parent.stat().st_mode & 0o077 == 0
    assert mounted.inside("/mnt/memory/my-notes/x/../y") == "/mnt/memory/my-notes/y"
    assert mounted.inside("/mnt/memory/my-notes/../other") is None
    write(mounted.volume.folder, {"of the sandbox": b""})
    mounted.close()
    assert not mounted.volume.folder.parent.exists()


@pytest.mark.parametrize("root", ["/mnt/memory", "/mnt/memory/..", "/mnt/memory/a/b", "/mnt/data", "/etc", "/"])
def test_nothing_is_mounted_at_another_path(root: str) -> None:
    assert MemoryFolder(Path(root), False, can_mount=True).volume is None


def test_the_host_is_read_beside_the_event_loop(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    readers, snapshot = list[int](), folders.snapshot

    def seen(*given: Any) -> Any:
        readers.append(threading.get_ident())
        return snapshot(*given)

    monkeypatch.setattr(folders, "snapshot", seen)
    store.push()
    assert readers
    assert threading.get_ident() not in readers
