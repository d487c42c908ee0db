"""Decisions of a person on calls, and the calls of a conversation that they belong to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_tools.gateway.requests.container_fields import Needed
from agent_tools.gateway.requests.fields import RequestModel, read
from agent_tools.models.base import JsonObject

REQUEST, RESPONSE = "mcp_approval_request", "mcp_approval_response"
MAX_REASON = 2_000  # characters that the model gets


@dataclass(frozen=True)
class Decision:
    """An answer to a request. `name` is the tool's own, of the server `label`; `is_new` if it came with this input."""

    request_id: str
    is_approved: bool
    reason: str
    label: str = ""
    name: str = ""
    arguments: str = ""
    is_new: bool = True

    @property
    def refusal(self) -> str:
        """The model's answer to a call that the user did not approve."""
        return f"The user did not approve this call. {self.reason[:MAX_REASON]}".strip()


class _Answer(RequestModel):
    approve: bool
    approval_request_id: Needed
    reason: str = ""


def read_decisions(items: Sequence[Mapping[str, Any]], path: str = "input") -> list[tuple[Decision, str]]:
    """Return the decisions among items, each with its item's path.

    Raises:
        ApiError: 400, one of them is malformed.
    """
    found = []
    for index, item in enumerate(items):
        if item.get("type") == RESPONSE:
            given = read(_Answer, item, f"{path}[{index}]")
            found.append((Decision(given.approval_request_id, given.approve, given.reason), f"{path}[{index}]"))
    return found


def executed(items: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the ids of requests whose calls are among the items, since they were made."""
    return frozenset(str(item.get("approval_request_id")) for item in items if item.get("type") == "mcp_call")


def asked(items: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the ids of the requests for approval among the items."""
    return frozenset(str(item.get("id")) for item in items if item.get("type") == REQUEST)


@dataclass(frozen=True)
class OpenCall:
    """A call in messages that has no answer yet; one belongs at `index` among them."""

    index: int
    id: str
    name: str
    arguments: str


def open_calls(messages: Sequence[JsonObject]) -> Iterator[OpenCall]:
    """Yield the calls without an answer, the last ones first, so that answers can be put in as they come."""
    for place in range(len(messages) - 1, -1, -1):
        calls = messages[place].get("tool_calls")
        if not calls:
            continue  # without a look at the answers after it, which may be many
        end = place + 1
        while end < len(messages) and messages[end].get("role") == "tool":
            end += 1
        answered = {message.get("tool_call_id") for message in messages[place + 1 : end]}
        for call in reversed(list(calls)):
            if call["id"] not in answered:
                yield OpenCall(end, call["id"], call["function"]["name"], call["function"]["arguments"])


def answer(call: OpenCall, text: str) -> JsonObject:
    """Return the message that answers a call."""
    return {"role": "tool", "tool_call_id": call.id, "content": text}
