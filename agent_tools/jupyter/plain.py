"""Answers without content that a page would execute: HTML, scripts, SVG, widgets."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from agent_tools.jupyter.answers import ClientMessage, strict_json

PLAIN = frozenset(("text/plain", "image/png", "image/jpeg", "image/gif"))


def plainly(answer: ClientMessage) -> ClientMessage | None:
    """Return an answer with plain representations only.

    None for a comm message, which drives code in the page, and for an answer with a number that JSON does not have.
    """
    if answer.kind.startswith("comm_"):
        return None
    values = _with_plain_data(answer.values)
    for several in ("payload", "user_expressions"):
        found = values.get(several)
        if isinstance(found, dict):
            values[several] = {name: _with_plain_data(each) for name, each in found.items()}
        elif isinstance(found, list):
            values[several] = [_with_plain_data(each) for each in found]
    if values == answer.values:
        return answer
    with suppress(ValueError):
        return replace(answer, values=values, content=strict_json(values))
    return None


def _with_plain_data(holder: Any) -> Any:
    """Return the same with the MIME bundle at `data` made plain; what was left out is named if nothing remains."""
    if not isinstance(holder, Mapping):
        return holder
    data = holder.get("data")
    if not isinstance(data, Mapping):
        return dict(holder)
    kept = {mime: value for mime, value in data.items() if mime in PLAIN}
    if data and not kept:
        kept = {"text/plain": f"[left out: {', '.join(map(str, data)):.200}]"}
    return {**holder, "data": kept}
