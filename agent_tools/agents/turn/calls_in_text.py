"""Calls in the text of a reply: call_reader.py reads them, call_gate.py decides which text has to wait for that."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from agent_tools.agents.turn.call_reader import ReadCalls, read_calls
from agent_tools.agents.turn.code_stream import CodeReader, CodeStream
from agent_tools.messages import FunctionCall
from agent_tools.models.base import Json

REPAIRED = "Note: the call was written as text with errors, and read as it was meant. Write valid JSON in calls."
_EXAMPLE = re.compile(
    r"\b(?:example|e\.g|looks? like|syntax|format|template|such as|as follows|instance)\b[^\n]{0,80}:\s*\Z", re.I
)


def calls_in(
    text: str, declared: Mapping[str, object], schemas: Mapping[str, Json | None] = MappingProxyType({})
) -> tuple[FunctionCall, ...]:
    """Return the calls of a text that consists only of calls of declared functions, else ().

    `declared` are the functions, with whether they run code; `schemas` are those of their parameters, by which text
    between tags becomes JSON.
    """
    return _read(text, declared, schemas).calls


def _read(text: str, declared: Mapping[str, object], schemas: Mapping[str, Json | None], before: str = "") -> ReadCalls:
    """Read a text as calls, unless the text before announces an example."""
    if not text.strip() or _EXAMPLE.search(before[-200:]):
        return ReadCalls(())
    try:
        return read_calls(text, declared, schemas)
    except (ValueError, RecursionError):
        return ReadCalls(())


@dataclass
class _UnfinishedCall:
    """A call that the model is writing; `code` reads the code in it, if its tool runs code."""

    id: str
    read_code: CodeReader | None
    code: CodeStream
