"""The files of a sandbox, by its own file service: every path that the code itself could use."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, BinaryIO, Literal, overload

from agent_tools.execution import StagedFile
from agent_tools.file_info import FileInfo
from agent_tools.runtime.files.archives import NO_FILES, opened
from agent_tools.sandbox.arguments import StrPath, check_file, path_text, whole_number
from agent_tools.sandbox.opening import Opening
from agent_tools.saved_state import SavedState, VariablesReport

if TYPE_CHECKING:
    from agent_tools.runtime.files.workspace import Workspace
    from agent_tools.runtime.sessions import FilesLike

WORK_DIR = "."  # as the file service sees it


class WithFiles:
    """Reads, writes and lists files. No path is looked up on the host, so no link of the guest's leads there."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening

    @property
    def workspace(self) -> Workspace:
        """Its work_dir as the host sees it."""
        return self._opening.workspace

    def read_file(self, path: StrPath, *, offset: int = 0, max_bytes: int | None = None) -> bytes:
        """Return the bytes of a file, from `offset` on and at most `max_bytes` of them.

        Raises:
            InvalidParams: an argument is of another type.
            OSError: `FileNotFoundError` and its kin, as the code itself would have it; EFBIG if `max_bytes` was not
                given and the file has more than `max_transfer_bytes` (100 MiB).
            SandboxGone: the sandbox ended meanwhile.
        """
        most = None if max_bytes is None else whole_number(max_bytes, "max_bytes")
        return self._files().read(path_text(path), whole_number(offset, "offset"), most)

    def write_file(self, path: StrPath, data: bytes | str | BinaryIO, *, append: bool = False) -> None:
        """Write a file anew, or at its end; folders above it are made. Text is written as UTF-8. Errors as above.

        Raises:
            InvalidParams: the data are neither bytes nor text, nor a file opened for reading.
        """
        if not isinstance(data, (str, bytes, bytearray, memoryview)):
            check_file(data, "data")
        self._files().write(path_text(path), data.encode() if isinstance(data, str) else data, append=append)

    def list_files(self, path: StrPath = ".") -> list[FileInfo]:
        """Return the entries of a folder, by name. Errors as for `read_file`."""
        return self._files().scan(path_text(path))

    def stat(self, path: StrPath, *, follow: bool = True) -> FileInfo:
        """Return one file or folder; with `follow`, what a link leads to. Errors as for `read_file`."""
        return self._files().stat(path_text(path), follow=follow)

    def exists(self, path: StrPath) -> bool:
        """Return whether there is a file or folder of this path."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def move(self, path: StrPath, to: StrPath) -> None:
        """Move or rename a file or folder; folders above its new place are made. Errors as for `read_file`."""
        self._files().move(path_text(path), path_text(to, "to"))

    def remove(self, path: StrPath, *, recursive: bool = False) -> None:
        """Remove a file, a link or an empty folder; with `recursive`, a folder with all in it. Errors as above."""
        self._files().remove(path_text(path), recursive=recursive)

    def make_dir(self, path: StrPath) -> None:
        """Make a folder and those above it; one that is there is no error. Errors as for `read_file`."""
        self._files().make_dir(path_text(path))

    @overload
    def save(self, *, variables: Literal[False] = False) -> bytes: ...
    @overload
    def save(self, *, variables: Literal[True]) -> SavedState: ...
    def save(self, *, variables: bool = False) -> bytes | SavedState:
        """Return all files of work_dir as a tar; with `variables`, a `SavedState` with those of the kernel, too.

        Variables are pickled in the sandbox, by a copy of the kernel, within `max_variables_bytes` and
        `variables_timeout`. The result names those that could not be saved, with the reason.

        Raises:
            OSError: as for `read_file`; EFBIG beyond `max_archive_bytes` (1 GiB).
            KernelError: the kernel could not begin to save variables.
        """
        archive = io.BytesIO()
        report = self.save_to(archive, variables=variables)
        return SavedState(archive.getvalue(), report) if variables else archive.getvalue()

    def save_to(self, archive: BinaryIO, *, files: bool = True, variables: bool = True) -> VariablesReport:
        """Write what `save` returns to a file of the host, piece by piece; return what became of the variables.

        Without `files` it holds the variables alone. Errors as for `save`.
        """
        check_file(archive, "archive", to_write=True)
        most = self._opening.options.limits.max_archive_bytes
        path = WORK_DIR if files or not variables else NO_FILES
        return self._opening.session().save(path, most, archive.write, variables=variables)

    def load(self, tar: bytes | BinaryIO | SavedState, *, variables: bool = True) -> VariablesReport:
        """Unpack what `save` gave into work_dir, within the sandbox, and set its variables; return what became of them.

        Variables that are there keep their values, but for those of the same names. What an archive holds is read in
        the sandbox alone: one from a stranger can do there what code of his could.

        Raises:
            InvalidParams: it is no archive of this kind.
            OSError: as for `write_file`.
        """
        if not isinstance(tar, (SavedState, bytes, bytearray, memoryview)):
            check_file(tar, "tar")
        has_variables, archive = opened(tar.tar if isinstance(tar, SavedState) else tar)
        return self._opening.session().load(WORK_DIR, archive, variables=has_variables and variables)

    def stage(self, files: Iterable[str]) -> tuple[StagedFile, ...]:
        """Bring files of the host, or of http(s) URLs, into work_dir; the result names those that could not be had."""
        return self.workspace.stage(list(files))

    def _files(self) -> FilesLike:
        return self._opening.session().files
