"""Ids of objects: a prefix and hex digits of the system's randomness, at most 64 characters."""

from __future__ import annotations

import secrets


def new_id(prefix: str) -> str:
    """Return a fresh id, such as `resp_...`, `cntr_...`, `cfile_...`."""
    return f"{prefix}_{secrets.token_hex(24)}"
