"""Data files of the package: the Dockerfile, the lock, the seccomp profile, the fonts, the guest's code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped(name: str) -> Path:
    """Return the path of `docker/...`, `fonts/...` or `guest/...`, in an installed wheel or in a checkout."""
    if name.startswith("guest"):
        return _PACKAGE / name
    installed = _PACKAGE / "shipped" / name
    return installed if installed.exists() else _PACKAGE.parent / name


def package_files() -> Iterator[tuple[str, Path]]:
    """Yield the package's own files, without its data files, with their paths below `agent_tools`."""
    for path in sorted(_PACKAGE.rglob("*")):
        below = path.relative_to(_PACKAGE)
        if path.is_file() and below.parts[0] != "shipped" and "__pycache__" not in below.parts:
            yield str(below), path
