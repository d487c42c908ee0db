"""The folder of a memory store, on the host and in the sandbox; the vendor's program keeps the host's in step."""

from __future__ import annotations

import asyncio
import os
import posixpath
import re
import secrets
from functools import partial
from pathlib import Path

from agent_tools import AsyncSandbox
from agent_tools.engines.volumes import Volume
from agent_tools.limits import KIB, MIB, Limits
from agent_tools.machine.removal import remove_tree
from agent_tools.runtime.files.mirror import Mirror
from agent_tools.runtime.files.temp_work_dir import make_temp_work_dir
from agent_tools.runtime.in_thread import in_thread

FOLDER = "memory"  # in the sandbox's folder, of stores that are not mounted
MARKER = ".anthropic-"  # what names of the vendor's own files begin with
VOLUME_BYTES = 500 * MIB
LIMITS = Limits(max_file_bytes=256 * KIB, max_work_dir_entries=4_000, max_work_dir_bytes=2**62)  # of a store
_MOUNT_PATH = re.compile(r"/mnt/memory/[a-z0-9][a-z0-9-]{0,254}")
"""What the API makes of a store's name (`mount_path`), and tells the model."""


class MemoryFolder:
    """Copies files that have changed, either way. Code in the sandbox never sees the host's folder itself.

    Args:
        root: the folder on the host, whose path the model knows.
        can_mount: the engine shares folders, so that the path can be one in the sandbox, too.
    """

    def __init__(self, root: Path, is_read_only: bool, can_mount: bool = False) -> None:
        self.root = root
        self.is_read_only = is_read_only
        self._copies = make_temp_work_dir() if can_mount and _MOUNT_PATH.fullmatch(str(root)) else None
        self.volume = _volume(self._copies, root) if self._copies else None
        """The volume by which the path that the model knows is one in the sandbox; None if it cannot be."""
        self._folder = str(root) if self.volume else f"{FOLDER}/{root.name}"
        self._mirror: Mirror | None = None  # of the container that the last call used
        self._lock = asyncio.Lock()

    def inside(self, path: str) -> str | None:
        """Return a path below the host's folder as the sandbox takes it; None for any other."""
        given = Path(posixpath.normpath(path))
        return str(Path(self._folder) / given.relative_to(self.root)) if given.is_relative_to(self.root) else None

    async def push(self, sandbox: AsyncSandbox) -> None:
        """Copy what is new on the host into the sandbox, and remove there what is gone. Errors as for `Mirror.push`."""
        async with self._lock:
            await in_thread(partial(self._push, sandbox), lambda: None)

    async def pull(self) -> str:
        """Copy what code has changed to the host. Result and errors as for `Mirror.pull`."""
        async with self._lock:
            return await in_thread(self._mirror.pull, lambda: None) if self._mirror and not self.is_read_only else ""

    def close(self) -> None:
        """Remove the sandbox's copies."""
        if self._copies:
            remove_tree(self._copies)

    def _push(self, sandbox: AsyncSandbox) -> None:
        files = sandbox.sync._files()
        if self._mirror is None or self._mirror.files is not files:
            mirror = Mirror(self.root, (os.getuid(), os.getgid()), LIMITS, files, self._folder, _is_vendors)
            if self._mirror:
                mirror.succeed(self._mirror)
            self._mirror = mirror
        self._mirror.push()


def _is_vendors(name: str) -> bool:
    return any(part.startswith(MARKER) for part in name.split("/"))


def _volume(copies: Path, root: Path) -> Volume:
    """Return a volume for copies, which the user of the sandbox can write to, and no other: its parent is private."""
    folder = copies / "memory"
    folder.mkdir()
    folder.chmod(0o777)
    return Volume(f"memory-{secrets.token_hex(8)}", str(folder), True, VOLUME_BYTES, str(root))
