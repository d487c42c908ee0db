"""Models on servers that speak OpenAI's Responses API; every request holds the whole conversation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from agent_tools.models.base import Conversation, FunctionDefinition, Json, JsonObject, Options
from agent_tools.models.dialect.phrasing import REASONING, REFUSALS
from agent_tools.models.openai import OpenAIModel
from agent_tools.models.reply import Reply, Waiting
from agent_tools.models.response_events import ResponseReader
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


# Requests of chat completions as those of OpenAI's Responses API. Pure.
#
# The formats are https://platform.openai.com/docs/api-reference/chat/create and .../responses/create. What has no
# counterpart is sent as it is: the server knows best how to refuse it.


_OPTIONS = (
    *("temperature", "top_p", "presence_penalty", "frequency_penalty"),
    *("parallel_tool_calls", "user", "top_logprobs", "prompt_cache_key", "safety_identifier", "service_tier"),
)


def response_options(options: Options) -> JsonObject:
    """Return options of a chat completion as fields of a response."""
    found = {name: options[name] for name in _OPTIONS if options.get(name) is not None}
    if most := options.get("max_completion_tokens") or options.get("max_tokens"):
        found["max_output_tokens"] = most
    if options.get("reasoning_effort"):
        found["reasoning"] = {"effort": options["reasoning_effort"]}
    if options.get("reasoning_summary"):
        found["reasoning"] = {**found.get("reasoning", {}), "summary": options["reasoning_summary"]}
    if choice := options.get("tool_choice"):
        found["tool_choice"] = _flat(choice)
    if wanted := options.get("response_format"):
        found["text"] = {"format": {"type": wanted["type"], **wanted.get("json_schema", {})}}
    if options.get("verbosity"):
        found["text"] = {**found.get("text", {}), "verbosity": options["verbosity"]}
    if options.get("logprobs"):
        found["include"] = ["message.output_text.logprobs"]
    return found


def response_items(messages: Iterable[Json]) -> Iterator[JsonObject]:
    """Yield messages of chat completions as items of a response's input."""
    unnamed = ""  # the id of the last call that has none: how calls were made before tools
    for number, message in enumerate(messages):
        if message["role"] in ("tool", "function"):
            output = _content(message.get("content") or "", "input_text")
            yield {"type": "function_call_output", "call_id": message.get("tool_call_id", unnamed), "output": output}
            continue
        if thought := message.get(REASONING):
            yield {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": thought}]}
        if content := message.get("content"):
            text = "output_text" if message["role"] == "assistant" else "input_text"
            parts = [{"type": text, "text": content}] if isinstance(content, str) else _content(content, text)
            yield {"type": "message", "role": message["role"], "content": parts}
        elif refusal := message.get("refusal"):
            yield {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": refusal}]}
        for call in message.get("tool_calls") or ():
            yield {"type": "function_call", "call_id": call["id"], **call["function"]}
        if function := message.get("function_call"):
            unnamed = f"call_{number}"
            yield {"type": "function_call", "call_id": unnamed, **function}


def has_results(items: Sequence[Json]) -> bool:
    """Return whether a response's input ends with results of calls, after which pictures of them may come."""
    for item in reversed(items):
        if item["type"] != "message" or item["role"] == "assistant":
            return bool(item["type"] == "function_call_output")
    return False


def _flat(choice: Any) -> Any:
    """Return a choice of tools, or a tool in it, without the object that names its kind a second time."""
    if not isinstance(choice, Mapping):
        return choice
    kind = str(choice.get("type"))
    inner = choice.get(kind)
    flat = {**choice, **inner} if isinstance(inner, Mapping) else dict(choice)
    flat.pop(kind, None)
    if isinstance(flat.get("tools"), list):
        flat["tools"] = [_flat(tool) for tool in flat["tools"]]
    return flat


def _content(content: Any, text: str) -> Any:
    return content if isinstance(content, str) else [_part(part, text) for part in content]


def _part(part: Json, text: str) -> JsonObject:
    kind, inner = part["type"], part.get(part["type"])
    if kind == "text":
        return {"type": text, "text": part["text"]}
    if kind == "file" and isinstance(inner, Mapping):
        return {"type": "input_file", **inner}
    if kind == "image_url" and isinstance(inner, Mapping):
        return {"type": "input_image", "image_url": inner["url"], "detail": inner.get("detail") or "auto"}
    return dict(part)
