"""The text of a conversation in a normal form that does not depend on how a client sends it back. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent_tools.bodies.json_body import BodyRefused, parsed_text

CHUNK_CHARS = 65_536  # characters that are squeezed at once
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_SYSTEM = ("system", "developer")


@dataclass(frozen=True)
class Line:
    """A message of `system`, `user` or `assistant`; or a `call` of a client's function, or its `result`."""

    kind: str
    text: str

    @property
    def is_models(self) -> bool:
        """The model said it."""
        return self.kind in ("assistant", "call")


@dataclass(frozen=True)
class Digests:
    """The digests of a conversation: up to each answer of the model, the newest first, and of all of it.

    `opening` is the text before the first answer.
    """

    answers: tuple[str, ...]
    opening: str
    whole: str


def lines_of(entries: Iterable[Mapping[str, Any]]) -> list[Line]:
    """Return the lines of items or messages; each run of the model's is its texts in one line, then its calls."""
    lines: list[Line] = []
    run: list[Line] = []
    for line in (each for entry in entries for each in _read(entry)):
        if line.is_models:
            run.append(line)
            continue
        lines += [*_joined(run), line]
        run = []
    return lines + _joined(run)


def digests(lines: Iterable[Line], seed: str) -> Digests:
    """Return the digests of a conversation; `seed` distinguishes conversations with the same text."""
    state = hashlib.sha256(seed.encode())
    answers: list[str] = []
    opening, was_models = "", False
    for line in lines:
        if line.is_models and not was_models:
            opening = opening or state.hexdigest()
        if was_models and not line.is_models:
            answers.append(state.hexdigest())
        was_models = line.is_models
        text = line.text.encode(errors="surrogatepass")
        state.update(b"%s %d\n%s\n" % (line.kind.encode(), len(text), text))
    whole = state.hexdigest()
    return Digests(tuple(reversed([*answers, *([whole] if was_models else [])])), opening or whole, whole)


def call_text(name: Any, arguments: Any) -> str:
    """Return a call in a form that does not depend on how its arguments are written as JSON."""
    if isinstance(arguments, str):
        try:
            arguments = parsed_text(arguments)
        except BodyRefused:
            return f"{name} {_squeezed(arguments)}"
    return f"{name} {_canonical(arguments)}"


def _read(entry: Mapping[str, Any]) -> Iterator[Line]:
    match entry.get("type") or "message", entry.get("role"):
        case "message", "tool" | "function":
            yield Line("result", _text(entry.get("content")))
        case "message", "assistant":
            if text := _text(entry.get("content")):
                yield Line("assistant", text)
            yield from (Line("call", text) for _, text in tool_calls_in(entry))
        case "message", role:
            kind = "system" if role in _SYSTEM else "user"
            yield Line(kind, _text(entry.get("content")))
        case "function_call" | "custom_tool_call", _:
            yield Line("call", call_text(entry.get("name"), entry.get("arguments", entry.get("input"))))
        case "function_call_output" | "custom_tool_call_output", _:
            yield Line("result", _text(entry.get("output")))


def tool_calls_in(message: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    """Yield the id and the text of each call in a message of chat completions."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield call.get("id"), call_text(function.get("name"), function.get("arguments"))


def _joined(run: list[Line]) -> list[Line]:
    text = "".join(line.text for line in run if line.kind == "assistant")
    return [*([Line("assistant", text)] if text else []), *(line for line in run if line.kind == "call")]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return _squeezed(content)
    if isinstance(content, list):
        return "".join(map(_part, content))
    return "" if content is None else _canonical(content)


def _part(part: Any) -> str:
    name = _TEXTS.get(str(part.get("type"))) if isinstance(part, dict) else None
    text = part.get(name) if name else part
    return _squeezed(text) if isinstance(text, str) else _canonical(part)


def _squeezed(text: str) -> str:
    """Remove white space, piece by piece: a list of words would take many times the memory of the text."""
    pieces = range(0, len(text), CHUNK_CHARS)
    return "".join("".join(text[start : start + CHUNK_CHARS].split()) for start in pieces)


def _canonical(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    except RecursionError:
        return "(too deep)"
