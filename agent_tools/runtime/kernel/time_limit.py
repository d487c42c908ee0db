"""A run's time limit, which stands still while somebody is asked for an approval."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class TimeLimit:
    """`timeout` seconds from now, and as long as it is held. Not thread-safe: whoever has it has a lock."""

    def __init__(self, timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.timeout = timeout
        self._clock = clock
        self._deadline = clock() + timeout
        self._left = 0.0
        self._is_held = False

    @property
    def deadline(self) -> float:
        """The moment at which the time is up (monotonic seconds); infinity while the limit is held."""
        return math.inf if self._is_held else self._deadline

    def hold(self) -> None:
        """Let it stand still."""
        self._left, self._is_held = self._deadline - self._clock(), True

    def go(self) -> float:
        """Let it go on; return the seconds that are left."""
        self._deadline, self._is_held = self._clock() + self._left, False
        return self._left
