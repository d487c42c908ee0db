"""Summarises a conversation that has more tokens than its client allows, before the model is asked."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.concurrency import run_in_threadpool

from agent_tools.agents.cancel import Cancel
from agent_tools.agents.steps import Finished, RoundDone, Step, TextDelta
from agent_tools.agents.turn.loop import ToolLoop
from agent_tools.containers.records import new_id
from agent_tools.gateway.requests.failures import invalid, missing
from agent_tools.gateway.upstream import Upstream
from agent_tools.limits import MIB
from agent_tools.models.base import JsonObject, Model, Usage


@dataclass
class Compactor:
    """Asks a model for the summary of a conversation. `usage` counts its tokens."""

    model: Model
    deadline: float
    usage: Usage = field(default_factory=Usage)

    def summarised(self, messages: Sequence[JsonObject], cancel: Cancel, note: Callable[[Step], object]) -> str:
        """Return the summary; '' if the model wrote none, or was interrupted. `note` gets the steps that cost tokens.

        Raises:
            ModelError: the model could not be asked.
        """
        turn, found = ToolLoop(self.model, deadline=self.deadline), []
        for step in turn.run([*messages, {"role": "user", "content": ASKED}], cancel):
            if isinstance(step, TextDelta):
                found.append(step.text)
            elif isinstance(step, RoundDone):
                self.usage += step.usage or Usage()
                note(step)
            elif isinstance(step, Finished) and step.reason != "stop":
                return ""
        return "".join(found).strip()


@dataclass(frozen=True)
class Long:
    """A conversation that is too long: the part to summarise, and the part that stays."""

    before: list[JsonObject]
    newest: list[JsonObject]

    @property
    def newest_text(self) -> str:
        """The text of the part that stays."""
        return text_of_messages(self.newest)


def too_long(messages: Sequence[JsonObject], threshold: int | None) -> Long | None:
    """Return the parts of a conversation with more tokens than a threshold, as far as they can be estimated."""
    if threshold is None or estimate(messages, ()) <= threshold:
        return None
    before, newest = split(messages)
    return Long(before, newest) if before else None


# The tokens of a request's input: counted by the upstream, else estimated.


BYTES_PER_TOKEN = 4  # of UTF-8: what OpenAI tells of English, and near it for most other scripts
PER_MESSAGE = 4  # tokens around each message
MAX_ANSWER = 16 * MIB  # bytes of the upstream's answer, which may list every token
MAX_COUNT = 2**53


async def count_tokens(
    upstream: Upstream,
    headers: Mapping[str, str],
    model: str,
    messages: Sequence[JsonObject],
    tools: Sequence[JsonObject],
) -> tuple[int, str]:
    """Return the tokens of messages and definitions, and who counted: `upstream`, or `estimate`."""
    sent = {"model": model, "messages": messages, "tools": tools or None, "add_generation_prompt": True}
    answer = await upstream.ask("tokenize", headers, sent, MAX_ANSWER)
    count = await run_in_threadpool(read_count, answer) if answer else None
    if count is not None:
        return count, "upstream"
    return await run_in_threadpool(estimate, messages, tools), "estimate"


def read_count(answer: bytes) -> int | None:
    """Return the `count` of an answer of vLLM's /tokenize; None if it holds none."""
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    count = value.get("count") if isinstance(value, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < MAX_COUNT else None


def estimate(messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> int:
    """Estimate the tokens of messages and definitions by their text; pictures and sound are left out."""
    size = sum(len(text.encode("utf-8", "replace")) for text in _texts([*messages, *tools]))
    return size // BYTES_PER_TOKEN + PER_MESSAGE * len(messages)


def _texts(values: Sequence[Any]) -> Iterator[str]:
    """Yield all texts in values of JSON, but for data and where it lies."""
    pending = list(values)
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            pending += (each for name, each in value.items() if name not in ("image_url", "input_audio", "file"))
        elif isinstance(value, list):
            pending += value


# A summary as an item: the request for it, and its message for the model later. Pure.
#
# The item's `encrypted_content` is base64 of JSON, and hides nothing: the client has read all of it before. It
# replaces every item before it, as OpenAI's does.


KIND, TRIGGER = "compaction", "compaction_trigger"
MAX_SUMMARY = 1_000_000  # characters
ASKED = (
    "Summarise this conversation so that you can go on from the summary alone: it replaces all that was said. Keep "
    "what the user wants and has decided, facts, names, numbers, identifiers, files and their contents, what was done "
    "and what came of it, and what is still to be done. Leave out the rest. Answer with the summary only."
)
_SUMMARY = "(Summary of the conversation so far:)\n\n{}"
_NEWEST = "{}\n\nThe user's newest message:\n\n{}"


def compaction_item(summary: str, newest: str = "") -> JsonObject:
    """Return the item of a summary; `newest` is the message that it is followed by, which the item stands for, too."""
    whole = _NEWEST.format(summary, newest) if newest else summary
    content = base64.b64encode(json.dumps({"summary": whole}).encode()).decode()
    return {"id": new_id("cmp"), "type": KIND, "encrypted_content": content}


def read_summary(item: Mapping[str, Any], param: str) -> str:
    """Return the summary in an item.

    Raises:
        ApiError: 400, the item was not made here.
    """
    content = item.get("encrypted_content")
    if not isinstance(content, str):
        raise missing(f"{param}.encrypted_content")
    try:
        summary = json.loads(base64.b64decode(content, validate=True))["summary"]
    except (binascii.Error, ValueError, RecursionError, KeyError, TypeError, IndexError):
        summary = None
    if not isinstance(summary, str) or len(summary) > MAX_SUMMARY:
        raise invalid("The compaction was not made here.", f"{param}.encrypted_content", "invalid_value")
    return summary


def summary_message(summary: str) -> JsonObject:
    """Return the message that replaces the conversation."""
    return {"role": "user", "content": _SUMMARY.format(summary)}


def first_kept(items: Sequence[Mapping[str, Any]]) -> int:
    """Return the index of the newest compaction, 0 if there is none: all before it is left out."""
    return max((index for index, item in enumerate(items) if item.get("type") == KIND), default=0)


def split(messages: Sequence[JsonObject]) -> tuple[list[JsonObject], list[JsonObject]]:
    """Return the messages that are summarised, and the user's newest ones, which are kept.

    Nothing is summarised while calls are being answered: the answers belong to what was said before.
    """
    end = len(messages)
    while end and messages[end - 1].get("role") == "user":
        end -= 1
    return (list(messages[:end]), list(messages[end:])) if end < len(messages) else ([], list(messages))


def text_of_messages(messages: Sequence[JsonObject]) -> str:
    """Return the text of messages; pictures and files are named."""
    found: list[str] = []
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
        found += [part["text"] if part.get("type") == "text" else f"[{part.get('type')}]" for part in parts]
    return "\n".join(found)
