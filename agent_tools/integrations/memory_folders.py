"""The folder of a memory store, on the host and in the sandbox; the vendor's program keeps the host's in step."""

from __future__ import annotations

import posixpath
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from agent_tools import AsyncSandbox
from agent_tools.limits import KIB

FOLDER = "memory"  # in the sandbox's folder
MAX_FILES, MAX_BYTES, MAX_LEVELS = 2_000, 256 * KIB, 16  # of a store, of a file, of folders


@dataclass
class MemoryFolder:
    """Copies files that have changed, either way. Code in the sandbox never sees the host's folder itself.

    Attributes:
        root: the folder on the host, whose path the model knows.
    """

    root: Path
    is_read_only: bool
    _known: dict[str, bytes] = field(default_factory=dict)

    def inside(self, path: str) -> str | None:
        """Return a path below the host's folder as the sandbox takes it; None for any other."""
        given = posixpath.normpath(path)
        if given != str(self.root) and not given.startswith(f"{self.root}/"):
            return None
        return posixpath.normpath(f"{FOLDER}/{self.root.name}/{given[len(str(self.root)) :]}")

    async def give(self, sandbox: AsyncSandbox) -> None:
        """Copy what is new on the host into the sandbox, and remove there what is gone."""
        found = {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file() and not path.is_symlink() and not path.name.startswith(".anthropic-")
        }
        for name in [name for name, data in found.items() if self._known.get(name) != data]:
            await sandbox.write_file(f"{FOLDER}/{self.root.name}/{name}", found[name])
        for name in self._known.keys() - found.keys():
            with suppress(OSError):
                await sandbox.remove(f"{FOLDER}/{self.root.name}/{name}")
        self._known = found

    async def take(self, sandbox: AsyncSandbox) -> None:
        """Copy what code has changed to the host; names are those of files that the sandbox lists, none a link."""
        if self.is_read_only:
            return
        found = dict[str, bytes]()
        await self._read(sandbox, "", found, 0)
        for name, data in found.items():
            if self._known.get(name) != data:
                target = self.root / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
        for name in self._known.keys() - found.keys():
            (self.root / name).unlink(missing_ok=True)
        self._known = found

    async def _read(self, sandbox: AsyncSandbox, folder: str, found: dict[str, bytes], level: int) -> None:
        top = f"{FOLDER}/{self.root.name}/{folder}"
        with suppress(FileNotFoundError, NotADirectoryError):
            for each in await sandbox.list_files(top):
                name = posixpath.join(folder, each.name)
                if each.is_dir and level < MAX_LEVELS:
                    await self._read(sandbox, name, found, level + 1)
                elif each.kind == "file" and each.size <= MAX_BYTES and len(found) < MAX_FILES:
                    found[name] = await sandbox.read_file(f"{top}/{each.name}", max_bytes=MAX_BYTES)
