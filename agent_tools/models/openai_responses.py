"""Models on servers that speak OpenAI's Responses API; every request holds the whole conversation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from agent_tools.errors import ModelError
from agent_tools.models.base import (
    ArgumentsDelta,
    CallBegun,
    CallComplete,
    Conversation,
    Delta,
    Finish,
    FunctionDefinition,
    Json,
    JsonObject,
    Options,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from agent_tools.models.bounds import refuse_more_calls
from agent_tools.models.chunks import usage_of
from agent_tools.models.dialect.lessons import REFUSALS
from agent_tools.models.dialect.phrasing import REASONING
from agent_tools.models.openai import OpenAIModel
from agent_tools.models.reply import Reply, Waiting
from agent_tools.models.wire import wire_messages
from agent_tools.settings import Endpoint

_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}
_OPTIONS = (
    *("temperature", "top_p", "presence_penalty", "frequency_penalty"),
    *("parallel_tool_calls", "user", "top_logprobs", "prompt_cache_key", "safety_identifier", "service_tier"),
)


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
    ) -> None:
        self.model = model
        self._passed = passed
        # connections, limits, errors
        self._chat = OpenAIModel(model, endpoint, max_reply_bytes=max_reply_bytes, waiting=waiting)
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
            **_options(options or {}),
            "model": self.model,
            "input": [item for message in wire_messages(messages) for item in _items(message)],
            "stream": True,
            "store": False,
        }
        if tools:
            request["tools"] = [{"type": "function", "strict": False, **tool} for tool in tools]
        else:
            request.pop("tool_choice", None)
        return Reply(lambda: self._open(request), self._chat.translated, _EventReader(), self._chat.waiting)

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
        return create(stream=True, extra_body=request).http_response

    def close(self) -> None:
        """Close idle connections."""
        self._chat.close()


class _EventReader:
    """Reads a response's events into deltas."""

    def __init__(self) -> None:
        self.is_over = False
        self._calls: dict[int, int] = {}

    def read_whole(self, body: Json) -> Iterator[Delta]:
        """Refuse a response that did not come as a stream."""
        raise ModelError("The model's server sent a response at once, which was asked for as a stream.")

    def finish(self) -> Iterator[Delta]:
        """Yield nothing: a stream's last event settles all."""
        return iter(())

    def read(self, event: Json) -> Iterator[Delta]:
        """Yield the deltas of one event."""
        match event.get("type"):
            case "response.refusal.delta":
                yield RefusalDelta(event["delta"])
            case "response.output_text.delta":
                tokens = event.get("logprobs") or ()
                yield TextDelta(event["delta"], tuple(each for each in tokens if isinstance(each, Mapping)))
            case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta":
                yield ReasoningDelta(event["delta"])
            case "response.reasoning_summary_part.added" if event.get("summary_index"):
                yield ReasoningDelta("\n\n")
            case "response.output_item.added" if event["item"]["type"] == "function_call":
                refuse_more_calls(len(self._calls))
                index = self._calls[event["output_index"]] = len(self._calls)
                yield CallBegun(index, event["item"]["call_id"], event["item"]["name"])
            case "response.function_call_arguments.delta":
                yield ArgumentsDelta(self._calls[event["output_index"]], event["delta"])
            case "response.output_item.done" if event["item"]["type"] == "function_call":
                item = event["item"]
                yield CallComplete(self._calls[event["output_index"]], item["call_id"], item["name"], item["arguments"])
            case "response.completed" | "response.incomplete":
                yield from self._end(event["response"])
            case "response.failed" | "error":
                error = event.get("response", event).get("error") or event
                raise ModelError("The model's server failed.", detail=str(error.get("message") or ""))

    def _end(self, response: Json) -> Iterator[Delta]:
        self.is_over = True
        if usage := response.get("usage"):
            yield usage_of(usage, "input_tokens", "output_tokens")
        reason = str((response.get("incomplete_details") or {}).get("reason"))
        yield Finish(_REASONS.get(reason, "tool_calls" if self._calls else "stop"))


def _options(options: Options) -> JsonObject:
    found = {name: options[name] for name in _OPTIONS if options.get(name) is not None}
    if options.get("max_tokens"):
        found["max_output_tokens"] = options["max_tokens"]
    if options.get("reasoning_effort"):
        found["reasoning"] = {"effort": options["reasoning_effort"]}
    if options.get("reasoning_summary"):
        found["reasoning"] = {**found.get("reasoning", {}), "summary": options["reasoning_summary"]}
    choice = options.get("tool_choice")
    if choice:
        found["tool_choice"] = {"type": "function", **choice["function"]} if isinstance(choice, dict) else choice
    wanted = options.get("response_format")
    if wanted:
        found["text"] = {"format": {"type": wanted["type"], **wanted.get("json_schema", {})}}
    if options.get("verbosity"):
        found["text"] = {**found.get("text", {}), "verbosity": options["verbosity"]}
    if options.get("logprobs"):
        found["include"] = ["message.output_text.logprobs"]
    return found


def _items(message: Json) -> Iterator[JsonObject]:
    """Convert a message of chat completions into items of a response's input."""
    if message["role"] == "tool":
        yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
        return
    content = message.get("content")
    if thought := message.get(REASONING):
        yield {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": thought}]}
    if content:
        yield {"type": "message", "role": message["role"], "content": _content(content, message["role"])}
    for call in message.get("tool_calls") or ():
        function = call["function"]
        yield {"type": "function_call", "call_id": call["id"], **function}


def _content(content: Any, role: str) -> list[JsonObject]:
    text = "output_text" if role == "assistant" else "input_text"
    if isinstance(content, str):
        return [{"type": text, "text": content}]
    return [_part(part, text) for part in content]


def _part(part: Json, text: str) -> JsonObject:
    match part["type"]:
        case "text":
            return {"type": text, "text": part["text"]}
        case "file":
            return {"type": "input_file", **part["file"]}
        case _:
            return {"type": "input_image", "image_url": part["image_url"]["url"], "detail": "auto"}
