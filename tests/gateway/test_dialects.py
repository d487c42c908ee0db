"""Upstreams with dialects of their own: the same conversation with each, through both APIs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from agent_tools.gateway.conversations.recent_fields import LIFETIME, RecentFields
from agent_tools.gateway.store.records import StoredCall
from tests.call_forms import written_calls
from tests.gateway import dialects
from tests.gateway.asking import (
    CODE_TOOL,
    EXECUTE,
    FUNCTION,
    INCLUDE,
    WEATHER,
    ask,
    chunks,
    in_container,
    outputs,
    post,
    stream,
)
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.dialects import ARGUMENTS, Request, reasonings, refused, roles
from tests.opcodes import opcodes
from tests.recorder import Answer, Recorder
from tests.thinking_tags import END_MARKS, PAIRS

SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
FORMAT = {"type": "json_schema", "name": "answer", "schema": SCHEMA}
FORMS = tuple(written_calls("python", ""))
NAMES = (
    *(
        "python<|channel|>commentary",
        "python<|channel|>json",
        "python<|constrain|>json",
        "pythonjson",
        "Python",
        " python ",
    ),
    *("functions.python", "functions.python:0", "default_api.python", "default_api:python", "code_interpreter"),
)
New = Callable[..., tuple[Gateway, Recorder]]


@pytest.fixture
def new(new_gateway: NewGateway) -> Iterator[New]:
    """Makes a gateway before a server with a dialect."""
    with Recorder() as recorder:

        def make(answer: Callable[[Request], Answer], **options: Any) -> tuple[Gateway, Recorder]:
            recorder.answer = dialects.served(answer)
            return new_gateway({}, upstream=recorder.base_url, upstream_key="k", **options), recorder

        yield make


@dataclass(frozen=True)
class Row:
    """One dialect: how it is asked through both APIs, and what comes of it."""

    serve: Callable[[Request], Answer]
    text: str = "It is 42."
    calls: int = 1
    reasoning: str = ""
    asked: dict[str, Any] = field(default_factory=dict)
    asked_chat: dict[str, Any] | None = None
    requests: int = 2


TABLE = {
    "as documented": Row(dialects.plain),
    "OpenAI's reasoning models": Row(
        dialects.gpt5, asked={"max_output_tokens": 99}, asked_chat={"max_tokens": 99}, requests=3
    ),
    "DeepSeek": Row(dialects.deepseek, reasoning="I compute it.Good."),
    "Groq": Row(dialects.groq, reasoning="I compute it.Good."),
    "Mistral": Row(dialects.strict, asked={"service_tier": "flex", "prompt_cache_key": "a"}, requests=5),
    "Gemini": Row(dialects.gemini, text="It is 42 and 42.", calls=2),
    "an id for every piece": Row(dialects.new_ids),
    "content in parts": Row(dialects.magistral, reasoning="I compute it."),
    "thinking in the text": Row(dialects.untold_thinking, reasoning="I compute it.I compute it."),
    "Hermes' calls": Row(dialects.hermes),
    **{
        f"calls of {form} after text": Row(dialects.written(form), text="I compute it.\nIt is 42.")
        for form in FORMS
        if form not in ("Python", "Command R", "a fence")  # which are examples after text
    },
    **{f"calls of {form}": Row(dialects.written(form, before="", size=50)) for form in FORMS},
    "arguments again at the end": Row(dialects.in_pieces(ARGUMENTS[:9], ARGUMENTS[9:], ARGUMENTS)),
    "arguments twice": Row(dialects.in_pieces(ARGUMENTS, ARGUMENTS)),
    "arguments twice, in other words": Row(dialects.in_pieces(ARGUMENTS, ARGUMENTS.replace(": ", ":"))),
    "an empty object first": Row(dialects.in_pieces("{}", ARGUMENTS[:9], ARGUMENTS[9:])),
    "a token behind arguments": Row(dialects.in_pieces(ARGUMENTS[:9], f"{ARGUMENTS[9:]}<|call|>")),
    "a token in a piece of its own": Row(dialects.in_pieces(ARGUMENTS, "<|tool_call_end|>")),
    "blank lines behind arguments": Row(dialects.in_pieces(ARGUMENTS, "\n\n")),
    "Gemini 3": Row(dialects.gemini3),
    "Gemini 3 behind LiteLLM": Row(dialects.gemini3_by_litellm),
    "OpenRouter": Row(dialects.openrouter, reasoning="I compute it."),
    "Claude behind LiteLLM": Row(dialects.claude_by_litellm, reasoning="I compute it."),
    "Claude behind LiteLLM, at once": Row(dialects.claude_at_once, reasoning="I compute it."),
    "all of harmony": Row(dialects.harmony, reasoning="I compute it.I compute it."),
    "all of Gemma": Row(dialects.gemma, reasoning="I compute it.I compute it."),
    **{f"a call named {name!r}": Row(dialects.named(name)) for name in NAMES},
    **{
        f"{len(blank)} blanks before a call": Row(dialects.named("python", blank)) for blank in ("\n", "\n\n", " \n \n")
    },
    **{
        f"{pair[0]} before calls of {form}": Row(dialects.thoughtful(*pair, form), reasoning="I compute it." * 2)
        for pair, form in zip(itertools.cycle(PAIRS), FORMS)
    },
    **{f"{mark} at the end": Row(dialects.marked(mark)) for mark in END_MARKS},
    "no finish reason": Row(dialects.no_reason),
    "no stream": Row(dialects.no_stream),
}


GROUPS = {name: dict(itertools.islice(TABLE.items(), start, None, 4)) for start, name in enumerate("abcd")}


@pytest.mark.parametrize("group", GROUPS)
def test_every_dialect_through_both_apis(new: New, group: str) -> None:
    rows = GROUPS[group]
    gateway, upstream = new(lambda request: rows[request["model"]].serve(request))
    tools = in_container(gateway.client().containers.create(name="c").id)
    wrong = {}
    for name, row in rows.items():
        upstream.seen.clear()
        asked = {"model": name, "tools": tools, **row.asked}
        body = stream(gateway, include=INCLUDE, **asked)[-1]["response"]
        learned = len(upstream.seen)
        chat = {"model": name, "tools": tools, **(row.asked if row.asked_chat is None else row.asked_chat)}
        message = ask(gateway, **chat).json()["choices"][0]["message"]
        said = (message["content"].replace("\n\nIt", "It"), message.get("reasoning_content", ""))
        calls = [(dialects.CODE, [{"type": "logs", "logs": "42\n"}])] * row.calls
        found = (_shown(body), said, learned, len(upstream.seen))
        shown = ("completed", calls, row.text, row.reasoning)
        if found != (shown, (row.text, row.reasoning), row.requests, row.requests + 2):
            wrong[name] = found
    assert wrong == {}


def _shown(body: dict[str, Any]) -> tuple[Any, ...]:
    calls = [(item["code"], item["outputs"]) for item in outputs(body)]
    return body["status"], calls, spoken(body), thought(body)


@pytest.mark.parametrize("server", dialects.TOO_LONG)
def test_a_context_that_is_too_long_has_one_code_everywhere(new: New, server: str) -> None:
    code, answer = "context_length_exceeded", dialects.TOO_LONG[server]
    gateway, _ = new(lambda _: answer)
    for first in (post(gateway), ask(gateway)):
        assert (first.status_code, first.json()["error"]["code"]) == (400, code)
    gateway, _ = new(lambda request: answer if dialects.told(request) else dialects.called(request))
    for asked in ({}, {"background": True}):
        *_, error, failed = stream(gateway, **asked)
        assert (error["type"], error["code"], error["error"]["code"]) == ("error", code, code)
        assert (failed["type"], failed["response"]["error"]["code"]) == ("response.failed", code)


def spoken(body: dict[str, Any]) -> str:
    return "".join(item["content"][0]["text"] for item in body["output"] if item["type"] == "message")


def thought(body: dict[str, Any]) -> str:
    return "".join(item["content"][0]["text"] for item in body["output"] if item["type"] == "reasoning")


def said_by(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


@pytest.mark.parametrize("serve", [dialects.gemini3, dialects.gemini3_by_litellm, dialects.openrouter])
def test_fields_of_a_server_go_back_in_later_turns_to_their_model_alone(new: New, serve: Any) -> None:
    gateway, upstream = new(serve)
    first = post(gateway).json()
    assert "c2ln" not in json.dumps(first), "they are no clients'"
    second = post(gateway, previous_response_id=first["id"]).json()
    assert (second["status"], spoken(second)) == ("completed", "It is 42.")
    signed = [seen.body.count(b"c2ln") for seen in upstream.seen]
    assert signed[2] == signed[1] > 0
    upstream.answer = dialects.served(lambda request: dialects.answered(request))
    assert post(gateway, model="other", previous_response_id=second["id"]).json()["status"] == "completed"
    assert b"c2ln" not in upstream.seen[-1].body
    assert b"server_fields" not in b"".join(seen.body for seen in upstream.seen)
    third = post(gateway, previous_response_id=second["id"]).json()
    assert third["status"] == "completed"
    assert upstream.seen[-1].body.count(b"c2ln") == 2 * signed[1]


@pytest.mark.parametrize(
    "serve", [dialects.gemini3, dialects.gemini3_by_litellm, dialects.openrouter, dialects.claude_by_litellm]
)
def test_fields_of_a_server_go_back_in_conversations_and_with_items_of_clients(new: New, serve: Any) -> None:
    gateway, upstream = new(serve)
    id_ = httpx.post(f"{gateway.url}/v1/conversations", json={}).json()["id"]
    bodies = [post(gateway, conversation=id_, store=store).json() for store in (True, False)]
    signed = [seen.body.count(b"c2ln") for seen in upstream.seen]
    assert [spoken(body) for body in bodies] == ["It is 42."] * 2
    assert signed[1:] == [signed[1], signed[1], 2 * signed[1]]
    assert signed[1] > 0
    first = [said_by("user", "Go."), *bodies[0]["output"], said_by("user", "Again.")]
    assert spoken(post(gateway, input=first).json()) == "It is 42."
    assert upstream.seen[-2].body.count(b"c2ln") == signed[1]
    listed = httpx.get(f"{gateway.url}/v1/conversations/{id_}/items").text
    assert "c2ln" not in listed
    assert "server_fields" not in listed


@pytest.mark.parametrize(
    "serve", [dialects.gemini3, dialects.gemini3_by_litellm, dialects.openrouter, dialects.claude_by_litellm]
)
def test_fields_of_a_server_go_back_with_items_that_are_stored_nowhere(new: New, serve: Any) -> None:
    gateway, upstream = new(serve, api_keys=("key-of-mine", "key-of-theirs"))

    def said(input_: list[Any], key: str = "key-of-mine", **body: Any) -> dict[str, Any]:
        asked = {"model": "m", "input": input_, "tools": [CODE_TOOL], "store": False, **body}
        headers = {"Authorization": f"Bearer {key}"}
        found: dict[str, Any] = httpx.post(
            f"{gateway.url}/v1/responses", json=asked, headers=headers, timeout=60
        ).json()
        return found

    first = said([said_by("user", "Go.")])
    assert "c2ln" not in json.dumps(first)
    again = [said_by("user", "Go."), *first["output"], said_by("user", "Again.")]
    assert spoken(said(again)) == "It is 42."
    sent = upstream.seen[2].body.count(b"c2ln")
    assert sent == upstream.seen[1].body.count(b"c2ln") > 0
    number = len(upstream.seen)
    said(again, "key-of-theirs")
    assert b"c2ln" not in upstream.seen[number].body
    assert gateway.services.store.count(StoredCall) == 0


def test_fields_that_are_stored_nowhere_are_bounded_in_size_and_time() -> None:
    now = [0.0]
    recent = RecentFields(most=20, clock=lambda: now[0])
    recent.record("me", {"a": "1234567", "b": "1234567"})
    recent.record("me", {"a": "7654321"})
    recent.record("me", {"c": "1234567"})
    assert recent.find("me", "abc") == {"a": "7654321", "c": "1234567"}
    assert recent.find("you", "abc") == {}
    now[0] = LIFETIME + 1
    recent.record("me", {"d": "1"})
    recent.sweep()
    assert recent.find("me", "abcd") == {"d": "1"}
    recent.record("me", {"e": "1" * 100})
    assert recent.find("me", "abcde") == {}


def test_fields_of_one_key_push_out_none_of_another() -> None:
    recent = RecentFields(most=20)
    recent.record("you", {"a": "1234567"})
    for key in "bcd":
        recent.record("me", {key: "1234567"})
    assert (recent.find("you", "a"), recent.find("me", "bcd")) == ({"a": "1234567"}, {"d": "1234567"})


def test_old_fields_are_forgotten_in_linear_time() -> None:
    costs, now = list[int](), [0.0]
    for number in (100, 200):
        now[0], recent = 0.0, RecentFields(clock=lambda: now[0])
        recent.record("me", {str(key): "1" for key in range(number)})
        now[0] = LIFETIME + 1
        for owner in range(number):
            recent.record(str(owner), {"a": "1"})
        costs.append(opcodes(recent.sweep))
        assert (recent.find("me", map(str, range(number))), recent.find("0", "a")) == ({}, {"a": "1"})
    assert costs[1] < 2.2 * costs[0]


def test_fields_of_a_server_go_back_with_functions_of_clients(new: New) -> None:
    gateway, _ = new(lambda request: dialects.gemini3({**request, "tools": request["tools"][::-1]}))
    question = said_by("user", "Weather?")
    body = post(gateway, input=[question], tools=[FUNCTION]).json()
    (call,) = body["output"]
    done = {"type": "function_call_output", "call_id": call["call_id"], "output": "42"}
    bare = {name: value for name, value in call.items() if name not in ("id", "status")}
    for again in (call, bare, {**bare, "extra_content": dialects.SIGNATURE, "call_id": "other"}):
        done["call_id"] = again["call_id"]
        assert spoken(post(gateway, input=[question, again, done], tools=[FUNCTION]).json()) == "It is 42."
    httpx.delete(f"{gateway.url}/v1/responses/{body['id']}")
    done["call_id"] = bare["call_id"]
    assert post(gateway, input=[question, bare, done], tools=[FUNCTION]).status_code == 400, "it is forgotten"
    body = post(gateway, input=[question], tools=[FUNCTION], store=False).json()
    unstored = {name: value for name, value in body["output"][0].items() if name not in ("id", "status")}
    assert spoken(post(gateway, input=[question, unstored, done], tools=[FUNCTION]).json()) == "It is 42."
    for is_stream in (False, True):
        answer = ask(gateway, tools=[WEATHER, CODE_TOOL], stream=is_stream)
        message = said_in(answer) if is_stream else answer.json()["choices"][0]["message"]
        told = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "42"}
        assert message["tool_calls"][0]["extra_content"] == dialects.SIGNATURE
        said = [said_by("user", "Go."), message, told]
        assert ask(gateway, messages=said, tools=[WEATHER, CODE_TOOL]).json()["choices"][0]["message"]["content"]


def said_in(answer: httpx.Response) -> dict[str, Any]:
    """The message that chunks of a completion add up to, where each of its fields comes at once."""
    message: dict[str, Any] = {}
    for chunk in chunks(answer):
        message |= {name: value for name, value in chunk["choices"][0]["delta"].items() if value}
    return message


SYSTEMS = [said_by("developer", "B."), said_by("user", "Hi."), said_by("developer", "C."), said_by("user", "Go.")]


def test_instructions_and_what_a_developer_says_first_are_one_message(new: New) -> None:
    gateway, upstream = new(dialects.plain)
    assert post(gateway, instructions="A.", input=SYSTEMS).status_code == 200
    assert roles(upstream.seen[0].json) == ["system", "user", "system", "user"]
    assert upstream.seen[0].json["messages"][0]["content"] == "A.\n\nB."
    assert ask(gateway, messages=[said_by("system", "A."), *SYSTEMS]).status_code == 200
    assert roles(upstream.seen[2].json) == ["system", "user", "developer", "user"]


def test_a_server_that_wants_one_system_message_gets_one(new: New) -> None:
    gateway, upstream = new(dialects.qwen)
    body = post(gateway, instructions="A.", input=SYSTEMS).json()
    assert spoken(body) == "It is 42."
    assert [len(seen.json["messages"]) for seen in upstream.seen] == [4, 3, 5]
    assert upstream.seen[1].json["messages"][0] == said_by("system", "A.\n\nB.\n\nC.")
    later = post(gateway, previous_response_id=body["id"], input=[said_by("developer", "D."), said_by("user", "Go.")])
    assert later.json()["status"] == "completed"
    assert ask(gateway, messages=[said_by("system", "A."), *SYSTEMS]).status_code == 200
    assert upstream.seen[-1].json["messages"][0] == said_by("system", "A.\n\nB.\n\nC.")
    assert len(upstream.seen) == 3 + 2 + 2, "it is learned once"


def test_reasoning_goes_back_within_a_turn_and_in_the_next(new: New) -> None:
    for serve, name in ((dialects.deepseek, "reasoning_content"), (dialects.groq, "reasoning")):
        gateway, upstream = new(serve)
        upstream.seen.clear()
        first = post(gateway).json()
        assert reasonings(upstream.seen[1].json, name) == ["I compute it."]
        post(gateway, previous_response_id=first["id"])
        assert reasonings(upstream.seen[2].json, name) == ["I compute it.", "Good."]
        post(gateway, input=[said_by("user", "Go."), *first["output"], said_by("user", "Again.")])
        assert reasonings(upstream.seen[4].json, name) == ["I compute it.", "Good."]
        assert [seen.json["messages"][0]["role"] for seen in upstream.seen] == ["user"] * 6


def test_a_call_whose_reasoning_nobody_knows_is_sent_with_a_blank(new: New) -> None:
    gateway, upstream = new(dialects.deepseek)
    call = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"}
    done = {"type": "function_call_output", "call_id": "c", "output": "Rain."}
    items = [said_by("user", "Weather?"), call, done, said_by("user", "Go.")]
    body = post(gateway, input=items, tools=[CODE_TOOL, FUNCTION]).json()
    assert spoken(body) == "It is 42."
    assert [reasonings(seen.json, "reasoning_content") for seen in upstream.seen] == [
        [None],
        [" "],
        [" ", "I compute it."],
    ]


def test_a_format_is_asked_for_when_no_call_can_come(new: New) -> None:
    gateway, upstream = new(dialects.vllm_format)
    found = stream(gateway, text={"format": FORMAT})
    body = found[-1]["response"]
    assert [item["type"] for item in body["output"]] == ["code_interpreter_call", "message"]
    assert json.loads(spoken(body)) == {"answer": 42}
    asked = [(seen.json.get("tool_choice"), "response_format" in seen.json) for seen in upstream.seen]
    assert asked == [(None, False), (None, False), ("none", True)]
    assert roles(upstream.seen[2].json) == ["user", "assistant", "tool"]
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    answer = ask(gateway, response_format=wanted).json()
    assert json.loads(answer["choices"][0]["message"]["content"]) == {"answer": 42}


def test_a_format_goes_beside_tools_where_the_profile_says_so(new: New) -> None:
    gateway, upstream = new(dialects.vllm_format, upstream_profile="format=always")
    assert json.loads(spoken(post(gateway, text={"format": FORMAT}).json())) == {"answer": 0}
    assert len(upstream.seen) == 1


def test_what_is_said_before_calls_is_no_part_of_an_answer_in_a_format(new: New) -> None:
    def serve(request: Request) -> Answer:
        if "response_format" in request or dialects.told(request):
            return dialects.vllm_format(request)
        return dialects.called(request, content="I compute it.")

    gateway, upstream = new(serve)
    body = post(gateway, text={"format": {"type": "json_object"}}).json()
    assert [item["type"] for item in body["output"]] == ["reasoning", "code_interpreter_call", "message"]
    assert (thought(body), json.loads(spoken(body))) == ("I compute it.", {"answer": 42})
    assert upstream.seen[1].json["messages"][1]["content"] == "I compute it."


def test_log_probabilities_are_asked_for_and_shown(new: New) -> None:
    gateway, upstream = new(dialects.vllm_logprobs)
    body = stream(gateway, top_logprobs=2)[-1]["response"]
    (token,) = body["output"][-1]["content"][0]["logprobs"]
    best = {"token": "42", "logprob": -0.1, "bytes": [52, 50]}
    assert token == {**best, "top_logprobs": [best, {"token": "43", "logprob": -9999.0, "bytes": [52, 51]}]}
    assert (upstream.seen[0].json["logprobs"], upstream.seen[0].json["top_logprobs"]) == (True, 2)
    post(gateway, include=["message.output_text.logprobs"])
    assert upstream.seen[-1].json["logprobs"] is True
    (choice,) = ask(gateway, logprobs=True).json()["choices"]
    assert choice["logprobs"]["content"][0]["token"] == "42"
    said = [chunk["choices"][0]["logprobs"] for chunk in chunks(ask(gateway, logprobs=True, stream=True))]
    assert len([each for each in said if each]) == 1
    assert post(gateway).json()["output"][-1]["content"][0]["logprobs"] == [], "not asked for"


def test_fields_of_other_servers_are_passed_on(new: New) -> None:
    gateway, upstream = new(dialects.plain)
    more = {"top_k": 5, "seed": 1, "stop": ["x"], "chat_template_kwargs": {"enable_thinking": False}}
    post(gateway, **more, unheard_of=1, text={"verbosity": "low"}, safety_identifier="s", min_p=None)
    found = upstream.seen[0].json
    assert {name: found[name] for name in more} == more
    assert (found["verbosity"], found["safety_identifier"]) == ("low", "s")
    assert not {"unheard_of", "min_p"} & set(found)
    gateway, _ = new(dialects.plain, passed_fields=("unheard_of",))
    post(gateway, **more, unheard_of=1)
    assert (upstream.seen[-1].json["unheard_of"], "top_k" in upstream.seen[-1].json) == (1, False)


def test_fields_that_are_not_sent_are_named_in_a_header(new: New) -> None:
    def serve(request: Request) -> Answer:
        return refused("Unknown parameter: 'user'.") if "user" in request else dialects.plain(request)

    gateway, upstream = new(serve)
    more = {"thinking": {"type": "enabled"}, "provider": {"sort": "price"}, "guided_regex": "a", "cache_prompt": True}
    asked = {**more, "unheard_of": 1, "a\nb": 1, "none": None, "truncation": "auto", "reasoning": {"mode": "pro"}}
    for is_stream in (False, True):
        answer = post(gateway, **asked, stream=is_stream)
        assert answer.headers["x-agent-tools-ignored"] == "unheard_of, truncation, reasoning.mode"
        assert {name: upstream.seen[-1].json.get(name) for name in more} == more
    assert "x-agent-tools-ignored" not in post(gateway).headers
    assert ask(gateway, user="u").headers["x-agent-tools-ignored"] == "user"
    asked = {"include": ["web_search_call.results", *INCLUDE]}
    assert post(gateway, **asked).headers["x-agent-tools-ignored"] == "include.web_search_call.results"
    many = post(gateway, **{f"field_{number}": 1 for number in range(99)}).headers["x-agent-tools-ignored"]
    assert many.count("field_") == 20


def test_what_does_not_hold_is_not_echoed(new: New) -> None:
    gateway, _ = new(dialects.plain)
    assert post(gateway, truncation="auto").json()["truncation"] == "disabled"


def test_a_refusal_that_teaches_nothing_is_the_clients(new: New) -> None:
    gateway, upstream = new(lambda _: refused("The 'temperature' is not supported with this model.", type="Bad"))
    for answer in (post(gateway, max_output_tokens=9, temperature=0.5), ask(gateway, max_tokens=9)):
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "Bad")
        assert answer.json()["error"]["message"] == "The 'temperature' is not supported with this model."
    assert len(upstream.seen) == 2


def test_a_server_that_refuses_everything_is_not_asked_for_ever(new: New) -> None:
    words = "Unsupported: 'max_tokens', 'max_completion_tokens', 'user', 'service_tier', 'stream_options'."
    gateway, upstream = new(lambda _: refused(words))
    more = {"user": "u", "service_tier": "flex", "max_output_tokens": 9}
    assert post(gateway, **more).status_code == 400
    assert len(upstream.seen) <= 9
    asked = len(upstream.seen)
    upstream.answer = dialects.served(dialects.plain)
    assert post(gateway, **more).json()["status"] == "completed"
    sent = upstream.seen[asked].json
    assert (sent["user"], sent["max_tokens"]) == ("u", 9), "nothing is learned of a server that never agreed"


def test_the_time_to_ask_again_is_kept(new: New) -> None:
    words = json.dumps({"error": {"message": "Slow down."}}).encode()
    for said, kept in (("7", "7"), ("a\tb", None)):
        headers = {"Retry-After": said, "X-Should-Retry": "false"}
        gateway, _ = new(lambda _, headers=headers: Answer(words, status=429, headers=headers))
        for answer in (post(gateway), ask(gateway), ask(gateway, stream=True)):
            assert (answer.status_code, answer.json()["error"]["message"]) == (429, "Slow down.")
            assert answer.headers.get("retry-after") == kept
            assert answer.json()["error"]["code"] is None


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_the_time_to_ask_again_is_the_client_s_to_wait_for(new: New, api: str) -> None:
    gateway, upstream = new(
        lambda _: replace(refused("Slow down.", 429), headers={"Retry-After": "30"}), upstream_api=api
    )
    for answer in (post(gateway), post(gateway, stream=True), ask(gateway)):
        assert (answer.status_code, answer.headers.get("retry-after")) == (429, "30")
    assert len(upstream.seen) == 3


def test_code_that_has_run_is_worth_a_wait(new: New) -> None:
    seen: list[bool] = []

    def busy_once(request: Request) -> Answer:
        is_told = bool(dialects.told(request))
        seen.append(is_told)
        busy = replace(refused("Slow down.", 429), headers={"Retry-After": "1"})
        return busy if seen.count(True) == 1 and is_told else dialects.plain(request)

    gateway, _ = new(busy_once)
    assert post(gateway).json()["status"] == "completed"
    assert seen == [False, True, True]


JSON_ANSWER = json.dumps({"name": "Alice", "facts": [str(number) * 40 for number in range(9)]})


def test_an_answer_in_json_streams_while_tools_are_declared(new: New) -> None:
    gateway, _ = new(lambda _: dialects.said(*({"content": JSON_ANSWER[n : n + 9]} for n in range(0, 400, 9))))
    deltas = [event for event in stream(gateway) if event["type"] == "response.output_text.delta"]
    assert len(deltas) > 30
    parts = chunks(ask(gateway, stream=True, tools=[EXECUTE]))
    assert len([part for part in parts if part["choices"][0]["delta"].get("content")]) > 30
