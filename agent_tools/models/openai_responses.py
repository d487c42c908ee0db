"""Models on servers that speak OpenAI's Responses API; every request holds the whole conversation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from agent_tools.models.base import Conversation, FunctionDefinition, JsonObject, Options
from agent_tools.models.dialect.lessons import REFUSALS
from agent_tools.models.openai import OpenAIModel
from agent_tools.models.reply import Reply, Waiting
from agent_tools.models.response_events import ResponseReader
from agent_tools.models.response_items import has_results, response_items, response_options
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
    ) -> None:
        self.model = model
        self._passed = passed
        self._chat = OpenAIModel(  # connections, limits, errors
            model, endpoint, max_reply_bytes=max_reply_bytes, waiting=waiting, leaves_waiting=leaves_waiting
        )
        self._takes_reasoning = True  # until it refuses that

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
            "input": [*response_items(wire_messages(messages))],
            "stream": True,
            "store": False,
        }
        if tools:
            request["tools"] = [{"type": "function", "strict": False, **tool} for tool in tools]
        else:
            request.pop("tool_choice", None)
        return Reply(lambda: self._open(request), self._chat.translated, ResponseReader(), self._chat.waiting)

    def _open(self, request: JsonObject) -> Any:
        """Send the request, with the model's earlier reasoning; without it to a server that refuses that."""
        bare = {**request, "input": [item for item in request["input"] if item["type"] != "reasoning"]}
        if bare["input"] == request["input"] or not self._takes_reasoning:
            return self._send(bare)
        try:
            return self._send(request)
        except Exception as exc:  # the client's own, whose package is not imported here
            if getattr(exc, "status_code", None) not in REFUSALS:
                raise
            opened = self._send(bare)  # another mistake is refused again
            self._takes_reasoning = False
            return opened

    def _send(self, request: JsonObject) -> Any:
        """Send a request; return the HTTP client's response, unread."""
        create = self._chat.connected().responses.with_raw_response.create  # see OpenAIModel for what is passed
        with self._chat.sending(has_results=has_results(request["input"])):
            return create(stream=True, extra_body=request).http_response

    def close(self) -> None:
        """Close idle connections."""
        self._chat.close()
