"""A sweep has parts; the failure of one part does not stop the others."""

from __future__ import annotations

import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)


def failures(part: Callable[[], int | None]) -> int:
    """Run a part of a sweep; return the number of failures it counts, or 1 if it raises."""
    try:
        return part() or 0
    except Exception as exc:  # noqa: BLE001  (the outermost loop of a thread; the next sweep does what this one did not)
        _log.error("sweeping failed: %s", type(exc).__name__)
        return 1
