"""Requests of chat completions as those of OpenAI's Responses API. Pure.

The formats are https://platform.openai.com/docs/api-reference/chat/create and .../responses/create. What has no
counterpart is sent as it is: the server knows best how to refuse it. After
some refusals it is asked again without a part: servers check `include` against a list of values, OpenAI refuses to
encrypt reasoning of models that have none, reasoning as text is taken by servers of open models only, and encrypted
reasoning by the server that made it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from agent_tools.models.base import Json, JsonObject, Options
from agent_tools.models.dialect.lesson import MAX_READ_CHARS
from agent_tools.models.dialect.phrasing import REASONING
from agent_tools.models.wire import encrypted_reasoning, is_encrypted

_OPTIONS = (
    *("temperature", "top_p", "presence_penalty", "frequency_penalty"),
    *("parallel_tool_calls", "user", "top_logprobs", "prompt_cache_key", "safety_identifier", "service_tier"),
)
ENCRYPTED = "reasoning.encrypted_content"
THOUGHTS = "reasoning_text"
FOREIGN = "foreign"
"""Encrypted reasoning that the server cannot read, in one conversation: it was made with another account or key."""
_OF_INCLUDE = re.compile(
    r"\binclude\b|reasoning\.encrypted_content|encrypted content is not support|not support.{0,40}encrypted"
)
_OF_FOREIGN = re.compile(r"encrypted.{0,200}could not be (?:verified|decrypted|parsed)", re.DOTALL)


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


def without_parts(request: Json, parts: Collection[str]) -> JsonObject:
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


def refused_part(request: Json, refused: frozenset[str], words: str) -> str | None:
    """Return the part that a refusal may be about, by the server's words; None if nothing is left to leave out."""
    sent, said = without_parts(request, refused), words[:MAX_READ_CHARS].lower()
    left = [part for part in (THOUGHTS, ENCRYPTED, FOREIGN) if without_parts(request, refused | {part}) != sent]
    for part, pattern in ((FOREIGN, _OF_FOREIGN), (ENCRYPTED, _OF_INCLUDE)):
        if part in left and pattern.search(said):
            return part
    return next((part for part in left if part != FOREIGN), None)
