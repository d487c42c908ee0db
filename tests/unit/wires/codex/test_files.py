"""Files of a session: links, and how long they are looked at."""

from __future__ import annotations

from typing import Any, cast

from agent_tools.results.files import FileInfo, FileKind
from agent_tools.wires.codex.files import FileMethods, WalkOptions
from agent_tools.wires.paths import Home


class Links:
    """A sandbox whose folders hold links to folders, without end."""

    def list_files(self, path: str, *, follow: bool = False) -> list[FileInfo]:
        entries: list[tuple[str, FileKind]] = [(name, "folder" if follow else "link") for name in "abc"]
        entries += [("dangling", "link"), ("file", "file"), ("to-file", "file" if follow else "link")]
        return [FileInfo(name, f"{path}/{name}", kind, 0, 0.0, 0o777) for name, kind in entries]


def test_folders_of_links_are_walked_within_limits_and_for_a_limited_time() -> None:
    files, sandbox = FileMethods(Home("/workspace", ())), cast("Any", Links())
    limits = WalkOptions(maxDepth=99, maxDirectories=9, maxEntries=9_000, followDirectorySymlinks=True)  # type: ignore[call-arg]
    walked = files.walk(sandbox, "/workspace", limits)
    found = [(each["path"].rpartition("/")[2], each["kind"]) for each in walked["entries"]]
    assert found[:4] == [("a", "directory"), ("b", "directory"), ("c", "directory"), ("file", "file")]
    assert (sum(kind == "directory" for _, kind in found), walked["truncated"]) == (9, True)
    limits.follow_directory_symlinks = False
    assert [each["kind"] for each in files.walk(sandbox, "/workspace", limits)["entries"]] == ["file"]
    files.seconds = -1
    assert files.walk(sandbox, "/workspace", limits) == {"entries": [], "errors": [], "truncated": True}


def test_entries_that_are_links_count_as_their_targets() -> None:
    listed = FileMethods(Home("/workspace", ())).read_directory(cast("Any", Links()), "/workspace")["entries"]
    folders = [each["fileName"] for each in listed if each["isDirectory"]]
    assert (folders, [each["fileName"] for each in listed if each["isFile"]]) == (["a", "b", "c"], ["file", "to-file"])
    assert len(listed) == 5
