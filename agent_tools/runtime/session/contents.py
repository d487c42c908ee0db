"""The contents of a session beside its runs: files, commands, and the state as an archive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager

from agent_tools.runtime.commands.commands import Commands
from agent_tools.runtime.files.archives import Archives, Pieces
from agent_tools.runtime.files.guest_files import GuestFiles
from agent_tools.runtime.sandbox.spec import SessionSpec
from agent_tools.runtime.session import state
from agent_tools.runtime.session.branch import AnySandbox
from agent_tools.saved_state import VariablesReport


class WithContents(ABC):
    """Any thread may call any method. A sandbox is started if there is none; errors are those of a run."""

    @property
    @abstractmethod
    def spec(self) -> SessionSpec:
        """Its makings."""

    @abstractmethod
    def live(self) -> AnySandbox:
        """Return the sandbox that runs, also while it runs code; started if there is none."""

    @abstractmethod
    def between_runs(self) -> AbstractContextManager[AnySandbox]:
        """Hold the turn, with a kernel that waits for code."""

    @property
    def files(self) -> GuestFiles:
        """The files of its sandbox."""
        return self.live().files

    @property
    def commands(self) -> Commands:
        """The commands of its sandbox."""
        return self.live().commands

    def define(self, source: str) -> None:
        """Run code that leaves no trace but what it defines.

        Raises:
            PreludeError: it failed.
        """
        with self.between_runs() as sandbox:
            sandbox.define(source, self.spec.limits.timeout)

    def save(self, path: str, most: int, write: Callable[[bytes], object], *, variables: bool) -> VariablesReport:
        """Write an archive of a folder, at most so many bytes, piece by piece; return what became of the variables.

        Raises:
            OSError: the folder cannot be read; EFBIG beyond `most` bytes.
            KernelError: the kernel could not begin to save variables.
        """
        if variables:
            return state.save(self, path, most, write)
        for piece in Archives(self.files, self.spec.limits).save(path, most):
            write(piece)
        return VariablesReport()

    def load(self, path: str, archive: Pieces, *, variables: bool) -> VariablesReport:
        """Unpack an archive into a folder, and set its variables; return what became of these.

        Raises:
            OSError: the folder cannot be written, or the archive is none.
        """
        if variables:
            return state.load(self, path, archive)
        Archives(self.files, self.spec.limits).load(path, archive)
        return VariablesReport()
