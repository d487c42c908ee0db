"""Converts between paths of a wire's clients and paths of the sandbox."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from starlette.exceptions import HTTPException


@dataclass(frozen=True)
class Home:
    """The folder of files in a sandbox: its name in a wire, and further names that clients write for it."""

    name: str
    aliases: tuple[str, ...]

    def resolved(self, path: str, cwd: str = "") -> str:
        """Return a path as an absolute one in normal form; a relative one counts from `cwd`, the home by default.

        Raises:
            HTTPException: 400, it holds a NUL.
        """
        for known in self.aliases:
            if path == known or path.startswith(f"{known}/"):
                path = self.name + path[len(known) :]
        if "\0" in path:
            raise HTTPException(400, "A path has no NUL.")
        return "/" + posixpath.normpath(posixpath.join(cwd or self.name, path)).lstrip("/")

    def inside(self, path: str) -> str | None:
        """Return an absolute path relative to the home, '' for the home itself; None if it lies elsewhere."""
        if path == self.name:
            return ""
        return path[len(self.name) + 1 :] if path.startswith(f"{self.name}/") else None

    def in_sandbox(self, path: str) -> str:
        """Return an absolute path as a sandbox takes it, whose paths count from the home."""
        relative = self.inside(path)
        return path if relative is None else relative or "."

    def taken(self, path: str) -> str:
        """Return a client's path as a sandbox takes it. Errors as for `resolved`."""
        return self.in_sandbox(self.resolved(path))

    def shown(self, path: str) -> str:
        """Return a path of the sandbox as its client knows it, by the first alias if there are any."""
        relative = self.inside(full := self.resolved(path))
        name = (*self.aliases, self.name)[0]
        return full if relative is None else posixpath.join(name, relative).rstrip("/")

    def check_spared(self, path: str) -> None:
        """Raise HTTPException, 400, for a path that may be neither deleted nor moved."""
        if path in ("/", self.name):
            raise HTTPException(400, "The home directory cannot be deleted or moved.")
