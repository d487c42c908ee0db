"""The model's reasoning: as content, as the summary that a client asks for, and back to the model."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from agent_tools.testing import ScriptedReply
from tests.gateway.asking import CODE_TOOL, KEYS, code, events_of, post, stream
from tests.gateway.conftest import Gateway, NewGateway

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


def test_a_summary_that_is_sent_back_is_the_models_reasoning_again(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [*THINKING, "Ok."]})
    first = post(gateway, reasoning={"summary": "auto"}).json()
    post(gateway, input=[{"role": "user", "content": "Go."}, *first["output"], {"role": "user", "content": "And?"}])
    messages = gateway.upstream.requests[-1]["messages"]  # type: ignore[attr-defined]
    assert [each["reasoning_content"] for each in messages if "reasoning_content" in each] == ["First.", "Then."]


ENCRYPTED = {"include": ["reasoning.encrypted_content"], "store": False}


def only_encrypted(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items as clients send them back that keep nothing but what is encrypted."""
    return [{**item, "content": None, "summary": []} if item["type"] == "reasoning" else item for item in output]


def asked_again(gateway: Gateway, output: list[dict[str, Any]], key: str = KEYS[0]) -> httpx.Response:
    body = {"model": "m", "input": [*output, {"role": "user", "content": "And?"}], "tools": [CODE_TOOL]}
    return httpx.post(f"{gateway.url}/v1/responses", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=60)


def test_it_goes_through_a_client_encrypted_and_comes_back(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [*THINKING, "Ok.", "Ok."]}, api_keys=KEYS)
    client = gateway.client(KEYS[0])
    first = client.responses.create(model="m", input="Go.", tools=[CODE_TOOL], **ENCRYPTED).to_dict()
    output: Any = first["output"]
    thoughts = [item for item in output if item["type"] == "reasoning"]
    assert [item["content"][0]["text"] for item in thoughts] == ["First.", "Then."]
    assert len({item["encrypted_content"] for item in thoughts}) == 2
    assert not any("First" in base64.b64decode(item["encrypted_content"]).decode("latin-1") for item in thoughts)
    again = new_gateway({"m": ["Ok."]}, api_keys=KEYS)  # of the same folder
    for each in (gateway, again):
        assert asked_again(each, only_encrypted(output)).status_code == 200
        gateway.services.containers.close()  # the other may have the container then
        messages = each.upstream.requests[-1]["messages"]  # type: ignore[attr-defined]
        assert [m["reasoning_content"] for m in messages if "reasoning_content" in m] == ["First.", "Then."]
    assert (gateway.services.config.data_dir / "sealing.key").stat().st_mode & 0o777 == 0o600


def test_what_was_changed_or_is_anothers_is_refused(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": THINKING}, api_keys=KEYS)
    first = gateway.client(KEYS[0]).responses.create(model="m", input="Go.", tools=[CODE_TOOL], **ENCRYPTED).to_dict()
    output: Any = only_encrypted(first["output"])  # type: ignore[arg-type]
    sealed = output[0]["encrypted_content"]
    flipped = base64.b64encode(bytes([*base64.b64decode(sealed)[:-1], base64.b64decode(sealed)[-1] ^ 1])).decode()
    for given in (flipped, sealed[4:], "AQ==", "é", "a" * 1001, sealed.swapcase()):
        answer = asked_again(gateway, [{**output[0], "encrypted_content": given}])
        error = answer.json()["error"]
        assert answer.status_code == 400, given
        assert (error["code"], error["param"]) == ("invalid_encrypted_content", "input[0].encrypted_content")
    assert asked_again(gateway, output, KEYS[1]).json()["error"]["code"] == "invalid_encrypted_content"
    assert asked_again(gateway, [{**output[0], "encrypted_content": 1}]).json()["error"]["code"] == "invalid_type"


def test_it_is_encrypted_only_where_that_is_asked_for(new_gateway: NewGateway) -> None:
    events = stream(new_gateway({"m": THINKING}), reasoning={"summary": "auto"}, **ENCRYPTED)
    done = [e["item"] for e in events if e["type"] == "response.output_item.done" and e["item"]["type"] == "reasoning"]
    assert all(item["encrypted_content"] for item in done)
    body = post(new_gateway({"m": THINKING})).json()
    assert "encrypted_content" not in body["output"][0]


def test_deltas_are_padded_where_that_is_asked_for(new_gateway: NewGateway) -> None:
    said = ScriptedReply("One word and another.", reasoning="Hm.", piece=5)
    gateway = new_gateway({"m": [code("print(6 * 7)", piece=8), said, said]})
    events = events_of(post(gateway, stream=True, stream_options={"include_obfuscation": True}).text)
    deltas = [event for event in events if event["type"].endswith(".delta")]
    assert {(len(event["delta"]) + len(event["obfuscation"])) % 16 for event in deltas} == {0}
    assert len({event["obfuscation"] for event in deltas}) == len(deltas)
    assert not any("obfuscation" in event for event in events if event not in deltas)
    assert not any("obfuscation" in event for event in stream(gateway))
