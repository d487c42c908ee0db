"""A conversation keeps its container, whatever of it a client sends back: requests as the frameworks send them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.asking import (
    CODE_TOOL,
    EXECUTE,
    FUNCTION,
    KEYS,
    WEATHER,
    ask,
    chunks,
    code,
    outputs,
    post,
    run,
    stream,
)
from tests.gateway.conftest import Gateway, NewGateway

Item = dict[str, Any]
ASKED: Item = {"role": "user", "content": "Go."}
LOST = "is gone: its variables and files are lost"


def without(item: Item, *names: str) -> Item:
    return {key: value for key, value in item.items() if key not in names}


def call_only(output: list[Item]) -> list[Item]:
    """Calls without the ids of their items, as LlamaIndex and Strands send them."""
    return [without(item, "id", "status") for item in output if item["type"] == "function_call"]


def with_reasoning_ids(output: list[Item]) -> list[Item]:
    """Reasoning with its id, as Pydantic AI sends it beside calls without theirs."""
    kept = []
    for item in output:
        if item["type"] == "reasoning":
            kept.append({**without(item, "content", "status"), "summary": []})
        elif item["type"] == "function_call":
            kept.append(without(item, "id", "status"))
    return kept


def with_call_ids(output: list[Item]) -> list[Item]:
    """Calls with the ids of their items, as Agno sends them."""
    return [without(item, "status") for item in output if item["type"] == "function_call"]


def all_items(output: list[Item]) -> list[Item]:
    """All items, as OpenAI's Agents SDK and Microsoft's Agent Framework send them."""
    return output


def spaced_arguments(output: list[Item]) -> list[Item]:
    """Calls whose arguments were parsed, and are written anew."""
    return [{**item, "arguments": json.dumps(json.loads(item["arguments"]), indent=1)} for item in call_only(output)]


SHAPES = [call_only, with_reasoning_ids, with_call_ids, all_items, spaced_arguments]


def code_and_function() -> list[Any]:
    return [
        code("x = 41", reasoning="Hm."),
        ScriptedReply(calls=[ScriptedCall("weather", {"city": "Ulm"}, "call_0")], reasoning="And the weather."),
        code("print(x + 1)"),
        "Forty-two.",
    ]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("store", [True, False])
def test_over_a_function_of_the_client(
    new_gateway: NewGateway, shape: Callable[[list[Item]], list[Item]], store: bool
) -> None:
    gateway = new_gateway({"m": code_and_function()}, match_text=False)
    tools = [CODE_TOOL, FUNCTION]
    first = post(gateway, input=[ASKED], tools=tools, store=store).json()
    answer = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "Rain."}
    second = post(gateway, input=[ASKED, *shape(first["output"]), answer], tools=tools, store=store).json()
    assert "42" in last_result(gateway)
    assert outputs(second)[0]["container_id"] == outputs(first)[0]["container_id"]


def last_result(gateway: Gateway) -> str:
    """What the model was told of the last call."""
    (*_, last) = [m for m in gateway.upstream.requests[-1]["messages"] if m["role"] == "tool"]
    return str(last["content"])


def two_turns(*more: Any) -> list[Any]:
    return [code("x = 41"), "Done.", code("print(x + 1)"), "Forty-two.", *more]


NEXT: Item = {"role": "user", "content": "And now?"}
ANSWERS = {
    "text": {"role": "assistant", "content": "Done."},
    "parts": {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": " Done. "}]},
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("store", [True, False])
def test_over_a_turn_of_which_only_the_text_comes_back(new_gateway: NewGateway, answer: Item, store: bool) -> None:
    gateway = new_gateway({"m": two_turns()})
    first = stream(gateway, input=[ASKED], store=store)[-1]["response"]
    second = stream(gateway, input=[ASKED, answer, NEXT], store=store)[-1]["response"]
    assert "42" in last_result(gateway)
    assert outputs(second)[0]["container_id"] == outputs(first)[0]["container_id"]


def test_over_a_turn_without_tools(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("x = 41"), "Done.", "A title.", code("print(x + 1)"), "Forty-two."]})
    first = post(gateway).json()
    title = post(gateway, tools=[], previous_response_id=first["id"]).json()
    post(gateway, previous_response_id=title["id"])
    assert "42" in last_result(gateway)


def test_by_a_header(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": reply_to})
    for said in ([ASKED], [ASKED, {"role": "assistant", "content": "(summary)"}, NEXT]):
        body = {"model": "m", "tools": [CODE_TOOL], "input": said}
        headers = {"X-OpenWebUI-Chat-Id": "chat-1"}
        assert httpx.post(f"{gateway.url}/v1/responses", json=body, headers=headers, timeout=60).status_code == 200
    assert "42" in last_result(gateway)


def test_by_a_cache_key_also_after_a_message_was_edited(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": reply_to})
    for said in ([ASKED], [ASKED, ANSWERS["text"], NEXT], [ASKED, ANSWERS["text"], {"role": "user", "content": "Or?"}]):
        assert post(gateway, input=said, prompt_cache_key="chat-1").status_code == 200
    assert "42" in last_result(gateway)


def reply_to(request: Item) -> ScriptedReply:
    """Sets a variable in a conversation's first turn, prints it in its second."""
    if request["messages"][-1]["role"] == "tool":
        return ScriptedReply(text="Done.")
    is_first = len([message for message in request["messages"] if message["role"] == "user"]) == 1
    text = "x = 41" if is_first else "print(x + 1)"
    name = request["tools"][0]["function"]["name"]
    return ScriptedReply(calls=[ScriptedCall(name, {"code": text})])


def test_a_container_that_the_request_names_is_used_whatever_else_is_known(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": two_turns()})
    post(gateway, input=[ASKED])
    named = httpx.post(f"{gateway.url}/v1/containers", json={"name": "a"}).json()["id"]
    tools = [{"type": "code_interpreter", "container": named}]
    body = post(gateway, input=[ASKED, ANSWERS["text"], NEXT], tools=tools).json()
    assert outputs(body)[0]["container_id"] == named


def test_two_conversations_that_go_on_from_one_answer_are_kept_apart_and_the_model_is_told(
    new_gateway: NewGateway,
) -> None:
    gateway = new_gateway({"m": [*two_turns(), code("print(x)"), "It is not there."]})
    first = post(gateway, input=[ASKED]).json()
    second = post(gateway, input=[ASKED, ANSWERS["text"], NEXT]).json()
    other = post(gateway, input=[ASKED, ANSWERS["text"], {"role": "user", "content": "What is x?"}]).json()
    ids = [outputs(each)[0]["container_id"] for each in (first, second, other)]
    assert ids[0] == ids[1] != ids[2]
    assert "NameError" in last_result(gateway)
    assert LOST in str(gateway.upstream.requests[-1]["messages"])


def test_no_key_gets_anothers_container(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": two_turns()}, api_keys=KEYS)
    containers = []
    for key, said in ((KEYS[0], [ASKED]), (KEYS[1], [ASKED, ANSWERS["text"], NEXT])):
        headers = {"Authorization": f"Bearer {key}", "X-OpenWebUI-Chat-Id": "chat-1"}
        body = {"model": "m", "tools": [CODE_TOOL], "input": said}
        answer = httpx.post(f"{gateway.url}/v1/responses", json=body, headers=headers, timeout=60).json()
        containers.append(outputs(answer)[0]["container_id"])
    assert containers[0] != containers[1]
    assert "NameError" in last_result(gateway)


# -- chat completions -------------------------------------------------------------------------------------------------

BUILT_IN = {"type": "code_interpreter"}
TOOLS = {"declared": [EXECUTE], "built in": [BUILT_IN], "auto": [{**BUILT_IN, "container": {"type": "auto"}}]}


@pytest.mark.parametrize("tools", TOOLS.values(), ids=TOOLS)
@pytest.mark.parametrize("is_streamed", [True, False])
def test_completions_of_a_conversation_share_a_container(
    new_gateway: NewGateway, tools: list[Item], is_streamed: bool
) -> None:
    gateway = new_gateway({"m": reply_to})
    first = ask(gateway, messages=[ASKED], tools=tools, stream=is_streamed)
    said = (
        "".join(c["delta"].get("content", "") for chunk in chunks(first) for c in chunk["choices"])
        if is_streamed
        else first.json()["choices"][0]["message"]["content"]
    )
    second = ask(
        gateway, messages=[ASKED, {"role": "assistant", "content": said}, NEXT], tools=tools, stream=is_streamed
    )
    assert second.status_code == 200
    assert "42" in last_result(gateway)
    (container,) = httpx.get(f"{gateway.url}/v1/containers").json()["data"]
    assert container["name"] == "chat"


def test_completions_share_one_over_a_function_of_the_client(new_gateway: NewGateway) -> None:
    weather = ScriptedReply(calls=[ScriptedCall("weather", {"city": "Ulm"}, "call_0")])
    gateway = new_gateway({"m": [run("x = 41"), weather, run("print(x + 1)"), "Forty-two."]})
    message = ask(gateway, messages=[ASKED], tools=[EXECUTE, WEATHER]).json()["choices"][0]["message"]
    answer = {"role": "tool", "tool_call_id": "call_0", "content": "Rain."}
    ask(gateway, messages=[ASKED, message, answer], tools=[EXECUTE, WEATHER])
    assert "42" in last_result(gateway)


def test_completions_find_one_that_the_client_names(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("print(open('a.txt').read())"), "Ok."]})
    url = f"{gateway.url}/v1/containers"
    named = httpx.post(url, json={"name": "mine"}).json()["id"]
    httpx.post(f"{url}/{named}/files", files={"file": ("a.txt", b"from a file")})
    choice = {"type": "code_interpreter"}
    assert ask(gateway, tools=[{**BUILT_IN, "container": named}], tool_choice=choice).status_code == 200
    assert "from a file" in last_result(gateway)
    assert gateway.upstream.requests[0]["tool_choice"] == {"type": "function", "function": {"name": "python"}}
    assert len(httpx.get(url).json()["data"]) == 1


@pytest.mark.parametrize(
    ("tool", "status"),
    [
        ({"container": "cntr_none"}, 404),
        ({"container": 7}, 400),
        ({"container": {"type": "auto", "memory_limit": "lots"}}, 400),
        ({"container": {"type": "auto", "file_ids": ["file_1"]}}, 400),
    ],
)
@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_built_in_tool_that_cannot_be_had_is_refused(
    new_gateway: NewGateway, tool: Item, status: int, is_streamed: bool
) -> None:
    gateway = new_gateway({"m": "Ok."})
    answer = ask(gateway, tools=[{**BUILT_IN, **tool}], stream=is_streamed)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]


def test_a_function_of_the_built_in_tools_name_is_refused(new_gateway: NewGateway) -> None:
    mine = {"type": "function", "function": {"name": "python", "parameters": {"type": "object", "properties": {}}}}
    assert ask(new_gateway({}), tools=[BUILT_IN, mine]).status_code == 400


def test_a_container_that_is_gone_is_told_with_the_first_result(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": reply_to})
    ask(gateway, messages=[ASKED])
    (container,) = httpx.get(f"{gateway.url}/v1/containers").json()["data"]
    httpx.delete(f"{gateway.url}/v1/containers/{container['id']}")
    ask(gateway, messages=[ASKED, ANSWERS["text"], NEXT])
    assert LOST in last_result(gateway)
    assert "NameError" in last_result(gateway)


def test_a_completion_that_nobody_could_go_on_from_leaves_no_container(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": reply_to}, match_text=False)
    assert ask(gateway, messages=[ASKED]).status_code == 200
    assert httpx.get(f"{gateway.url}/v1/containers").json()["data"] == []


def test_completions_of_many_conversations_take_the_places_of_old_ones(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda request: reply_to(request)}, max_containers=2)
    for number in range(4):
        assert ask(gateway, messages=[{"role": "user", "content": f"Number {number}."}]).status_code == 200
    assert "NameError" not in str(gateway.upstream.requests)
    active = [each for each in httpx.get(f"{gateway.url}/v1/containers").json()["data"] if each["status"] == "running"]
    assert len(active) <= 2


def test_a_container_of_the_clients_makes_no_room_whatever_its_name(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda request: reply_to(request)}, max_containers=2)
    mine = gateway.client().containers.create(name="chat").id
    for number in range(3):
        assert ask(gateway, messages=[{"role": "user", "content": f"Number {number}."}]).status_code == 200
    assert gateway.client().containers.retrieve(mine).status == "running"


def test_a_function_of_the_client_is_left_to_it_unless_the_operator_says_otherwise(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: run("1")}, router_tools=())
    (choice,) = ask(gateway).json()["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "execute_python"
    assert httpx.get(f"{gateway.url}/v1/containers").json()["data"] == []
