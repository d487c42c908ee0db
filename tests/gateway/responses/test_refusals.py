"""A model that refuses: its words stay apart from an answer, in whichever API it says them."""

from __future__ import annotations

import openai
import pytest
from pydantic import BaseModel

from agent_tools.testing import ScriptedReply
from tests.gateway.asking import EXECUTE, ask, chunks, code, post, run, stream
from tests.gateway.conftest import Gateway, NewGateway

SORRY = "I cannot help with that."
PART = {"type": "refusal", "refusal": SORRY}


class Answer(BaseModel):
    number: int


@pytest.fixture(params=["chat", "responses"])
def gateway(request: pytest.FixtureRequest, new_gateway: NewGateway) -> Gateway:
    """A gateway whose model runs code and then refuses."""
    inner = new_gateway({"m": [code("6 * 7"), ScriptedReply(refusal=SORRY, piece=7), "Ok."]})
    if request.param == "chat":
        return inner
    folder = inner.services.config.data_dir / "outer"
    return new_gateway({}, upstream=f"{inner.url}/v1", upstream_api="responses", data_dir=folder)


def test_a_refusal_is_a_part_of_its_own(gateway: Gateway) -> None:
    events = stream(gateway)
    call, message = events[-1]["response"]["output"]
    assert (call["type"], message["content"], message["status"]) == ("code_interpreter_call", [PART], "completed")
    said = [event for event in events if event["type"].startswith("response.refusal.")]
    assert "".join(event.get("delta", "") for event in said) == said[-1]["refusal"] == SORRY
    assert not any(event["type"].startswith("response.output_text") for event in events)
    assert post(gateway, previous_response_id=events[-1]["response"]["id"]).json()["status"] == "completed"


def test_a_client_that_parses_answers_sees_the_refusal(gateway: Gateway) -> None:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0) as client:
        tool = {"type": "code_interpreter", "container": {"type": "auto"}}
        parsed = client.responses.parse(model="m", input="Go.", tools=[tool], text_format=Answer)  # type: ignore[list-item]
    assert parsed.output_parsed is None
    assert parsed.output[-1].to_dict()["content"] == [PART]


def test_the_next_request_has_the_words_of_the_refusal(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [ScriptedReply(refusal=SORRY), "Ok."]})
    post(gateway, previous_response_id=post(gateway).json()["id"])
    messages = gateway.upstream.requests[-1]["messages"]  # type: ignore[attr-defined]
    assert {"role": "assistant", "content": SORRY} in messages


def test_a_chat_has_it_in_a_field_of_its_own(new_gateway: NewGateway) -> None:
    refusal = ScriptedReply(refusal=SORRY, piece=9)
    gateway = new_gateway({"m": [run("1"), refusal, run("1"), refusal]})
    message = ask(gateway).json()["choices"][0]["message"]
    assert (message["content"], message["refusal"]) == (None, SORRY)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks(ask(gateway, tools=[EXECUTE], stream=True))]
    assert "".join(delta.get("refusal") or "" for delta in deltas) == SORRY
    assert not any(delta.get("content") for delta in deltas)
