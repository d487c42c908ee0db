"""A file of a sandbox, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FileKind = Literal["file", "folder", "link", "other"]


@dataclass(frozen=True)
class FileInfo:
    """One entry of a folder.

    Attributes:
        name: its name in the folder. Bytes that are not UTF-8 are decoded with `surrogateescape`.
        path: the caller's path of the folder, with the name.
        size: bytes.
        modified: seconds since 1970.
        mode: permission bits.
    """

    name: str
    path: str
    kind: FileKind
    size: int
    modified: float
    mode: int

    @property
    def is_dir(self) -> bool:
        """True for a folder."""
        return self.kind == "folder"
