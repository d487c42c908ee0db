"""The files that are shipped and are not Python: the Dockerfile, the lock, the profile, the fonts, the guest's code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[2]


def shipped(name: str) -> Path:
    """Return the path of `docker/...`, `fonts/...` or `guest/...`: in an installed wheel, or atop a checkout."""
    if name.startswith("guest"):
        return _PACKAGE / name
    installed = _PACKAGE / "shipped" / name
    return installed if installed.exists() else _PACKAGE.parent / name


def package_files() -> Iterator[tuple[str, Path]]:
    """Yield the package's own files, without what is shipped beside them, with their paths below `agent_tools`."""
    for path in sorted(_PACKAGE.rglob("*")):
        below = path.relative_to(_PACKAGE)
        if path.is_file() and below.parts[0] != "shipped" and "__pycache__" not in below.parts:
            yield str(below), path
