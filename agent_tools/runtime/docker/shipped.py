"""The files that are shipped and are not Python: the Dockerfile, the lock, the profile, the fonts, the guest's code."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[2]


def shipped(name: str) -> Path:
    """Return the path of `docker/...`, `fonts/...` or `guest/...`: in an installed wheel, or atop a checkout."""
    if name.startswith("guest"):
        return _PACKAGE / name
    installed = _PACKAGE / "shipped" / name
    return installed if installed.exists() else _PACKAGE.parent / name
