"""Learning of a server's dialect."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Generic, TypeVar

from agent_tools.errors import AgentToolsError
from agent_tools.models.base import Json, JsonObject
from agent_tools.models.dialect.lesson import MAX_LESSONS, lesson
from agent_tools.models.dialect.phrasing import phrased
from agent_tools.models.dialect.profile import UpstreamProfile
from agent_tools.text import neutralise

Sent = TypeVar("Sent")
_MAX_NAME = 100  # characters of a model's name in the log
_log = logging.getLogger(__name__)


class RequestRejected(AgentToolsError):
    """A server refused a request; `words` is its message, `cause` the client's exception."""

    def __init__(self, words: str, cause: Exception) -> None:
        super().__init__()
        self.words = words
        self.cause = cause


class Dialect:
    """The learned dialect of one server for one model, whose name is for the log. Threads may share it."""

    def __init__(self, profile: UpstreamProfile, model: str = "") -> None:
        self.profile = profile
        self._model = neutralise(model[:_MAX_NAME])
        self._lock = threading.Lock()

    def hear(self, name: str, value: str) -> None:
        """Note what a reply shows: the field that reasoning comes in, and goes back in, or how it stands in text."""
        if value != getattr(self.profile, name) != "none":
            self.keep(self.profile, self.profile.learned(**{name: value}))

    def keep(self, start: UpstreamProfile, learned: UpstreamProfile) -> None:
        """Keep what differs between two profiles, beside what other requests have learned."""
        with self._lock:
            new = {each.name: getattr(learned, each.name) for each in fields(learned)}
            news = {name: value for name, value in new.items() if value != getattr(start, name)}
            if "left_out" in news:
                news["left_out"] |= self.profile.left_out
            profile = replace(self.profile, **news)
            if profile != self.profile:
                shown = {name: " ".join(sorted(each)) if name == "left_out" else each for name, each in news.items()}
                learned_now = ", ".join(f"{name}={value}" for name, value in shown.items())
                _log.info("learned of the server of the model %s: %s", self._model, learned_now)
                self.profile = profile


class Asking(Generic[Sent]):
    """One request, sent again in the dialect that each refusal asks for: one change at a time.

    What was learned is kept once the server's answer begins: no refusal alone changes anything.

    Args:
        dialect: what is known of the server.
        request: the request, as phrasing.py expects it.
        send: sends it; raises `RequestRejected` for a refusal that may teach something.
    """

    def __init__(self, dialect: Dialect, request: Json, send: Callable[[JsonObject], Sent]) -> None:
        self._dialect, self._request, self._send = dialect, request, send
        self._start = self._profile = dialect.profile
        self._left = MAX_LESSONS

    def open(self) -> Sent:
        """Send the request until it is taken, or refused for a reason that teaches nothing."""
        try:
            return self._send(phrased(self._request, self._profile))
        except RequestRejected as refusal:
            if not self._learn(refusal.words):
                raise refusal.cause from None
        return self.open()

    def open_again(self, words: str) -> Sent | None:
        """Send the request again after an answer that is only an error; None if its words teach nothing."""
        return self.open() if self._learn(words) else None

    def taken(self) -> None:
        """Keep what was learned: the answer has begun."""
        self._dialect.keep(self._start, self._profile)

    def _learn(self, words: str) -> bool:
        taught = lesson(self._profile, self._request, words) if self._left else None
        self._profile, self._left = taught or self._profile, self._left - 1
        return taught is not None
