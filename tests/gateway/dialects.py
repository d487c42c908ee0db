"""Servers with dialects of their own, each as a function from a request to its answer.

All of them have a model that calls the code interpreter and answers with what it is told. What they refuse, and in
which words, is what the servers they stand for say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.call_forms import written_calls
from tests.recorder import Answer, Seen, events

Request = dict[str, Any]
CODE = "print(6 * 7)"
ARGUMENTS = json.dumps({"code": CODE})


def refused(words: str, status: int = 400, **more: Any) -> Answer:
    return Answer(json.dumps({"error": {"message": words, "code": status, **more}}).encode(), status=status)


def served(answer: Callable[[Request], Answer]) -> Callable[[Seen], Answer]:
    """What a recorder wants; models are asked for by their chat completions only."""
    return lambda seen: answer(seen.json) if seen.method == "POST" else Answer()


def said(*deltas: Mapping[str, Any], reason: str | None = "stop") -> Answer:
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    return events(*chunks, {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})


def called(request: Request, **before: Any) -> Answer:
    """A call as it is documented."""
    function = {"name": tool(request), "arguments": ARGUMENTS}
    call = {"index": 0, "id": "call_1", "type": "function", "function": function}
    return said({"role": "assistant", **before}, {"tool_calls": [call]}, reason="tool_calls")


def tool(request: Request) -> str:
    return str(request["tools"][0]["function"]["name"])


def told(request: Request) -> str:
    """What the model was told of its calls since the user spoke; '' if it has not called yet."""
    last = max(n for n, message in enumerate(request["messages"]) if message["role"] == "user")
    results = [message["content"] for message in request["messages"][last:] if message["role"] == "tool"]
    return " and ".join("42" if "42" in result else "?" for result in results)


def answered(request: Request, **before: Any) -> Answer:
    return said(*([before] if before else []), {"content": f"It is {told(request)}."})


def plain(request: Request) -> Answer:
    return answered(request) if told(request) else called(request)


def qwen(request: Request) -> Answer:
    """vLLM with the template of Qwen 3.6."""
    if any(message["role"] in ("system", "developer") for message in request["messages"][1:]):
        return refused("System message must be at the beginning.", type="BadRequestError")
    return plain(request)


def deepseek(request: Request) -> Answer:
    """DeepSeek's own API, with thinking: an empty string does not do."""
    for place, message in enumerate(request["messages"]):
        if message.get("tool_calls") and not message.get("reasoning_content"):
            return refused(f"Missing `reasoning_content` field in the assistant message at message index {place}.")
    if told(request):
        return answered(request, reasoning_content="Good.")
    return called(request, reasoning_content="I compute it.")


def groq(request: Request) -> Answer:
    """A server that has another name for reasoning, and validates messages."""
    for place, message in enumerate(request["messages"]):
        if "reasoning_content" in message:
            return refused(f"'messages.{place}' : property 'reasoning_content' is unsupported")
    return answered(request, reasoning="Good.") if told(request) else called(request, reasoning="I compute it.")


def gpt5(request: Request) -> Answer:
    if "max_tokens" in request:
        words = (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        )
        return refused(words, param="max_tokens", type="invalid_request_error")
    return plain(request)


def strict(request: Request) -> Answer:
    """A server that validates its requests, as Mistral's does."""
    for name in ("stream_options", "service_tier", "prompt_cache_key"):
        if name in request:
            wrong = {"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted"}
            return Answer(json.dumps({"detail": [wrong]}).encode(), status=422)
    return plain(request)


def vllm_format(request: Request) -> Answer:
    """vLLM, which lets no call through a format."""
    if "response_format" in request:
        return said({"content": json.dumps({"answer": 42 if told(request) else 0})})
    return plain(request)


def vllm_logprobs(request: Request) -> Answer:
    if request.get("top_logprobs") and not request.get("logprobs"):
        return refused("when using `top_logprobs`, `logprobs` must be set to true.")
    if not told(request):
        return called(request)
    best = {"token": "42", "logprob": -0.1, "bytes": [52, 50]}
    token = {**best, "top_logprobs": [best, {"token": "43", "logprob": float("-inf"), "bytes": None}]}
    chunk = {"index": 0, "delta": {"content": "42"}, "logprobs": {"content": [token]}, "finish_reason": "stop"}
    return events({"choices": [chunk]})


def gemini(request: Request) -> Answer:
    """Two calls at once, both at index 0 and with an empty id."""
    if told(request):
        return answered(request)
    call = {"index": 0, "id": "", "type": "function", "function": {"name": tool(request), "arguments": ARGUMENTS}}
    return said({"tool_calls": [call]}, {"tool_calls": [call]}, reason="tool_calls")


def new_ids(request: Request) -> Answer:
    """An id of its own for every piece, as older versions of vLLM have it for a named choice."""
    if told(request):
        return answered(request)
    pieces = [ARGUMENTS[start : start + 5] for start in range(0, len(ARGUMENTS), 5)]
    calls = [
        {"index": 0, "id": f"call_{n}", "type": "function", "function": {"name": tool(request), "arguments": piece}}
        for n, piece in enumerate(pieces)
    ]
    return said(*({"tool_calls": [call]} for call in calls))


def magistral(request: Request) -> Answer:
    """Content as an array of parts."""
    if not told(request):
        return called(request, content=[{"type": "thinking", "thinking": [{"type": "text", "text": "I compute it."}]}])
    return said({"content": [{"type": "text", "text": "It is "}]}, {"content": [{"type": "text", "text": "42."}]})


def untold_thinking(request: Request) -> Answer:
    """A server without a parser for reasoning."""
    thought = "<think>\nI compute it.\n</think>\n\n"
    text = f"{thought}It is 42." if told(request) else f"{thought}{hermes_call(request)}"
    return said(*({"content": text[start : start + 3]} for start in range(0, len(text), 3)))


def hermes_call(request: Request) -> str:
    return f'<tool_call>\n{{"name": "{tool(request)}", "arguments": {ARGUMENTS}}}\n</tool_call>'


def hermes(request: Request) -> Answer:
    return answered(request) if told(request) else said({"content": hermes_call(request)})


HARMONY = "<|channel|>analysis<|message|>I compute it.<|end|><|start|>assistant"


def harmony(request: Request) -> Answer:
    """A server of gpt-oss that passes on all of its text."""
    end = "<|channel|>final<|message|>It is 42.<|return|>"
    text = HARMONY + (end if told(request) else written_calls(tool(request), CODE)["harmony"])
    return said(*({"content": text[start : start + 4]} for start in range(0, len(text), 4)))


def gemma(request: Request) -> Answer:
    """A server of Gemma 4 that passes on all of its text."""
    end = "It is 42.<turn|>" if told(request) else written_calls(tool(request), CODE)["Gemma 4"]
    text = f"<|channel>thought\nI compute it.\n<channel|>{end}"
    return said(*({"content": text[start : start + 4]} for start in range(0, len(text), 4)))


def marked(mark: str) -> Callable[[Request], Answer]:
    """A server that passes on the token that ends a reply."""
    return lambda request: said({"content": f"It is 42.{mark}"}) if told(request) else called(request)


def named(name: str, after: str = "") -> Callable[[Request], Answer]:
    """A server that leaves parts of its template in the names of calls, and maybe text before them."""

    def serve(request: Request) -> Answer:
        if told(request):
            return answered(request)
        call = {"index": 0, "id": "c1", "type": "function", "function": {"name": name, "arguments": ARGUMENTS}}
        return said(*([{"content": after}] if after else []), {"tool_calls": [call]}, reason="tool_calls")

    return serve


def thoughtful(opening: str, closing: str, form: str) -> Callable[[Request], Answer]:
    """A server without a parser for the reasoning of its model, or for its calls."""

    def serve(request: Request) -> Answer:
        text = "It is 42." if told(request) else written_calls(tool(request), CODE)[form]
        text = f"{opening}I compute it.{closing}\n\n{text}"
        return said(*({"content": text[start : start + 7]} for start in range(0, len(text), 7)))

    return serve


def in_pieces(*pieces: str) -> Callable[[Request], Answer]:
    """A server whose arguments come in pieces of its own."""

    def serve(request: Request) -> Answer:
        if told(request):
            return answered(request)
        function = {"name": tool(request), "arguments": ""}
        first = {"index": 0, "id": "call_1", "type": "function", "function": function}
        rest = [{"index": 0, "function": {"arguments": piece}} for piece in pieces]
        return said(*({"tool_calls": [call]} for call in (first, *rest)), reason="tool_calls")

    return serve


SIGNATURE = {"google": {"thought_signature": "c2ln/+=="}}
DETAILS = [
    {
        "type": "reasoning.text",
        "index": 0,
        "format": "anthropic-claude-v1",
        "text": "I compute it.",
        "signature": "c2ln",
    },
    {"type": "reasoning.encrypted", "index": 1, "format": "anthropic-claude-v1", "data": "ZW5j", "id": "call_1"},
]
BLOCKS = [
    {"type": "thinking", "thinking": "I compute it.", "signature": "c2ln"},
    {"type": "redacted_thinking", "data": "ZW5j"},
]


def _callers(request: Request) -> list[Request]:
    return [message for message in request["messages"] if message.get("tool_calls")]


def gemini3(request: Request) -> Answer:
    """Gemini 3, which signs its calls, and takes none without its signature."""
    for message in _callers(request):
        if message["tool_calls"][0].get("extra_content") != SIGNATURE:
            return refused("Function call is missing a thought_signature in functionCall parts.", status=400)
    if told(request):
        return answered(request)
    function = {"name": tool(request), "arguments": ARGUMENTS}
    call = {"index": 0, "id": "f1", "type": "function", "function": function, "extra_content": SIGNATURE}
    return said({"role": "assistant", "tool_calls": [call]}, reason="tool_calls")


def gemini3_by_litellm(request: Request) -> Answer:
    """The same, behind LiteLLM."""
    fields = {"provider_specific_fields": {"thought_signature": "c2ln"}}
    for message in _callers(request):
        call = message["tool_calls"][0]
        if {**fields, **call} != call or {**fields, **call["function"]} != call["function"]:
            return refused("Function call is missing a thought_signature in functionCall parts.", status=400)
    if told(request):
        return answered(request)
    first = {"index": 0, "id": "f1", "type": "function", "function": {"name": tool(request), "arguments": "", **fields}}
    rest = {"index": 0, "function": {"arguments": ARGUMENTS}, **fields}
    return said({"tool_calls": [first]}, {"tool_calls": [rest]}, reason="tool_calls")


def openrouter(request: Request) -> Answer:
    """OpenRouter before a model whose reasoning is signed: it comes in pieces."""
    if any(message.get("reasoning_details") != DETAILS for message in _callers(request)):
        return refused("The reasoning_details of the assistant's message are missing or were changed.")
    if told(request):
        return answered(request)
    text, encrypted = DETAILS
    pieces = [{**text, "text": "I com", "signature": None}, {"type": text["type"], "index": 0, "text": "pute it."}]
    pieces += [{"type": text["type"], "index": 0, "signature": "c2ln"}, encrypted]
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": tool(request), "arguments": ARGUMENTS}}
    return said(*({"reasoning_details": [piece]} for piece in pieces), {"tool_calls": [call]}, reason="tool_calls")


def claude_by_litellm(request: Request) -> Answer:
    """Claude with thinking, behind LiteLLM: blocks come in pieces without an index."""
    if any(message.get("thinking_blocks") != BLOCKS for message in _callers(request)):
        return refused("messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`.")
    if told(request):
        return answered(request)
    pieces = [{"type": "thinking", "thinking": piece, "signature": ""} for piece in ("I com", "pute it.")]
    pieces += [{"type": "thinking", "thinking": "", "signature": "c2ln"}, BLOCKS[1]]
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": tool(request), "arguments": ARGUMENTS}}
    return said(*({"thinking_blocks": [piece]} for piece in pieces), {"tool_calls": [call]}, reason="tool_calls")


def claude_at_once(request: Request) -> Answer:
    """The same without a stream."""
    if any(message.get("thinking_blocks") != BLOCKS for message in _callers(request)):
        return refused("messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`.")
    message: Request = {"role": "assistant", "content": "It is 42."}
    if not told(request):
        call = {"id": "c1", "type": "function", "function": {"name": tool(request), "arguments": ARGUMENTS}}
        message = {"role": "assistant", "content": None, "tool_calls": [call], "thinking_blocks": BLOCKS}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return Answer(json.dumps({"object": "chat.completion", "choices": [choice]}).encode())


TOO_LONG = {
    "vLLM": refused("This model's maximum context length is 8192 tokens. However, you requested 9000 tokens."),
    "llama.cpp": refused("request (9 tokens) exceeds the available context size.", type="exceed_context_size_error"),
    "Anthropic": refused("prompt is too long: 200534 tokens > 200000 maximum", type="invalid_request_error"),
    "OpenAI": Answer(
        json.dumps({"error": {"message": "Make it shorter.", "code": "context_length_exceeded"}}).encode(), status=400
    ),
    "a stream": Answer(
        b'data: {"error": {"message": "prompt is too long", "code": 400}}\n\ndata: [DONE]\n\n', "text/event-stream"
    ),
}
"""What servers say of a conversation that does not fit into the model's context."""


def written(form: str, before: str = "I compute it.\n", size: int = 4) -> Callable[[Request], Answer]:
    """A server without a parser for the calls of its model."""

    def serve(request: Request) -> Answer:
        if told(request):
            return answered(request)
        text = before + written_calls(tool(request), CODE)[form]
        return said(*({"content": text[start : start + size]} for start in range(0, len(text), size)))

    return serve


def no_reason(request: Request) -> Answer:
    answer = plain(request).body
    return Answer(answer.replace(b'"finish_reason": "stop"', b'"finish_reason": ""'), "text/event-stream")


def no_stream(request: Request) -> Answer:
    """A server that ignores that a stream was asked for."""
    call = {"id": "call_1", "type": "function", "function": {"name": "", "arguments": ARGUMENTS}}
    if told(request):
        message: Request = {"role": "assistant", "content": "It is 42."}
    else:
        call["function"] = {"name": tool(request), "arguments": ARGUMENTS}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    return Answer(json.dumps({"object": "chat.completion", "choices": [choice], "usage": usage}).encode())


def roles(request: Request) -> list[str]:
    return [message["role"] for message in request["messages"]]


def reasonings(request: Request, field: str) -> Sequence[str | None]:
    """The reasoning of every assistant's message."""
    return [message.get(field) for message in request["messages"] if message["role"] == "assistant"]
