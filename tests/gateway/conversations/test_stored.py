"""Conversations that clients make: items in and out, responses that add to them, and their bounds."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_tools.containers.rows import Kind
from agent_tools.containers.shares import Shares
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.conversations.stored import ServerOnlyFields, StoredConversations
from agent_tools.gateway.requests.api_errors import ApiError
from agent_tools.gateway.store.records import ConversationItem, StoredConversation
from agent_tools.gateway.store.store import Store
from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.asking import FUNCTION, INCLUDE, KEYS, code, has_ended, post, refused, retrieve, stream, until
from tests.gateway.conftest import Gateway, NewGateway

SAID = {"type": "message", "role": "user", "content": "Hello."}


def items_of(gateway: Gateway, id_: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{gateway.url}/v1/conversations/{id_}/items?order=asc&limit=100")
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


def told(gateway: Gateway, number: int = -1) -> list[tuple[str, Any]]:
    messages = gateway.upstream.requests[number]["messages"]  # type: ignore[attr-defined]
    return [(message["role"], message.get("content")) for message in messages]


def test_a_conversation_is_made_changed_and_deleted(new_gateway: NewGateway) -> None:
    client = new_gateway({}).client()
    made = client.conversations.create(items=[{"role": "user", "content": "Hello."}], metadata={"a": "b"})
    assert client.conversations.retrieve(made.id) == made
    assert client.conversations.update(made.id, metadata={"c": "d"}).metadata == {"c": "d"}
    assert client.conversations.retrieve(made.id).metadata == {"c": "d"}
    added = client.conversations.items.create(made.id, items=[{"role": "assistant", "content": "Hi."}, SAID])
    first, second, third = client.conversations.items.list(made.id, order="asc")
    assert [each.id for each in added.data] == [second.id, third.id]
    assert [(each.role, each.content[0].type, each.content[0].text) for each in (first, second)] == [
        ("user", "input_text", "Hello."),
        ("assistant", "output_text", "Hi."),
    ]
    assert client.conversations.items.retrieve(second.id, conversation_id=made.id) == second
    assert client.conversations.items.delete(second.id, conversation_id=made.id).id == made.id
    assert [each.id for each in client.conversations.items.list(made.id)] == [third.id, first.id]
    assert client.conversations.delete(made.id).deleted
    for use in (client.conversations.retrieve, client.conversations.delete, client.conversations.items.list):
        assert refused(lambda use=use: use(made.id))[:2] == (404, "conversation_not_found")


def test_items_are_listed_in_pages(new_gateway: NewGateway) -> None:
    client = new_gateway({}).client()
    said = [{"role": "user", "content": str(number)} for number in range(7)]
    made = client.conversations.create(items=said)
    page = client.conversations.items.list(made.id, order="asc", limit=3)
    assert page.has_more
    assert [each.content[0].text for each in page] == [str(number) for number in range(7)]


def test_responses_add_to_it_and_build_on_it(new_gateway: NewGateway) -> None:
    gateway = new_gateway(
        {"m": [code("x = 41; print(x)"), ScriptedReply("First.", reasoning="Hm."), code("x + 1"), "42."]}
    )
    made = httpx.post(f"{gateway.url}/v1/conversations", json={"items": [SAID]}).json()["id"]
    first = post(gateway, conversation=made).json()
    assert first["conversation"] == {"id": made}
    assert told(gateway, 0) == [("user", "Hello."), ("user", "Go.")]
    second = stream(gateway, conversation={"id": made}, input="And?", include=INCLUDE)[-1]["response"]
    assert "42" in second["output"][0]["outputs"][0]["logs"]
    assert second["output"][0]["container_id"] == first["output"][0]["container_id"]
    (call, result, answer) = told(gateway)[2:5]
    assert (call[0], answer) == ("assistant", ("assistant", "First."))
    assert "41" in result[1]  # as the model was told of it, though no outputs were asked for
    kinds = [item["type"] for item in items_of(gateway, made)]
    call, said = "code_interpreter_call", "message"
    assert kinds == [said, said, call, "reasoning", said, said, call, said]
    listed = httpx.get(f"{gateway.url}/v1/responses/{first['id']}/input_items").json()["data"]
    assert [item["id"] for item in listed] == [items_of(gateway, made)[1]["id"]]


def test_a_function_of_the_client_is_answered_in_it(new_gateway: NewGateway) -> None:
    calls = ScriptedReply(calls=[ScriptedCall("weather", "{}", "call_1")])
    gateway = new_gateway({"m": [calls, "Rain."]})
    made = httpx.post(f"{gateway.url}/v1/conversations").json()["id"]
    post(gateway, conversation=made, tools=[FUNCTION])
    output = {"type": "function_call_output", "call_id": "call_1", "output": "wet"}
    assert post(gateway, conversation=made, tools=[FUNCTION], input=[output]).json()["status"] == "completed"
    assert [role for role, _ in told(gateway)] == ["user", "assistant", "tool"]
    assert [item["type"] for item in items_of(gateway, made)] == [
        *("message", "function_call", "function_call_output", "message")
    ]


def test_a_background_response_adds_at_its_end(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Done."]})
    made = httpx.post(f"{gateway.url}/v1/conversations").json()["id"]
    begun = post(gateway, conversation=made, background=True, tools=[]).json()
    assert until(lambda: has_ended(gateway, begun["id"]))["conversation"] == {"id": made}
    assert len(items_of(gateway, made)) == 2


def test_a_response_that_failed_adds_nothing(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply("Half of it", piece=2, cut_after=3)})
    made = httpx.post(f"{gateway.url}/v1/conversations").json()["id"]
    assert stream(gateway, conversation=made)[-1]["response"]["status"] == "failed"
    assert items_of(gateway, made) == []


def test_an_answer_that_could_not_be_added_names_no_conversation(new_gateway: NewGateway) -> None:
    def delete_it(_: Any) -> ScriptedReply:
        httpx.delete(f"{gateway.url}/v1/conversations/{made}")
        return ScriptedReply("Ok.")

    gateway = new_gateway({"m": delete_it})
    made = httpx.post(f"{gateway.url}/v1/conversations").json()["id"]
    body = post(gateway, conversation=made).json()
    assert (body["status"], body["conversation"]) == ("completed", None)
    assert retrieve(gateway, body["id"]).json()["conversation"] is None
    assert gateway.services.store.count(ConversationItem) == 0


def test_two_answers_at_once_keep_both(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    conversations = gateway.services.stored_conversations
    made = conversations.create("me", {}, [])
    first = list(conversations._rows(made, [{"id": "a"}], ServerOnlyFields()))
    conversations.append(made, [{"id": "b"}])
    assert not gateway.services.store.add_if_new(*first)  # its number is taken
    conversations.append(made, [{"id": "a"}, {"id": "b"}])
    ids = [item.id for item in conversations.page(made.id, 100, "", False)[0]]
    assert ids[:2] == ["b", "a"]
    assert len(set(ids)) == 3


def test_another_key_sees_nothing_of_it(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, api_keys=KEYS)
    mine, theirs = (gateway.client(key) for key in KEYS)
    made = mine.conversations.create(items=[SAID])
    uses = [
        lambda: theirs.conversations.retrieve(made.id),
        lambda: theirs.conversations.update(made.id, metadata={}),
        lambda: theirs.conversations.delete(made.id),
        lambda: theirs.conversations.items.list(made.id),
        lambda: theirs.conversations.items.create(made.id, items=[SAID]),
        lambda: theirs.responses.create(model="m", input="Go.", conversation=made.id),
    ]
    assert [refused(use)[0] for use in uses] == [404] * 6
    assert len(list(mine.conversations.items.list(made.id))) == 1


BAD = {
    "items": [{"items": 3}, {"items": [3]}, {"items": [{"role": "nobody", "content": "a"}]}, {"items": [SAID] * 21}],
    "metadata": [{"metadata": {"a": 1}}, {"metadata": {"a": "b" * 513}}, {"metadata": {str(n): "" for n in range(17)}}],
}


@pytest.mark.parametrize("body", [*BAD["items"], *BAD["metadata"]], ids=lambda body: json.dumps(body)[:40])
def test_bad_requests_are_refused_by_name(new_gateway: NewGateway, body: dict[str, Any]) -> None:
    answer = httpx.post(f"{new_gateway({}).url}/v1/conversations", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(next(iter(body)))


@pytest.mark.parametrize(
    ("limit", "most"), [("max_conversation_items", 1), ("max_conversation_bytes", 200), ("max_stored_bytes", 200)]
)
def test_a_full_conversation_takes_no_more(new_gateway: NewGateway, limit: str, most: int) -> None:
    gateway = new_gateway({"m": ["Ok."]}, **{limit: most})
    client = gateway.client()
    made = client.conversations.create(items=[SAID])
    for use in (
        lambda: client.conversations.items.create(made.id, items=[SAID]),
        lambda: client.responses.create(model="m", input="Go.", conversation=made.id, store=False),
    ):
        assert refused(use)[:2] == (400, "storage_limit_exceeded")
    assert len(items_of(gateway, made.id)) == 1


def test_items_that_do_not_all_fit_are_not_added(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]}, max_conversation_items=2)
    client = gateway.client()
    made = client.conversations.create(items=[SAID])
    for use in (
        lambda: client.conversations.items.create(made.id, items=[SAID, SAID]),
        lambda: client.conversations.create(items=[SAID, SAID, SAID]),
        lambda: client.responses.create(model="m", input=[SAID, SAID], conversation=made.id),
    ):
        assert refused(use)[:2] == (400, "storage_limit_exceeded")
    assert len(items_of(gateway, made.id)) == 1


class Counted(Store):
    """A database that counts the items whose JSON was read."""

    read = 0

    def find(self, kind: type[Kind], **where: Any) -> list[Kind]:
        found = super().find(kind, **where)
        self.read += sum(hasattr(each, "item") for each in found)
        return found


def test_a_page_reads_its_own_items_alone(work_dir: Path) -> None:
    config = GatewayConfig("http://u", data_dir=work_dir)
    with closing(Counted(f"sqlite:///{work_dir}/s.db")) as store:
        conversations = StoredConversations(config, store, Shares(config, store))
        made = conversations.create("me", {}, [{"id": f"i{number}"} for number in range(50)])
        conversations.append(made, [{"id": "i7"}])  # whose id is taken
        for is_descending in (False, True):
            found, after = [], ""
            while True:
                store.read = 0
                page, has_more = conversations.page(made.id, 20, after, is_descending)
                assert store.read == len(page) <= 20
                found += [each.id for each in page]
                if not has_more:
                    break
                after = page[-1].id
            ordered = found[::-1] if is_descending else found
            assert ordered[:50] == [f"i{number}" for number in range(50)]
            assert len(set(found)) == len(found) == 51
        with pytest.raises(ApiError, match="Nothing in this list has the id 'i99'"):
            conversations.page(made.id, 20, "i99", False)


def test_a_key_has_so_many_conversations(new_gateway: NewGateway) -> None:
    client = new_gateway({}, max_conversations=1).client()
    client.conversations.create()
    assert refused(client.conversations.create)[:2] == (400, "storage_limit_exceeded")


def test_one_that_is_not_used_is_deleted(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, retention=100.0)
    conversations, store = gateway.services.stored_conversations, gateway.services.store
    old, used = (conversations.create("me", {}, [{"id": "a"}]) for _ in range(2))
    for each in (old, used):
        store.change(StoredConversation, each.id, used_at=old.created_at - 200)
    conversations.append(used, [{"id": "b"}])
    assert gateway.services.sweep() == 0
    assert [each.id for each in store.find(StoredConversation)] == [used.id]
    assert {each.conversation_id for each in store.find(ConversationItem)} == {used.id}
