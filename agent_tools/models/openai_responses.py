"""Models on servers that speak OpenAI's Responses API; every request holds the whole conversation."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from agent_tools.errors import ModelError
from agent_tools.models.base import (
    MAX_NAME_CHARS,
    ArgumentsDelta,
    CallComplete,
    CallStarted,
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
    refuse_more_calls,
    too_large,
)
from agent_tools.models.chunks import usage_of
from agent_tools.models.dialect.phrasing import MAX_READ_CHARS, REASONING, REFUSALS
from agent_tools.models.openai import OpenAIModel
from agent_tools.models.reply import CONTEXT_TOO_LONG, Reply, Waiting, failure_name, words_of
from agent_tools.models.wire import REASONING_ITEMS, ServerFields, encrypted_reasoning, is_encrypted, wire_messages
from agent_tools.settings import Endpoint

# Converts the events of a streamed response, or a whole one, into deltas. Pure, and tolerant of servers.
#
# The format is https://platform.openai.com/docs/api-reference/responses-streaming. Servers leave out events: text and
# calls that came in no delta are taken from the events that hold the whole of a part, of an item, or of the response.
#
# The last event repeats the whole response. Some servers list a call there at another place and under another `call_id`
# than in the stream, so a reply that has streamed any call gets no further call from the last event; that event only
# completes calls that the stream began.
#
# Reasoning that the server has encrypted goes with the message or the call after it, since it goes back before that.

_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}
_ENDS = ("completed", "incomplete", "failed")
_STATUSES = {"rate_limit_exceeded": 429, "invalid_prompt": 400, CONTEXT_TOO_LONG: 400}


class ResponseReader:
    """Reads a response's events, as dicts, in order. Of reasoning and its summary it yields the one that comes first.

    Attributes:
        is_over, is_complete: the last event has come.

    Raises:
        ModelError: the server failed, or sent more calls than a reply may have.
    """

    def __init__(self) -> None:
        self.is_over = self.is_complete = False
        self._calls: dict[Any, CallStarted] = {}  # by the places of their items
        self._has_spoken = False  # in this item
        self._has_answered = False  # anything at all, but reasoning and calls
        self._has_reasoned = False
        self._written: dict[int, list[str]] = {}  # arguments that came in deltas, by the indices of calls
        self._complete: set[Any] = set()  # the places of calls
        self._thinks_in = ""  # the event in which the reasoning of this item comes
        self._more = ServerFields()
        self._encrypted: list[Json] = []  # items of reasoning after which nothing has come
        self._known: set[str] = set()  # the content of all of them: the last event repeats it

    def read_whole(self, body: Json) -> Iterator[Delta]:
        """Yield the deltas of a response that did not come as a stream."""
        kind = body.get("status") or "completed"
        if kind not in _ENDS or (kind != "failed" and not isinstance(body.get("output"), list)):
            raise TypeError("no response that has ended")
        yield from self.read({"type": f"response.{kind}", "response": body})

    def finish(self) -> Iterator[Delta]:
        """Yield nothing: a stream's last event settles all."""
        return iter(())

    def read(self, event: Json) -> Iterator[Delta]:
        """Yield the deltas of one event."""
        for delta in self._deltas(event):
            self._has_spoken = self._has_spoken or isinstance(delta, TextDelta)
            self._has_answered = self._has_answered or isinstance(delta, TextDelta | RefusalDelta)
            self._has_reasoned = self._has_reasoned or isinstance(delta, ReasoningDelta)
            yield delta

    def _deltas(self, event: Json) -> Iterator[Delta]:
        match event.get("type"):
            case "response.output_text.delta":
                yield TextDelta(_text(event, "delta"), _tokens(event))
            case "response.refusal.delta":
                yield RefusalDelta(_text(event, "delta"))
            case "response.output_text.done" if not self._has_spoken and event["text"]:
                yield TextDelta(_text(event, "text"), _tokens(event))
            case "response.refusal.done" if not self._has_spoken and event["refusal"]:
                yield RefusalDelta(_text(event, "refusal"))
            case "response.function_call_arguments.delta":
                index, text = self._calls[event["output_index"]].index, _text(event, "delta")
                self._written.setdefault(index, []).append(text)
                yield ArgumentsDelta(index, text)
            case "response.output_item.added":
                yield from self._begin(event["item"], event.get("output_index"))
            case "response.output_item.done":
                yield from self._end_item(event["item"], event.get("output_index"))
            case "response.completed" | "response.incomplete":
                yield from self._end(event["response"])
            case "response.failed" | "error":
                raise _failure(event.get("response", event).get("error") or event)
            case _:
                yield from self._reasoning(event)

    def _reasoning(self, event: Json) -> Iterator[Delta]:
        match event.get("type"):
            case "response.reasoning_summary_part.added" if event.get("summary_index") and self._thinks_in:
                yield ReasoningDelta("\n\n")
            case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta" as kind:
                self._thinks_in = self._thinks_in or kind
                if kind == self._thinks_in:
                    yield ReasoningDelta(_text(event, "delta"))

    def _begin(self, item: Json, place: Any) -> Iterator[Delta]:
        self._has_spoken, self._thinks_in = False, ""
        if item["type"] == "function_call":
            refuse_more_calls(len(self._calls))
            begun = self._calls[_key(item, place)] = CallStarted(len(self._calls), *_named(item))
            self._keep_encrypted(begun.index)
            yield begun
        elif item["type"] == "message":
            self._keep_encrypted(None)

    def _keep_encrypted(self, holder: int | None) -> None:
        """Keep the reasoning before a call, by its index, or before a message (None)."""
        if self._encrypted:
            known = self._more.of(holder).get(REASONING_ITEMS, ())
            self._more.add(holder, {REASONING_ITEMS: (*known, *self._encrypted)})
            self._encrypted = []

    def _end_item(self, item: Json, place: Any) -> Iterator[Delta]:
        match item["type"]:
            case "function_call" if (key := _key(item, place)) not in self._complete:
                if key not in self._calls:
                    yield from self._begin(item, place)
                yield from self._complete_call(item, key)
            case "message":
                self._keep_encrypted(None)
                if not self._has_spoken:
                    yield from _said(item)
            case "reasoning":
                if is_encrypted(item) and item["encrypted_content"] not in self._known:
                    self._known.add(item["encrypted_content"])
                    self._encrypted.append(item)
                thought = "" if self._thinks_in else _joined(item.get("summary")) or _joined(item.get("content"))
                if thought:
                    yield ReasoningDelta(thought)
        self._has_spoken, self._thinks_in = False, ""

    def _complete_call(self, item: Json, key: Any) -> Iterator[Delta]:
        begun, arguments = self._calls[key], _text(item, "arguments")
        if arguments and begun.index not in self._written:
            yield ArgumentsDelta(begun.index, arguments)
        yield self._completed(key, arguments)

    def _completed(self, key: Any, arguments: str) -> CallComplete:
        self._complete.add(key)
        begun = self._calls[key]
        return CallComplete(begun.index, begun.id, begun.name, arguments, self._more.of(begun.index))

    def _end(self, response: Json) -> Iterator[Delta]:
        self.is_over = True
        output = response.get("output") or ()
        has_come = {"message": self._has_answered, "reasoning": self._has_reasoned, "function_call": bool(self._calls)}
        for item in output:
            if not has_come.get(item["type"]):
                yield from self._end_item(item, None)
            elif item["type"] == "function_call" and (key := self._begun_by(item)) is not None:
                yield from self._complete_call(item, key)
        for key in [key for key in self._calls if key not in self._complete]:
            yield self._completed(key, "".join(self._written.get(self._calls[key].index, ())))
        if usage := response.get("usage"):
            yield usage_of(usage)
        reason = str((response.get("incomplete_details") or {}).get("reason"))
        yield Finish(_REASONS.get(reason, "tool_calls" if self._calls else "stop"), self._more.of(None))

    def _begun_by(self, item: Json) -> Any:
        """Return the place of the streamed call that this item completes; None if all of that kind are complete."""
        id_, name = _named(item)
        open_ = [key for key in self._calls if key not in self._complete]
        same = [key for key in open_ if self._calls[key].id == id_]
        alike = [key for key in open_ if self._calls[key].name == name]
        return next(iter(same + alike), None)


def _key(call: Json, place: Any) -> Any:
    return call["call_id"] if place is None else place


def _said(item: Json) -> Iterator[Delta]:
    for part in item.get("content") or ():
        if part.get("text"):
            yield TextDelta(_text(part, "text"), _tokens(part))
        elif part.get("refusal"):
            yield RefusalDelta(_text(part, "refusal"))


def _named(call: Json) -> tuple[str, str]:
    name = _text(call, "name")
    if len(name) > MAX_NAME_CHARS:
        raise too_large(f"a name of more than {MAX_NAME_CHARS:,} characters")
    return _text(call, "call_id"), name


def _text(holder: Json, name: str) -> str:
    """Return a field that is a text.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(text := holder[name], str):
        raise TypeError(f"{name} is no text")
    return text


def _tokens(holder: Json) -> tuple[Json, ...]:
    return tuple(each for each in holder.get("logprobs") or () if isinstance(each, Mapping))


def _joined(parts: Any) -> str:
    return "\n\n".join(_text(part, "text") for part in parts or () if part.get("text"))


def _failure(error: Json) -> ModelError:
    words = str(error.get("message") or "")
    code = failure_name(words, error.get("code"))
    status = _STATUSES.get(code or "")
    return ModelError("The model's server failed.", status, code, status == 429, words)


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


# Parts of a request that a server may refuse: it is asked again without them. Pure.
#
# Servers check `include` against a list of values, and OpenAI refuses to encrypt reasoning of models that have none.
# Reasoning as text is taken by servers of open models only, encrypted reasoning by the server that made it.


ENCRYPTED = "reasoning.encrypted_content"
THOUGHTS = "reasoning_text"
FOREIGN = "foreign"
"""Encrypted reasoning that the server cannot read, in one conversation: it was made with another account or key."""
_OF_INCLUDE = re.compile(
    r"\binclude\b|reasoning\.encrypted_content|encrypted content is not support|not support.{0,40}encrypted"
)
_OF_FOREIGN = re.compile(r"encrypted.{0,200}could not be (?:verified|decrypted|parsed)", re.DOTALL)


def without_parts(request: JsonObject, parts: Collection[str]) -> JsonObject:
    """Return a request without these parts of it."""
    drops_encrypted, drops_thoughts = ENCRYPTED in parts or FOREIGN in parts, THOUGHTS in parts
    items = [
        item
        for item in request["input"]
        if item["type"] != "reasoning" or not (drops_encrypted if is_encrypted(item) else drops_thoughts)
    ]
    include = [each for each in request["include"] if each not in parts]
    rest = {name: value for name, value in request.items() if name != "include"}
    return {**rest, "input": items, **({"include": include} if include else {})}


def refused_part(request: JsonObject, refused: frozenset[str], words: str) -> str | None:
    """Return the part that a refusal may be about, by the server's words; None if nothing is left to leave out."""
    sent, said = without_parts(request, refused), words[:MAX_READ_CHARS].lower()
    left = [part for part in (THOUGHTS, ENCRYPTED, FOREIGN) if without_parts(request, refused | {part}) != sent]
    for part, pattern in ((FOREIGN, _OF_FOREIGN), (ENCRYPTED, _OF_INCLUDE)):
        if part in left and pattern.search(said):
            return part
    return next((part for part in left if part != FOREIGN), None)


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


def response_items(messages: Iterable[JsonObject], model: str = "") -> Iterator[JsonObject]:
    """Yield messages of chat completions as items of a response's input, with the reasoning that the model encrypted.

    Of a message with such reasoning, its text is left out.
    """
    unnamed = ""  # the id of the last call that has none: how calls were made before tools
    for number, message in enumerate(messages):
        if message["role"] in ("tool", "function"):
            output = _content(message.get("content") or "", "input_text")
            yield {"type": "function_call_output", "call_id": message.get("tool_call_id", unnamed), "output": output}
            continue
        encrypted, of_calls = encrypted_reasoning(message, model)
        yield from encrypted
        if (thought := message.get(REASONING)) and not encrypted and not any(of_calls.values()):
            yield {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": thought}]}
        if content := message.get("content"):
            text = "output_text" if message["role"] == "assistant" else "input_text"
            parts = [{"type": text, "text": content}] if isinstance(content, str) else _content(content, text)
            yield {"type": "message", "role": message["role"], "content": parts}
        elif refusal := message.get("refusal"):
            yield {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": refusal}]}
        for call in message.get("tool_calls") or ():
            yield from of_calls.get(str(call["id"]), ())
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
