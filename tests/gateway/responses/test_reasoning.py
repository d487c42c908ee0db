"""The model's reasoning: as content, as the summary that a client asks for, and back to the model."""

from __future__ import annotations

import pytest

from agent_tools.testing import ScriptedReply
from tests.gateway.asking import code, post, stream
from tests.gateway.conftest import NewGateway

THINKING = [code("1 + 1", reasoning="First.", piece=2), ScriptedReply("Two.", reasoning="Then.")]
PARTS = [
    *("response.reasoning_summary_part.added", "response.reasoning_summary_text.delta"),
    *("response.reasoning_summary_text.done", "response.reasoning_summary_part.done"),
]


@pytest.mark.parametrize("kind", ["auto", "concise", "detailed"])
def test_it_is_a_summary_for_a_client_that_asks_for_one(new_gateway: NewGateway, kind: str) -> None:
    gateway = new_gateway({"m": THINKING})
    events = stream(gateway, reasoning={"summary": kind})
    body = events[-1]["response"]
    assert body["reasoning"] == {"effort": None, "summary": kind}
    thoughts = [item for item in body["output"] if item["type"] == "reasoning"]
    assert [item["summary"][0]["text"] for item in thoughts] == ["First.", "Then."]
    kinds = [event["type"] for event in events if "reasoning" in event["type"]]
    assert list(dict.fromkeys(kinds)) == PARTS
    said = [event["delta"] for event in events if event["type"] == PARTS[1]]
    assert "".join(said) == "First.Then."
    assert "reasoning_summary" not in gateway.upstream.requests[0]  # type: ignore[attr-defined]


def test_without_a_word_it_is_content(new_gateway: NewGateway) -> None:
    events = stream(new_gateway({"m": THINKING}))
    body = events[-1]["response"]
    assert body["reasoning"] == {"effort": None, "summary": None}
    assert (body["output"][0]["summary"], body["output"][0]["content"][0]["text"]) == ([], "First.")
    assert not [event for event in events if "summary" in event["type"]]


def test_another_kind_is_refused(new_gateway: NewGateway) -> None:
    answer = post(new_gateway({}), reasoning={"summary": "long"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "reasoning.summary")


def test_a_summary_that_is_sent_back_is_the_models_reasoning_again(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [*THINKING, "Ok."]})
    first = post(gateway, reasoning={"summary": "auto"}).json()
    post(gateway, input=[{"role": "user", "content": "Go."}, *first["output"], {"role": "user", "content": "And?"}])
    messages = gateway.upstream.requests[-1]["messages"]  # type: ignore[attr-defined]
    assert [each["reasoning_content"] for each in messages if "reasoning_content" in each] == ["First.", "Then."]
