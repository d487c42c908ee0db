"""The files of a sandbox, by its own file service: every path that the code itself could use."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, BinaryIO

from agent_tools.file_info import FileInfo
from agent_tools.sandbox.opening import Opening

if TYPE_CHECKING:
    from agent_tools.runtime.files.guest_files import GuestFiles

WORK_DIR = "."  # as the file service sees it


class WithFiles:
    """Reads, writes and lists files. No path is looked up on the host, so no link of the guest's leads there."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening

    def read_file(self, path: str, *, offset: int = 0, max_bytes: int | None = None) -> bytes:
        """Return the bytes of a file, from `offset` on and at most `max_bytes` of them.

        Raises:
            OSError: `FileNotFoundError` and its kin, as the code itself would have it; EFBIG if `max_bytes` was not
                given and the file has more than `max_transfer_bytes` (100 MiB).
            SandboxGone: the sandbox ended meanwhile.
        """
        return self._files().read(path, offset, max_bytes)

    def write_file(self, path: str, data: bytes | str | BinaryIO, *, append: bool = False) -> None:
        """Write a file anew, or at its end; folders above it are made. Text is written as UTF-8. Errors as above."""
        self._files().write(path, data.encode() if isinstance(data, str) else data, append=append)

    def list_files(self, path: str = ".") -> list[FileInfo]:
        """Return the entries of a folder, by name. Errors as for `read_file`."""
        return self._files().scan(path)

    def stat(self, path: str, *, follow: bool = True) -> FileInfo:
        """Return one file or folder; with `follow`, what a link leads to. Errors as for `read_file`."""
        return self._files().stat(path, follow=follow)

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder of this path."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def move(self, path: str, to: str) -> None:
        """Move or rename a file or folder; folders above its new place are made. Errors as for `read_file`."""
        self._files().move(path, to)

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or an empty folder; with `recursive`, a folder with all in it. Errors as above."""
        self._files().remove(path, recursive=recursive)

    def make_dir(self, path: str) -> None:
        """Make a folder and those above it; one that is there is no error. Errors as for `read_file`."""
        self._files().make_dir(path)

    def save(self) -> bytes:
        """Return all files of work_dir as a tar. Errors as for `read_file`."""
        return b"".join(self._files().save(WORK_DIR, self._opening.options.limits.max_archive_bytes))

    def load(self, tar: bytes | BinaryIO) -> None:
        """Unpack a tar into work_dir, within the sandbox. Errors as for `read_file`."""
        self._files().load(WORK_DIR, io.BytesIO(tar) if isinstance(tar, bytes) else tar)

    def _files(self) -> GuestFiles:
        return self._opening.session().live().files
