"""How servers frame a stream, shape its chunks, write a call's arguments and fail: the same answer in many forms.

The model behind all of them calls the code interpreter and answers with the result, as in dialects.py.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tests.gateway.dialects import ARGUMENTS, CODE, Request, answered, plain, refused, said, told, tool
from tests.recorder import Answer, events

Chunk = dict[str, Any]
Serve = Callable[[Request], Answer]


def replaced(old: bytes, new: bytes) -> Callable[[Answer], Answer]:
    return lambda answer: replace(answer, body=answer.body.replace(old, new))


FRAMINGS: dict[str, Callable[[Answer], Answer]] = {
    "no [DONE]": replaced(b"data: [DONE]\n\n", b""),
    "[DONE] with a blank behind it": replaced(b"[DONE]", b"[DONE] "),
    "[DONE] with a name": replaced(b"data: [DONE]", b"event: done\ndata: [DONE]"),
    "no blank behind data:": replaced(b"data: ", b"data:"),
    "line ends of Windows": replaced(b"\n", b"\r\n"),
    "line ends of carriage returns": replaced(b"\n", b"\r"),
    "comments": replaced(b"data: ", b": PROCESSING\n\ndata: "),
    "names, ids and times": replaced(b"data: ", b"event: message\nid: 7\nretry: 3000\ndata: "),
    "events of several lines": replaced(b", ", b",\ndata: "),
    "fields of no standard": replaced(b"data: ", b"time: 7\nlonely\ndata: "),
    "blank lines first": lambda answer: replace(answer, body=b"\n\n\n" + answer.body),
    "a byte order mark": lambda answer: replace(answer, body=b"\xef\xbb\xbf" + answer.body),
    "no empty line at the end": lambda answer: replace(answer, body=answer.body.rstrip(b"\n")),
    "gzip": lambda answer: replace(answer, body=gzip.compress(answer.body), headers={"Content-Encoding": "gzip"}),
    "a content type of text": lambda answer: replace(answer, kind="text/plain"),
    "a content type of bytes": lambda answer: replace(answer, kind="application/octet-stream"),
}


def framed(change: Callable[[Answer], Answer]) -> Serve:
    return lambda request: change(plain(request))


def chunked(request: Request) -> list[Chunk]:
    """All chunks of a documented answer: its role, pieces, the reason and the usage."""
    deltas: list[Chunk] = [{"role": "assistant", "content": ""}]
    if told(request):
        deltas += [{"content": "It is "}, {"content": f"{told(request)}."}]
    else:
        function = {"name": tool(request), "arguments": ""}
        deltas += [{"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}]
        pieces = (ARGUMENTS[:9], ARGUMENTS[9:])
        deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in pieces]
    choices: list[Chunk] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop" if told(request) else "tool_calls"})
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return [*({**head, "choices": [choice]} for choice in choices), {**head, "choices": [], "usage": usage}]


def each_choice(change: Callable[[Chunk], Any]) -> Callable[[list[Chunk]], list[Chunk]]:
    def shape(chunks: list[Chunk]) -> list[Chunk]:
        for chunk in chunks:
            for choice in chunk["choices"]:
                change(choice)
        return chunks

    return shape


def each_call(change: Callable[[Chunk], Any]) -> Callable[[list[Chunk]], list[Chunk]]:
    return each_choice(lambda choice: [change(call) for call in choice["delta"].get("tool_calls", ())])


def each_delta(**fields: Any) -> Callable[[list[Chunk]], list[Chunk]]:
    return each_choice(lambda choice: choice["delta"].update({**fields, **choice["delta"]}))


def reason(*names: str) -> Callable[[list[Chunk]], list[Chunk]]:
    """Another reason at the end, maybe several times."""

    def shape(chunks: list[Chunk]) -> list[Chunk]:
        *rest, last, usage = chunks
        return [*rest, *({**last, "choices": [{**last["choices"][0], "finish_reason": name}]} for name in names), usage]

    return shape


def with_last_piece(chunks: list[Chunk]) -> list[Chunk]:
    *rest, piece, last, usage = chunks
    piece["choices"][0]["finish_reason"] = last["choices"][0]["finish_reason"]
    return [*rest, piece, usage]


def usage_of_choice(chunks: list[Chunk]) -> list[Chunk]:
    *rest, last, usage = chunks
    last["choices"][0]["usage"] = usage["usage"]
    return [*rest, last]


def usage_as_text(chunks: list[Chunk]) -> list[Chunk]:
    chunks[-1]["usage"] = {name: str(count) for name, count in chunks[-1]["usage"].items()}
    return chunks


def named_throughout(chunks: list[Chunk]) -> list[Chunk]:
    calls = [call for chunk in chunks for choice in chunk["choices"] for call in choice["delta"].get("tool_calls", ())]
    for call in calls:
        call["function"]["name"] = calls[0]["function"]["name"]
    return chunks


def legacy(chunks: list[Chunk]) -> list[Chunk]:
    """Calls as they were before tools."""

    def change(choice: Chunk) -> None:
        for call in choice["delta"].pop("tool_calls", ()):
            choice["delta"]["function_call"] = call["function"]

    return reason("function_call")(each_choice(change)(chunks))


SHAPES: dict[str, Callable[[list[Chunk]], list[Chunk]]] = {
    "all chunks": lambda chunks: chunks,
    "nulls in every delta": each_delta(role=None, content=None, refusal=None, function_call=None, audio=None),
    "nulls for calls": each_choice(lambda choice: choice["delta"].setdefault("tool_calls", None)),
    "empty arrays of calls": each_choice(lambda choice: choice["delta"].setdefault("tool_calls", [])),
    "empty texts": each_delta(content="", reasoning_content=""),
    "a role in every chunk": each_delta(role="assistant"),
    "choices without an index": each_choice(lambda choice: choice.pop("index")),
    "no fields around choices": lambda chunks: [{"choices": chunk["choices"]} for chunk in chunks],
    "a message for a delta": each_choice(lambda choice: choice.update(message=choice.pop("delta"))),
    "no delta at the end": reason("stop"),
    "an empty chunk first": lambda chunks: [{"choices": [], "prompt_filter_results": [{}]}, *chunks],
    "choices of null": lambda chunks: [{"choices": None, "usage": None}, *chunks],
    "an error of null": lambda chunks: [{**chunk, "error": None} for chunk in chunks],
    "chunks that say nothing": lambda chunks: [
        each for chunk in chunks for each in ({"choices": [{"index": 0, "delta": {}}]}, chunk)
    ],
    "usage in every chunk": lambda chunks: [{**chunk, "usage": chunks[-1]["usage"]} for chunk in chunks],
    "usage in the choice": usage_of_choice,
    "usage as text": usage_as_text,
    "the reason with the last piece": with_last_piece,
    "the reason twice": reason("stop", "stop"),
    "a reason of nobody": reason("eos_token"),
    "a reason of another API": reason("tool_use"),
    "a call ends with stop": reason("stop"),
    "fields of others": each_delta(x_groq={"id": "7"}, annotations=[], provider="P", padding="x" * 300_000),
    "a second choice": lambda chunks: [
        each
        for chunk in chunks
        for each in (chunk, {"choices": [{"index": 1, "delta": {"content": "No."}, "finish_reason": "stop"}]})
    ],
    "calls before tools": legacy,
    "calls without an index": each_call(lambda call: call.pop("index")),
    "calls from index 1 on": each_call(lambda call: call.update(index=1)),
    "calls with an index of text": each_call(lambda call: call.update(index="0")),
    "calls with an index of null": each_call(lambda call: call.update(index=None)),
    "calls with a number for an id": each_call(lambda call: call.update(id=7)),
    "calls with an id of null": each_call(lambda call: call.update(id=None)),
    "calls with an empty id": each_call(lambda call: call.update(id="")),
    "calls with a type of null": each_call(lambda call: call.update(type=None)),
    "calls without a type": each_call(lambda call: call.pop("type", None)),
    "the name in every piece": named_throughout,
    "a name of null in later pieces": each_call(lambda call: call["function"].setdefault("name", None)),
    "an empty name in later pieces": each_call(lambda call: call["function"].setdefault("name", "")),
    "first arguments of null": each_call(
        lambda call: call["function"].update(arguments=call["function"]["arguments"] or None)
    ),
}


def shaped(change: Callable[[list[Chunk]], list[Chunk]]) -> Serve:
    return lambda request: events(*change(chunked(request)))


WRITTEN: dict[str, Any] = {
    "the code itself": CODE,
    "a fence": f"```python\n{CODE}\n```",
    "a fence around JSON": f"```json\n{ARGUMENTS}\n```",
    "JSON in JSON": json.dumps(ARGUMENTS),
    "a comma too many": ARGUMENTS.replace("}", ",}"),
    "single quotes": ARGUMENTS.replace('"', "'"),
    "names without quotes": ARGUMENTS.replace('"code"', "code"),
    "a byte order mark": f"\ufeff{ARGUMENTS}",
    "blanks around": f"\n\n  {ARGUMENTS}  \n",
    "line breaks inside": ARGUMENTS.replace(": ", ":\n\t"),
    "an object": {"code": CODE},
}
"""The arguments of a call, as models and servers write them."""


def with_arguments(arguments: Any) -> Serve:
    def serve(request: Request) -> Answer:
        if told(request):
            return answered(request)
        call = {"index": 0, "id": "c1", "type": "function", "function": {"name": tool(request), "arguments": arguments}}
        return said({"tool_calls": [call]}, reason="tool_calls")

    return serve


def two_calls(*pieces: tuple[Any, Any, str | None, str]) -> Serve:
    """Two calls, in pieces of index, id, name and arguments; the name may be left out."""

    def serve(request: Request) -> Answer:
        if told(request):
            return answered(request)
        calls: list[Chunk] = []
        for index, id_, is_named, arguments in pieces:
            name = {"name": tool(request)} if is_named else {}
            calls.append({"index": index, "id": id_, "type": "function", "function": {**name, "arguments": arguments}})
        return said(*({"tool_calls": [call]} for call in calls), reason="tool_calls")

    return serve


TWO: dict[str, Serve] = {
    "one after the other": two_calls((0, "a", "n", ARGUMENTS), (1, "b", "n", ARGUMENTS)),
    "in pieces by turns": two_calls(
        *((0, "a", "n", ARGUMENTS[:9]), (1, "b", "n", ARGUMENTS[:9])),
        *((0, None, None, ARGUMENTS[9:]), (1, None, None, ARGUMENTS[9:])),
    ),
    "the second one first": two_calls((1, "b", "n", ARGUMENTS), (0, "a", "n", ARGUMENTS)),
    "with one id": two_calls((0, "a", "n", ARGUMENTS), (1, "a", "n", ARGUMENTS)),
    "at one index": two_calls((0, "a", "n", ARGUMENTS), (0, "b", "n", ARGUMENTS)),
    "without an index": two_calls((None, "a", "n", ARGUMENTS), (None, "b", "n", ARGUMENTS)),
    "without an index or an id": two_calls((None, None, "n", ARGUMENTS), (None, None, "n", ARGUMENTS)),
    "with indices of text": two_calls(("0", "a", "n", ARGUMENTS), ("1", "b", "n", ARGUMENTS)),
}


def lesson(words: str, is_refused: Callable[[Request], bool], status: int = 400) -> Serve:
    """A server that refuses some requests, in these words."""
    return lambda request: refused(words, status) if is_refused(request) else plain(request)


def ids(request: Request) -> Iterator[str]:
    for message in request["messages"]:
        yield from (call["id"] for call in message.get("tool_calls") or ())


def roles(request: Request) -> str:
    return "".join(message["role"][0] for message in request["messages"])


LESSONS: dict[str, Serve] = {
    "a limit is required": lesson("max_tokens: Field required", lambda request: "max_tokens" not in request),
    "ids of nine letters": lesson(
        "Tool call id was call_1 but must be a-z, A-Z, 0-9, with a length of 9.",
        lambda request: any(len(id_) != 9 or not id_.isalnum() for id_ in ids(request)),
    ),
    "no empty content": lesson(
        "messages: text content blocks must be non-empty",
        lambda request: any(message["content"] == "" for message in request["messages"]),
    ),
}

NO_TOOLS = {
    "vLLM": ('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', 400),
    "vLLM, forced": ('tool_choice="required" requires --tool-call-parser to be set', 400),
    "Ollama": ("registry.ollama.ai/library/gemma3:latest does not support tools", 400),
    "OpenRouter": ("No endpoints found that support tool use. Try disabling it.", 404),
    "llama.cpp": ("tools param requires --jinja flag", 500),
    "Groq": ("`tool calling` is not supported with this model", 400),
    "Mistral": ("Function calling is not enabled for this model", 400),
    "Together": ("The model does not support function calling.", 422),
}
"""What servers say that have no tool calling, and the status."""


def without_tools(words: str, status: int) -> Serve:
    """A server without tool calling, whose model writes calls as the prompt says."""

    def serve(request: Request) -> Answer:
        messages = request["messages"]
        has_calls = any(message.get("tool_calls") or message["role"] == "tool" for message in messages)
        if {"tools", "tool_choice", "parallel_tool_calls"} & set(request) or has_calls:
            return refused(words, status)
        if messages[-1]["content"].startswith("<tool_response>"):
            return said({"content": f"It is {'42' if '42' in messages[-1]['content'] else '?'}."})
        lead = messages[0]["content"]
        if "<tools>" not in lead:
            return said({"content": "I have no tools."})
        name = json.loads(lead.partition("<tools>\n")[2].partition("\n")[0])["name"]
        text = f'<tool_call>\n{{"name": "{name}", "arguments": {ARGUMENTS}}}\n</tool_call>'
        return said(*({"content": text[start : start + 5]} for start in range(0, len(text), 5)))

    return serve


PARTS = (
    {"error": {"message": "It broke.", "type": "server_error"}},
    {"error": {"message": "It broke.", "code": 500}, "choices": []},
    {"error": "It broke."},
    {"object": "error", "message": "It broke.", "type": "InternalServerError", "code": 500},
    {"detail": "It broke."},
    {"message": "It broke."},
    {"type": "error", "error": {"type": "overloaded_error", "message": "It broke."}},
)
"""Errors that come as an event of a stream."""
BODIES = (
    {"error": {"message": "It broke.", "type": "invalid_request_error", "param": None, "code": None}},
    {"error": {"message": {"detail": "It broke."}}},
    {"error": "It broke."},
    {"detail": "It broke."},
    {"detail": [{"msg": "It broke.", "type": "value_error"}]},
    {"object": "error", "message": "It broke.", "type": "BadRequestError", "code": 400},
    {"message": "It broke."},
    {"type": "error", "error": {"type": "invalid_request_error", "message": "It broke."}},
    [{"error": {"code": 400, "message": "It broke.", "status": "INVALID_ARGUMENT"}}],
    "It broke.",
)
"""Bodies of a refused request."""
