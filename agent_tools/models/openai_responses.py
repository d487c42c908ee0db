"""Models on servers that speak OpenAI's Responses API; every request holds the whole conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from agent_tools.models.base import Conversation, FunctionDefinition, JsonObject, Options
from agent_tools.models.dialect.lesson import REFUSALS
from agent_tools.models.openai import OpenAIModel
from agent_tools.models.reply import Reply, Waiting
from agent_tools.models.response_reader import ResponseReader
from agent_tools.models.response_request import (
    ENCRYPTED,
    FOREIGN,
    has_results,
    refused_part,
    response_items,
    response_options,
    without_parts,
)
from agent_tools.models.server_errors import CONTEXT_TOO_LONG, failure_name, words_of
from agent_tools.models.wire import wire_messages
from agent_tools.settings import Endpoint


class ResponsesModel:
    """A model on a server that speaks OpenAI's Responses API. Threads may share one.

    `passed` names further options that are sent as they are.
    """

    def __init__(
        self,
        model: str,
        endpoint: Endpoint,
        *,
        max_reply_bytes: int,
        passed: Sequence[str] = (),
        waiting: Waiting = nullcontext,
        leaves_waiting: bool = False,
        on_request: Callable[[Any], None] | None = None,
    ) -> None:
        self.model = model
        self._passed = passed
        self._chat = OpenAIModel(  # connections, limits, errors
            model,
            endpoint,
            max_reply_bytes=max_reply_bytes,
            waiting=waiting,
            leaves_waiting=leaves_waiting,
            on_request=on_request,
        )
        self._refused: frozenset[str] = frozenset()  # parts of requests that the server does without

    def reply(
        self,
        messages: Conversation,
        tools: Sequence[FunctionDefinition] = (),
        options: Options | None = None,
    ) -> Reply:
        """Ask the model; see `Model.reply`. Any thread may close the reply, at any time."""
        request = {
            **{name: value for name in self._passed if (value := (options or {}).get(name)) is not None},
            **response_options(options or {}),
            "model": self.model,
            "input": [*response_items(wire_messages(messages), self.model)],
            "stream": True,
            "store": False,
        }
        request["include"] = [*request.get("include", ()), ENCRYPTED]  # nothing else keeps reasoning without storing it
        if tools:
            request["tools"] = [{"type": "function", "strict": False, **tool} for tool in tools]
        else:
            request.pop("tool_choice", None)
        return Reply(lambda: self._open(request), self._chat.translated, ResponseReader(), self._chat.waiting)

    def _open(self, request: JsonObject) -> Any:
        """Send the request, with the model's earlier reasoning; without it to a server that refuses that.

        What a server refuses is known once it takes the request without it, as with `Dialect`.
        """
        opened, refused = self._taken(request, self._refused)
        self._refused |= refused - {FOREIGN}
        return opened

    def _taken(self, request: JsonObject, refused: frozenset[str]) -> tuple[Any, frozenset[str]]:
        """Send the request without the parts that the server refuses; return the response, and these parts."""
        try:
            return self._send(without_parts(request, refused)), refused
        except Exception as exc:  # the client's own, whose package is not imported here
            words = words_of(getattr(exc, "body", None))
            is_too_long = failure_name(words, getattr(exc, "code", None)) == CONTEXT_TOO_LONG
            may_teach = getattr(exc, "status_code", None) in REFUSALS and not is_too_long
            part = refused_part(request, refused, words) if may_teach else None
            if part is None:
                raise
        return self._taken(request, refused | {part})

    def _send(self, request: JsonObject) -> Any:
        """Send a request; return the HTTP client's response, unread."""
        with self._chat.sending({"messages": ()}, has_results=has_results(request["input"])):
            return self._chat.posted("/responses", request)

    def close(self) -> None:
        """Close idle connections."""
        self._chat.close()
