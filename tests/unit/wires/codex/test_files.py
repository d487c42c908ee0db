"""Files of a session: what looking at links costs."""

from __future__ import annotations

from typing import Any

import pytest

from agent_tools.results.files import FileInfo
from agent_tools.wires.codex.files import FileMethods, WalkOptions
from agent_tools.wires.codex.messages import RpcError
from agent_tools.wires.paths import Home


class Links:
    """A sandbox whose folders hold links to folders, without end."""

    def __init__(self) -> None:
        self.looks = 0

    def list_files(self, path: str) -> list[FileInfo]:
        return [FileInfo(name, f"{path}/{name}", "link", 0, 0.0, 0o777) for name in "abc"]

    def stat(self, path: str) -> FileInfo:
        self.looks += 1
        return FileInfo("a", path, "folder", 0, 0.0, 0o777)


def test_folders_of_links_are_looked_at_for_a_limited_time() -> None:
    files, links = FileMethods(Home("/workspace", ())), Links()
    sandbox: Any = links
    limits = WalkOptions(maxDepth=99, maxDirectories=9, maxEntries=9_000, followDirectorySymlinks=True)  # type: ignore[call-arg]
    walked = files.walk(sandbox, "/workspace", limits)
    assert (len(walked["entries"]), walked["truncated"], links.looks) == (9, True, 9)
    files.seconds = -1
    assert files.walk(sandbox, "/workspace", limits) == {"entries": [], "errors": [], "truncated": True}
    with pytest.raises(RpcError, match="more links"):
        files.read_directory(sandbox, "/workspace")
    assert links.looks == 9
