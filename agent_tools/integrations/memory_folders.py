"""The folder of a memory store, on the host and in the sandbox; the vendor's program keeps the host's in step."""

from __future__ import annotations

import asyncio
import posixpath
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from agent_tools import AsyncSandbox
from agent_tools.engines.volumes import Volume
from agent_tools.limits import KIB
from agent_tools.results.files import FileInfo

FOLDER = "memory"  # in the sandbox's folder, of stores that are not mounted
MARKER = ".anthropic-"  # what names of the vendor's own files begin with
MAX_FILES, MAX_BYTES, MAX_LEVELS = 2_000, 256 * KIB, 16  # of a store, of a file, of folders
_MOUNT_PATH = re.compile(r"/mnt/memory/[a-z0-9][a-z0-9-]{0,254}")
"""What the API makes of a store's name (`mount_path`), and tells the model."""


@dataclass
class MemoryFolder:
    """Copies files that have changed, either way. Code in the sandbox never sees the host's folder itself.

    Attributes:
        root: the folder on the host, whose path the model knows.
        copies: an empty folder of the host for the sandbox's copies; None if the engine shares no folders.
    """

    root: Path
    is_read_only: bool
    copies: Path | None = None
    _known: dict[str, bytes] = field(default_factory=dict)
    _facts: dict[str, tuple[int, float]] = field(default_factory=dict)

    @property
    def volume(self) -> Volume | None:
        """The volume by which the path that the model knows is one in the sandbox; None if it cannot be."""
        if self.copies is None or not _MOUNT_PATH.fullmatch(str(self.root)):
            return None
        return Volume(self.copies.name, str(self.copies), True, MAX_FILES * MAX_BYTES, str(self.root))

    def inside(self, path: str) -> str | None:
        """Return a path below the host's folder as the sandbox takes it; None for any other."""
        given = posixpath.normpath(path)
        if given != str(self.root) and not given.startswith(f"{self.root}/"):
            return None
        return posixpath.normpath(f"{self._folder}/{given[len(str(self.root)) :]}")

    async def push(self, sandbox: AsyncSandbox) -> None:
        """Copy what is new on the host into the sandbox, and remove there what is gone."""
        found = await asyncio.to_thread(self._read)
        for name in [name for name, data in found.items() if self._known.get(name) != data]:
            await sandbox.write_file(f"{self._folder}/{name}", found[name])
        for name in self._known.keys() - found.keys():
            with suppress(OSError):
                await sandbox.remove(f"{self._folder}/{name}")
        self._known = found

    async def pull(self, sandbox: AsyncSandbox) -> None:
        """Copy what code has changed to the host. What cannot be copied stays as it is there."""
        if self.is_read_only:
            return
        found = dict[str, FileInfo]()
        is_whole = await self._listed(sandbox, "", found, 0)
        for name, info in found.items():
            facts = info.size, info.modified
            if facts != self._facts.get(name) and info.size <= MAX_BYTES:
                with suppress(OSError):
                    data = await sandbox.read_file(f"{self._folder}/{name}", max_bytes=MAX_BYTES)
                    if data != self._known.get(name):
                        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                        (self.root / name).write_bytes(data)
                    self._known[name], self._facts[name] = data, facts
        for name in self._known.keys() - found.keys() if is_whole else ():
            with suppress(OSError):
                (self.root / name).unlink(missing_ok=True)
            del self._known[name]

    def _read(self) -> dict[str, bytes]:
        """Read the host's files; the vendor's program may remove them meanwhile."""
        found = dict[str, bytes]()
        for path in self.root.rglob("*"):
            if path.is_file() and not path.is_symlink() and not path.name.startswith(MARKER):
                with suppress(FileNotFoundError):
                    found[str(path.relative_to(self.root))] = path.read_bytes()
        return found

    @property
    def _folder(self) -> str:
        return str(self.root) if self.volume else f"{FOLDER}/{self.root.name}"

    async def _listed(self, sandbox: AsyncSandbox, folder: str, found: dict[str, FileInfo], level: int) -> bool:
        """Find files below a folder, none of them a link; return whether these are all. Code may lie about names."""
        is_whole = True
        with suppress(FileNotFoundError, NotADirectoryError):
            for each in await sandbox.list_files(f"{self._folder}/{folder}"):
                name = posixpath.join(folder, each.name)
                if len(found) >= MAX_FILES or level > MAX_LEVELS:
                    return False
                if (
                    "/" in each.name
                    or "\0" in each.name
                    or each.name in ("", ".", "..")
                    or each.name.startswith(MARKER)
                ):
                    continue
                if each.is_dir:
                    is_whole = await self._listed(sandbox, name, found, level + 1) and is_whole
                elif each.kind == "file":
                    found[name] = each
        return is_whole
