"""A server's dialect while it is learned."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import fields, replace
from typing import TypeVar

from agent_tools.models.base import Json, JsonObject
from agent_tools.models.dialect.lessons import MAX_LESSONS, lesson
from agent_tools.models.dialect.phrasing import phrased
from agent_tools.models.dialect.profile import Profile

Sent = TypeVar("Sent")
_log = logging.getLogger(__name__)


class Refused(Exception):
    """A server refused a request; `words` are its own, `cause` is the client's exception."""

    def __init__(self, words: str, cause: Exception) -> None:
        super().__init__()
        self.words = words
        self.cause = cause


class Dialect:
    """The knowledge of one server. Threads may share it."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._lock = threading.Lock()

    def ask(self, request: Json, send: Callable[[JsonObject], Sent]) -> Sent:
        """Send a request, and send it again as the server wants it, if its refusal says so.

        What was learned is kept once the server takes the request: no refusal alone changes anything.

        Args:
            request: the request, as phrasing.py expects it.
            send: sends it; raises `Refused` for a refusal that may teach something.
        """
        return self._ask(request, send, self.profile, None, MAX_LESSONS)

    def _ask(
        self, request: Json, send: Callable[[JsonObject], Sent], profile: Profile, start: Profile | None, lessons: int
    ) -> Sent:
        """Go on from a profile; `start` is the one before the first lesson, None before there was any."""
        try:
            answer = send(phrased(request, profile))
        except Refused as refusal:
            taught = lesson(profile, request, refusal.words) if lessons else None
            if taught is None:
                raise refusal.cause from None
        else:
            if start is not None:
                self._keep(start, profile)
            return answer
        return self._ask(request, send, taught, profile if start is None else start, lessons - 1)

    def hear(self, field: str) -> None:
        """Note the field that the server's reasoning came in: it goes back in the same."""
        if field and field != self.profile.reasoning != "none":
            self._keep(self.profile, self.profile.learned(reasoning=field))

    def _keep(self, start: Profile, learned: Profile) -> None:
        """Keep what differs between two profiles, beside what other requests have learned meanwhile."""
        with self._lock:
            names = [
                field.name for field in fields(learned) if getattr(start, field.name) != getattr(learned, field.name)
            ]
            news = {name: getattr(learned, name) for name in names}
            if "left_out" in news:
                news["left_out"] |= self.profile.left_out
            profile = replace(self.profile, **news)
            if profile != self.profile:
                _log.info("learned of the model's server: %s", ", ".join(names))
                self.profile = profile
