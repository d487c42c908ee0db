"""Ids of calls that came without one."""

from __future__ import annotations

import uuid


def new_call_id() -> str:
    """Return a new id."""
    return f"call_{uuid.uuid4().hex[:24]}"
