"""Models on servers that speak OpenAI's Responses API; every request holds the whole conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_tools.models.base import Conversation, FunctionDefinition, Json, JsonObject, Options
from agent_tools.models.dialect.lesson import REFUSALS
from agent_tools.models.openai import OpenAIModel
from agent_tools.models.reply import Reply
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


class ResponsesModel(OpenAIModel):
    """A model on a server that speaks OpenAI's Responses API: its connections, limits and errors are the same.

    Args:
        model: its name on the server.
        endpoint: base URL and key.
        passed: names of further options that are sent as they are.
        options: see `OpenAIModel`.
    """

    def __init__(self, model: str, endpoint: Endpoint, passed: Sequence[str] = (), **options: Any) -> None:
        super().__init__(model, endpoint, **options)
        self._passed = passed
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
        return Reply(lambda: self._open(request), self.translated, ResponseReader(), self.waiting)

    def _open(self, request: Json) -> Any:
        """Send the request, with the model's earlier reasoning; without it to a server that refuses that.

        What a server refuses is known once it takes the request without it, as with `Dialect`.
        """
        opened, refused = self._taken(request, self._refused)
        self._refused |= refused - {FOREIGN}
        return opened

    def _taken(self, request: Json, refused: frozenset[str]) -> tuple[Any, frozenset[str]]:
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
        with self.sending({"messages": ()}, has_results=has_results(request["input"])):
            return self.posted("/responses", request)
