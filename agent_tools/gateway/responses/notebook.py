"""A stored response as a Jupyter notebook: messages as Markdown, code with its outputs. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from typing import Any

from agent_tools.models.base import JsonObject
from agent_tools.results.execution import Display, Execution, MimeBundle, Output, Stream
from agent_tools.results.notebook import Cell, notebook_of

_PICTURE = re.compile(r"data:(image/(?:png|jpeg));base64,([A-Za-z0-9+/=]+)")


def notebook_of_items(items: Iterable[JsonObject]) -> JsonObject:
    """Return the items of a response, those of its input first, as a notebook (nbformat 4.5)."""
    cells: list[Cell] = []
    for item in items:
        if item.get("type") == "code_interpreter_call" and item.get("code"):
            cells.append((item["code"], Execution(tuple(_outputs(item.get("outputs") or ())))))
        elif (item.get("type") or "message") == "message" and (text := _text(item)):
            cells.append((f"**{str(item.get('role')).capitalize()}:** {text}", None))
    return notebook_of(cells)


def _text(item: JsonObject) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n\n".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def _outputs(outputs: Iterable[Any]) -> Iterator[Output]:
    for output in outputs:
        match output:
            case {"type": "logs", "logs": str(logs)}:
                yield Stream("stdout", logs)
            case {"type": "image", "url": str(url)}:
                yield Display(_picture(url))


def _picture(url: str) -> MimeBundle:
    if match := _PICTURE.fullmatch(url):
        try:
            return {match[1]: base64.b64decode(match[2])}
        except binascii.Error:
            return {"text/plain": "[a picture that cannot be read]"}
    return {"text/plain": url}
