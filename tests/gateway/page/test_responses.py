"""The list of the newest responses: an owner's own, with tokens and times, whichever client asked."""

from __future__ import annotations

import threading
from typing import Any

import httpx

from agent_tools.gateway.store.records import StoredResponse
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import CODE_TOOL, code, post, until
from tests.gateway.conftest import Gateway, NewGateway


def newest(gateway: Gateway, key: str = "any") -> list[dict[str, Any]]:
    answer = httpx.get(f"{gateway.url}/page/responses", headers={"Authorization": f"Bearer {key}"})
    found: list[dict[str, Any]] = answer.raise_for_status().json()["responses"]
    return found


def test_the_newest_comes_first_with_its_tokens_and_calls(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Hello.", code("6 * 7"), "42."]})
    plain, ran = post(gateway, tools=[]).json(), post(gateway).json()
    first, second = newest(gateway)
    assert [first["id"], second["id"]] == [ran["id"], plain["id"]]
    assert (first["model"], first["status"], first["calls"]) == ("m", "completed", 1)
    assert (first["input_tokens"], first["output_tokens"]) == (20, 10)
    assert (second["calls"], second["input_tokens"], second["output_tokens"]) == (0, 10, 5)
    assert 0 <= first["seconds"] < 60


def test_what_was_not_stored_or_failed_is_told_as_it_is(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Hello."]})
    post(gateway, store=False)
    post(gateway)  # the script is used up
    (only,) = newest(gateway)
    assert (only["status"], only["output_tokens"]) == ("failed", 0)


def test_a_large_response_is_listed_without_being_read(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Hello."]})
    id_ = post(gateway, input="x" * 1_100_000).json()["id"]
    (only,) = newest(gateway)
    assert (only["id"], only["status"], only["is_read"]) == (id_, "completed", False)
    assert "model" not in only


def test_a_list_has_no_more_than_its_limit(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Hello."] * 27})
    ids = [post(gateway, tools=[]).json()["id"] for _ in range(27)]
    assert {each["id"] for each in newest(gateway)} < set(ids)
    assert len(newest(gateway)) == 25


def test_a_response_has_its_question_its_state_and_the_one_before(new_gateway: NewGateway) -> None:
    going_on = threading.Event()
    gateway = new_gateway({"m": ["Hello.", ScriptedReply(text="Slow.", wait_before=going_on)]})
    first = post(gateway, tools=[], input=f"  What is\n{'x' * 200}?").json()["id"]
    message = {"role": "user", "content": [{"type": "input_text", "text": "And then?"}]}
    post(gateway, tools=[], input=[message], previous_response_id=first, background=True)
    until(lambda: newest(gateway)[0]["status"] == "in_progress")
    later, earlier = newest(gateway)
    assert (later["question"], later["previous"]) == ("And then?", first)
    assert (earlier["question"], earlier["previous"]) == (f"What is {'x' * 112}", None)
    going_on.set()
    until(lambda: newest(gateway)[0]["status"] == "completed")


def test_nobody_sees_anothers(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Hello."]}, api_keys=("key-of-mine", "key-of-theirs"))
    body = {"model": "m", "input": "Go."}
    httpx.post(f"{gateway.url}/v1/responses", json=body, headers={"Authorization": "Bearer key-of-mine"})
    assert len(newest(gateway, "key-of-mine")) == 1
    assert newest(gateway, "key-of-theirs") == []
    assert httpx.get(f"{gateway.url}/page/responses").status_code == 401


def test_the_container_of_a_chat_is_known_although_no_code_ran(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply("Read.")}, api_keys=("key-of-mine", "key-of-theirs"))
    own, theirs = ({"Authorization": f"Bearer {key}"} for key in ("key-of-mine", "key-of-theirs"))
    with httpx.Client(base_url=gateway.url, headers=own, timeout=60) as mine:
        chat = mine.post("/v1/conversations", json={"metadata": {"page_title": "a", "page_response": ""}}).json()["id"]

        def ask(container: Any, previous: str | None = None, said_in: str = chat) -> str:
            file = {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,eA=="}
            tool = {"type": "code_interpreter", "container": container}
            body = {"model": "m", "input": [{"role": "user", "content": [file]}], "tools": [tool]}
            body |= {"previous_response_id": previous, "metadata": {"page_chat": said_in}}
            id_: str = mine.post("/v1/responses", json=body).json()["id"]
            notes = {"page_title": "a", "page_response": id_}
            mine.post(f"/v1/conversations/{chat}", json={"metadata": notes})
            return id_

        def made(**asked: Any) -> str | None:
            found: str | None = mine.get(f"/page/chats/{chat}/container", **asked).json()["container"]
            return found

        assert made() is None
        first = ask({"type": "auto"})
        (container,) = [each["id"] for each in mine.get("/v1/containers").json()["data"]]
        assert made() == container
        assert made(headers=theirs) is None
        ask({"type": "auto"}, first)
        assert made() == container
        ask(container, first)
        assert made() is None  # it was named
        ask({"type": "auto"}, ask({"type": "auto"}, said_in="another"))
        assert made() is None  # it is another conversation's


def test_no_more_of_a_long_chat_is_read_for_its_container_than_a_conversation_may_have(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply("Read.")}, max_conversation_bytes=12_000)
    with httpx.Client(base_url=f"{gateway.url}/v1", timeout=60) as client:
        chat = client.post("/conversations", json={"metadata": {"page_response": ""}}).json()["id"]
        previous, found = None, []
        for _ in range(3):
            body = {"metadata": {"page_chat": chat}, "instructions": "x" * 4_000, "previous_response_id": previous}
            body |= {"model": "m", "input": "Go.", "tools": [CODE_TOOL]}
            previous = client.post("/responses", json=body).json()["id"]
            client.post(f"/conversations/{chat}", json={"metadata": {"page_response": previous}})
            assert gateway.services.store.change(StoredResponse, previous, container_id="cntr_1")
            found.append(httpx.get(f"{gateway.url}/page/chats/{chat}/container").json()["container"])
    assert found == ["cntr_1", "cntr_1", None]
