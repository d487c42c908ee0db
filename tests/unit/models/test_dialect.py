"""What servers want to be sent: profiles, phrasing, lessons, and thinking in the text."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent_tools.errors import InvalidParams
from agent_tools.models.base import JsonObject, ReasoningDelta, TextDelta
from agent_tools.models.dialect.lesson import lesson
from agent_tools.models.dialect.phrasing import DEFAULT_LIMIT, NO_PICTURES, phrased
from agent_tools.models.dialect.profile import PROFILES, UpstreamProfile, read_profile
from agent_tools.models.dialect.prompted_tools import MAX_PARTS
from agent_tools.models.dialect.thinking import HEADINGS, MAX_BLANK_CHARS, ThinkingSplitter
from agent_tools.models.learning import Asking, Dialect, RequestRejected
from tests.thinking_tags import PAIRS

SIZES = (1, 2, 7, 1000)  # characters that come at once


def message(role: str, content: Any = "a", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def test_a_profile_is_a_name_or_pairs_or_both() -> None:
    assert read_profile("auto") == read_profile("") == UpstreamProfile()
    both = read_profile("qwen, thinking = opened")
    assert (both.system, both.thinking, both.fixed) == ("first", "opened", {"system", "thinking"})
    assert all(read_profile(name) for name in PROFILES)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gwen", "auto, openai, deepseek, qwen"),
        ("sistem=first", "system, reasoning"),
        ("system=last", "anywhere, first"),
    ],
)
def test_an_unknown_profile_is_refused_with_those_there_are(text: str, words: str) -> None:
    with pytest.raises(InvalidParams, match=words):
        read_profile(text)


def test_what_is_fixed_is_not_learned() -> None:
    assert read_profile("max_tokens=max_tokens").learned(max_tokens="max_completion_tokens").max_tokens == "max_tokens"


PICTURE = {"type": "image_url", "image_url": {"url": "https://x/a.png"}}


@pytest.mark.parametrize(
    ("messages", "joined"),
    [
        ([message("system", "a"), message("developer", "b")], [message("system", "a\n\nb")]),
        ([message("system", "a"), message("system", "")], [message("system", "a")]),
        ([message("system", "a"), message("system", [{"type": "text", "text": "b"}])], [message("system", "a\n\nb")]),
        (
            [message("system", "a"), message("system", [PICTURE])],
            [message("system", [{"type": "text", "text": "a"}, PICTURE])],
        ),
        ([message("user"), message("system")], [message("user"), message("system")]),
        ([], []),
    ],
)
def test_leading_system_messages_are_one(messages: list[Any], joined: list[Any]) -> None:
    assert phrased({"messages": messages}, UpstreamProfile())["messages"] == joined


def test_a_request_is_phrased_and_stays_as_it_was() -> None:
    said = message("assistant", "b", reasoning_content="r")
    request = {"messages": [message("user"), said, message("system", "c")], "max_tokens": 5, "user": "u"}
    profile = UpstreamProfile("first", "reasoning", max_tokens="max_completion_tokens", left_out=frozenset(["user"]))
    assert phrased(request, profile) == {
        "messages": [message("system", "c"), message("user"), message("assistant", "b", reasoning="r")],
        "max_completion_tokens": 5,
    }
    assert said["reasoning_content"] == "r"
    assert phrased(request, UpstreamProfile(reasoning="none"))["messages"][1] == message("assistant", "b")


def test_an_assistant_who_only_thought_says_nothing_where_reasoning_is_not_sent() -> None:
    messages = [message("user"), message("assistant", "", reasoning_content="r"), message("user")]
    assert len(phrased({"messages": messages}, UpstreamProfile(reasoning="none"))["messages"]) == 2
    assert phrased({"messages": messages}, UpstreamProfile())["messages"] == messages


SCHEMA = {"type": "object", "properties": {"strict": {"type": "string"}}, "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "f", "strict": True, "parameters": SCHEMA}}
CALL = message("assistant", "", tool_calls=[{"id": "1"}], reasoning_content="r")
FIGURE = message("user", [{"type": "text", "text": "(The figures.)"}, PICTURE])
REQUEST = {
    "messages": [
        message("system"),
        message("user"),
        CALL,
        message("tool", tool_call_id="1"),
        FIGURE,
        message("system"),
    ],
    "tools": [TOOL],
    "max_tokens": 5,
    "temperature": 0.2,
    "reasoning_effort": "low",
    "user": "u",
    "stream_options": {},
}


@pytest.mark.parametrize(
    ("words", "learned"),
    [
        ("System message must be at the beginning.", {"system": "first"}),
        ("Unexpected role 'system' after role 'user'", {"system": "first"}),
        ("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'.", {"max_tokens": "max_completion_tokens"}),
        ("messages.2.assistant.reasoning_content: property is unsupported", {"reasoning": "reasoning"}),
        ("Missing `reasoning_content` field in message 2", {"blanks": "filled"}),
        ("thinking is enabled but reasoning is missing", {"reasoning": "reasoning", "blanks": "filled"}),
        ("Extra inputs are not permitted: user", {"left_out": frozenset(["user"])}),
        ("Unknown: stream_options and user", {"left_out": frozenset(["user", "stream_options"])}),
        ("Conversation roles must alternate user/assistant/user/assistant/...", {"system": "first"}),
        ("text content blocks must be non-empty", {"empty": "none"}),
        ("Tool call id was c1 but must be a-z, A-Z, 0-9, with a length of 9.", {"ids": "nine"}),
        ("System role not supported", {"roles": "merged"}),
        ("Unexpected role 'user' after role 'tool'", {"roles": "merged"}),
        ("m is not a multimodal model", {"pictures": "none"}),
        ("Model does not support image input", {"pictures": "none"}),
        ("Only user, assistant and tool roles are supported, got system.", {"system": "first"}),
        ("messages[2].role: Input should be 'user', 'assistant' or 'system'", {"tools": "prompted"}),
        ("Only user and assistant roles are supported!", {"tools": "prompted"}),
        ("The text field in the ContentBlock object at messages.1.content.0 is blank.", {"empty": "none"}),
        ('Unknown name "additionalProperties" at tools[0]', {"left_out": frozenset(["tools.additionalproperties"])}),
        ('Unknown name "parameters" at tools[0]', None),
        ("Unsupported schema keyword: additionalProperties", {"left_out": frozenset(["tools.additionalproperties"])}),
        ("messages[1]: the system role is only allowed for the first message", {"system": "first"}),
        ("TemplateError: System role only supported at position 0", {"system": "first"}),
        ("Consecutive messages with the same role are not supported", {"roles": "merged"}),
        ("String should have at least 1 character: body.messages.1.content", {"empty": "none"}),
        ("Message content must not be an empty string", {"empty": "none"}),
        ("Extra inputs are not permitted: body.tools", {"tools": "prompted"}),
        ("Extra inputs are not permitted: body.tools.0.name", None),
        ("Unknown parameter: 'reasoning_effort'.", {"left_out": frozenset(["reasoning_effort"])}),
        (
            "Unsupported value: 'temperature' does not support 0.2 with this model. Only the default (1) is supported.",
            {"left_out": frozenset(["temperature"])},
        ),
        ("Incorrect role information", {"system": "first"}),
        ("messages.2.content: must not be an empty string", {"empty": "none"}),
        ("Argument not supported on this model: reasoningEffort", {"left_out": frozenset(["reasoning_effort"])}),
        ("This user is not known", None),
        ("max_tokens is too large: 5", None),
        ("'temperature' must be at most 2", None),
        ("The system is overloaded", None),
        ("", None),
    ],
)
def test_what_a_refusal_teaches(words: str, learned: dict[str, Any] | None) -> None:
    request = REQUEST if learned != {"blanks": "filled"} else {"messages": [{**CALL, "reasoning_content": ""}]}
    assert lesson(UpstreamProfile(), request, words) == (UpstreamProfile().learned(**learned) if learned else None)


@pytest.mark.parametrize(
    "words",
    [
        "The toolConfig field must be defined when using toolUse and toolResult content blocks.",
        "Bedrock doesn't support tool calling without `tools=` param specified.",
        "Requests which include `tool_use` or `tool_result` blocks must define `tools`.",
    ],
)
def test_calls_are_text_where_a_request_that_declares_no_tools_may_have_none(words: str) -> None:
    request = {"messages": [message("user"), CALL, message("tool", tool_call_id="1")]}
    taught = lesson(UpstreamProfile(), request, words)
    assert taught == UpstreamProfile(tools="declared")
    assert [each["role"] for each in phrased(request, taught)["messages"]] == ["user", "assistant", "user"]
    assert phrased(REQUEST, taught) == phrased(REQUEST, UpstreamProfile())


def test_a_server_that_wants_a_limit_gets_one_where_the_client_has_none() -> None:
    request = {"messages": [message("user")]}
    taught = lesson(UpstreamProfile(), request, "max_tokens: Field required")
    assert taught == UpstreamProfile(limit="required")
    assert phrased(request, taught)["max_tokens"] == DEFAULT_LIMIT
    assert phrased({**request, "max_tokens": 3}, taught)["max_tokens"] == 3


@pytest.mark.parametrize(
    ("roles", "in_turns"),
    [
        (["system", "user"], ["user"]),
        (["user", "user", "assistant"], ["user", "assistant"]),
        (["system", "user", "call", "tool", "user"], ["user", "call", "tool", "assistant", "user"]),
        (["user", "call", "tool", "call", "tool", "assistant", "user"], None),
        (["user", "assistant", "system", "user"], ["user", "assistant", "user"]),
        ([], []),
    ],
)
def test_messages_come_in_turns_where_a_template_wants_it(roles: list[str], in_turns: list[str] | None) -> None:
    messages = [CALL if role == "call" else message(role, role) for role in roles]
    sent = phrased({"messages": messages}, UpstreamProfile(roles="merged"))["messages"]
    assert ["call" if "tool_calls" in each else each["role"] for each in sent] == (
        roles if in_turns is None else in_turns
    )
    said = "\n".join(str(each["content"]) for each in sent)
    assert all(role in said for role in roles if role not in ("call", "tool"))


def test_ids_of_calls_and_results_stay_the_same_to_each_other_where_they_are_short() -> None:
    calls = [{"id": "call_0123456789abcdef", "type": "function"}, {"id": "x", "type": "function"}]
    messages = [message("assistant", tool_calls=calls), *(message("tool", tool_call_id=call["id"]) for call in calls)]
    sent = phrased({"messages": messages}, UpstreamProfile(ids="nine"))["messages"]
    ids = [call["id"] for call in sent[0]["tool_calls"]]
    assert [each["tool_call_id"] for each in sent[1:]] == ids
    assert all(len(id_) == 9 and id_.isalnum() for id_ in ids)
    assert len(set(ids)) == 2
    assert calls[0]["id"] == "call_0123456789abcdef"


def test_figures_are_left_out_before_a_model_without_eyes_and_pictures_of_a_user_are_not() -> None:
    own = message("user", [PICTURE])
    messages = [own, CALL, message("tool", tool_call_id="1"), FIGURE]
    assert phrased({"messages": messages}, UpstreamProfile(pictures="none"))["messages"] == messages[:3]
    assert lesson(UpstreamProfile(), {"messages": [own]}, "m is not a multimodal model") is None


def test_a_text_beside_pictures_that_are_left_out_is_kept() -> None:
    asked = message("user", [{"type": "text", "text": "What is this?"}, PICTURE])
    messages = [CALL, message("tool", tool_call_id="1"), asked]
    sent = phrased({"messages": messages}, UpstreamProfile(pictures="none"))["messages"]
    assert sent == [*messages[:2], message("user", f"What is this?\n\n{NO_PICTURES}")]
    shown = [*messages[:2], FIGURE, asked]
    assert phrased({"messages": shown}, UpstreamProfile(pictures="none"))["messages"] == [*messages[:2], asked]


def test_content_beside_calls_is_null_where_a_server_wants_no_empty_text() -> None:
    messages = [CALL, message("assistant", ""), message("assistant", "a", tool_calls=[{"id": "1"}])]
    sent = phrased({"messages": messages}, UpstreamProfile(empty="none"))["messages"]
    assert [each["content"] for each in sent] == [None, "", "a"]


def test_a_refusal_of_what_was_not_sent_teaches_nothing() -> None:
    request = {"messages": [message("user")]}
    for words in ("System message must be at the beginning.", "Unsupported: max_tokens, user, reasoning_content"):
        assert lesson(UpstreamProfile(), request, words) is None


@pytest.mark.parametrize(
    "words",
    [
        "Unsupported value: 'verbosity' does not support 'low' with this model.",
        "Invalid parameter: max_tokens must be at most 8192",
        "service_tier 'x' is not supported; supported values are: auto, default",
    ],
)
def test_a_refused_value_teaches_nothing_of_its_field(words: str) -> None:
    assert lesson(UpstreamProfile(), {**REQUEST, "verbosity": "low", "service_tier": "x"}, words) is None


def test_a_keyword_is_left_out_of_tools_but_no_parameter_of_its_name() -> None:
    profile = UpstreamProfile(left_out=frozenset(["tools.strict", "tools.additionalproperties"]))
    (tool,) = phrased(REQUEST, profile)["tools"]
    assert tool["function"] == {
        "name": "f",
        "parameters": {"type": "object", "properties": {"strict": {"type": "string"}}},
    }
    assert phrased(REQUEST, UpstreamProfile())["tools"] == [TOOL]


def test_several_calls_become_a_message_each_with_its_result() -> None:
    both = message("assistant", "I do.", tool_calls=[{"id": "1"}, {"id": "2"}])
    results = [message("tool", "b", tool_call_id="2"), message("tool", "a", tool_call_id="1")]
    request = {"messages": [message("user"), both, *results, message("user", "c")]}
    taught = lesson(UpstreamProfile(), request, "This model only supports single tool-calls at once!")
    assert taught == UpstreamProfile(calls="single")
    assert phrased(request, UpstreamProfile(calls="single"))["messages"] == [
        message("user"),
        message("assistant", "I do.", tool_calls=[{"id": "1"}]),
        results[1],
        message("assistant", "", tool_calls=[{"id": "2"}]),
        results[0],
        message("user", "c"),
    ]


def test_what_others_learned_meanwhile_stays() -> None:
    dialect = Dialect(UpstreamProfile())

    def slow(_: JsonObject) -> str:
        asked(dialect, REQUEST, once_refused("Unsupported parameter: 'max_tokens'"))
        return "answer"

    assert asked(dialect, REQUEST, slow) == "answer"
    assert dialect.profile.max_tokens == "max_completion_tokens"
    asked(dialect, {**REQUEST, "user": "u"}, once_refused("Unknown field: user"))
    asked(dialect, {**REQUEST, "metadata": {"a": "b"}}, once_refused("Unknown field: metadata"))
    assert dialect.profile.left_out == {"user", "metadata"}
    assert dialect.profile.max_tokens == "max_completion_tokens"


def asked(dialect: Dialect, request: JsonObject, send: Callable[[JsonObject], str]) -> str:
    """Ask until the server takes the request and begins its answer."""
    asking = Asking(dialect, request, send)
    answer = asking.open()
    asking.taken()
    return answer


def once_refused(words: str) -> Callable[[JsonObject], str]:
    """A server that refuses the first request."""
    refusals = iter([RequestRejected(words, ValueError(words))])

    def send(_: JsonObject) -> str:
        for refusal in refusals:
            raise refusal
        return "answer"

    return send


def test_only_the_beginning_of_a_refusal_is_read() -> None:
    assert lesson(UpstreamProfile(), REQUEST, "a" * 4_000 + "Unsupported: max_tokens") is None


HARMONY_CALL = "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"


@pytest.mark.parametrize(
    ("text", "mode", "thought", "said"),
    [
        ("<think>\na b\n c\n</think>\n\nhi <think> x", "tagged", "a b\n c", "hi <think> x"),
        ("\n<think></think>x", "tagged", "", "x"),
        ("[THINK]a[/THINK]b", "tagged", "a", "b"),
        ("<think>a</thi b</think>", "tagged", "a</thi b", ""),
        ("<thin", "tagged", "", "<thin"),
        ("a <think>b</think>", "tagged", "", "a <think>b</think>"),
        ("  x ", "tagged", "", "  x "),
        ("a</think>b", "opened", "a", "b"),
        ("<think>a</think>b", "opened", "a", "b"),
        ("<think>a</think>b", "text", "", "<think>a</think>b"),
        ("", "tagged", "", ""),
        ("<think>a</think>\n<think>b</think>c", "tagged", "ab", "c"),
        (
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>",
            "tagged",
            "a",
            "b",
        ),
        (
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>c",
            "tagged",
            "ab",
            "c",
        ),
        (
            "<|channel|>commentary<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b",
            "tagged",
            "",
            "a\n\nb",
        ),
        ("<|channel|>final<|message|>a <|end|>", "tagged", "", "a "),
        ("<|channel|>final", "tagged", "", "<|channel|>final"),
        (f"<|channel|>analysis<|message|>a<|end|>{HARMONY_CALL}", "tagged", "a", HARMONY_CALL),
        ("<|channel>thought\na\n<channel|>b<turn|>", "tagged", "a", "b"),
        ("<|channel>thought<channel|>b", "tagged", "", "b"),
        (" to=self<|message|>a<|eom|><|start|>assistant to=user<|message|>b<|eot|>", "tagged", "a", "b"),
        (
            "<|open|>think<|sep|>a<|close|>think<|sep|><|open|>response<|sep|>b<|close|>response<|sep|>",
            "tagged",
            "a",
            "b",
        ),
        ("<|message_model|><|content_thinking|>a<|end_message|><|message_model|><|content_text|>b", "tagged", "a", "b"),
        ("[BEGIN FINAL RESPONSE]\na\n[END FINAL RESPONSE]\n<|end|>", "tagged", "", "a\n"),
        ("</think>\n\na", "tagged", "", "a"),
        ("<think>a</think>\n</think>\nb", "tagged", "a", "b"),
        ("</x|parameter>\n</x|tool_calls>\na", "tagged", "", "a"),
        ("<x|tool_calls></x|tool_calls>\n\na", "tagged", "", "a"),
        ("<tool_call>\n</tool_call>a", "tagged", "", "a"),
        ("<tool_call>\n</tool", "tagged", "", "<tool_call>\n</tool"),
        ("a\n</tool_call>", "tagged", "", "a\n"),
        ("<tool_call>a</tool_call>", "tagged", "", "<tool_call>a</tool_call>"),
        ("a\n<think>", "tagged", "", "a\n"),
        ("a <think>", "tagged", "", "a <think>"),
        ("a<|im_end|>", "tagged", "", "a"),
        ("a<|im_end|>\n<|endoftext|>\n", "tagged", "", "a"),
        ("<|eot_id|>", "tagged", "", ""),
        ("a <|im_end|> b", "tagged", "", "a <|im_end|> b"),
        ("a <|im_end|>\n<b", "tagged", "", "a <|im_end|>\n<b"),
        ("a <|im_end|>\n<|im", "tagged", "", "a <|im_end|>\n<|im"),
        ("a<|im_end|>", "text", "", "a<|im_end|>"),
        (" " * 300 + "<think>", "tagged", "", " " * 300 + "<think>"),
        ("Use df[~mask]", "tagged", "", "Use df[~mask]"),
        ("x = df[[col]]\n\n", "tagged", "", "x = df[[col]]\n\n"),
        ("x = d[END]", "tagged", "", "x = d[END]"),
        ("See [EOS]", "tagged", "", "See [EOS]"),
        ("a[e~[", "tagged", "", "a"),
        ("a[|endofturn|]", "tagged", "", "a"),
        ("a[unused10]", "tagged", "", "a"),
        ("[REASON] It is late.", "tagged", "", "[REASON] It is late."),
        ("<innerHTML> is text.", "tagged", "", "<innerHTML> is text."),
        ("<reason>a</reason><score>4</score>", "tagged", "", "<reason>a</reason><score>4</score>"),
    ],
)
def test_thinking_is_told_from_the_answer(text: str, mode: Any, thought: str, said: str) -> None:
    assert {split(text, mode, size) for size in SIZES} == {(thought, said)}


@pytest.mark.parametrize(
    ("text", "learned"),
    [
        ("I do.</think>42", "opened"),
        ("I do.\n</mm:think>\n\n42", "opened"),
        ("It ends with `</think>`.", ""),
        ("It ends with </think> always.", ""),
        ("<x> <think> opens, </think> closes.</think>", ""),
        ("<think>I do.</think>42 and </think>", ""),
        ("42", ""),
    ],
)
def test_an_end_of_thinking_that_nothing_opened_teaches_that_the_prompt_opens_it(text: str, learned: str) -> None:
    for size in SIZES:
        splitter = ThinkingSplitter("tagged")
        for at in range(0, len(text), size):
            list(splitter.feed(text[at : at + size]))
        list(splitter.finish())
        assert splitter.learned == learned


def split(text: str, mode: Any, size: int) -> tuple[str, str]:
    splitter = ThinkingSplitter(mode)
    found = [each for n in range(0, len(text), size) for each in splitter.feed(text[n : n + size])]
    found += splitter.finish()
    assert all(each.text for each in found)
    thought = "".join(each.text for each in found if isinstance(each, ReasoningDelta))
    return thought, "".join(each.text for each in found if isinstance(each, TextDelta))


TAGS = [*(tag for pair in PAIRS for tag in pair), *HEADINGS, "<|end|>", "<|im_end|>"]


@example(["<|end|>", " ", " " * MAX_BLANK_CHARS], 1)
@example(["<|channel|>final<|message|>", "<|START_THINKING|>", "\n", "<think>"], 1)
@example(["<|end|>", "<|think:end|>", "</thought>", "<|start|> assistant<|channel|>final<|message|>"], 1)
@given(st.lists(st.sampled_from([*TAGS, "<", "a", " ", "\n", "</th", " " * MAX_BLANK_CHARS])), st.integers(1, 9))
def test_thinking_is_told_alike_however_it_is_cut(parts: list[str], size: int) -> None:
    text = "".join(parts)
    assert split(text, "tagged", size)[1] == split(text, "tagged", len(text) + 1)[1]
    assert "".join(split(text, "text", size)) == text


def test_a_call_of_many_parts_is_shown_to_the_model_as_it_was_written() -> None:
    for arguments, shown in (('{"a": [1]}', {"a": [1]}), ("", {}), ("x", "x"), ("[0" + ",0" * MAX_PARTS + "]", None)):
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        asked = {"messages": [message("assistant", "", tool_calls=[call]), message("tool", tool_call_id="c1")]}
        said = phrased(asked, UpstreamProfile(tools="prompted"))["messages"][0]["content"]
        written = {"name": "f", "arguments": arguments if shown is None else shown}
        assert said == f"<tool_call>\n{json.dumps(written)}\n</tool_call>"


def test_the_messages_of_a_turn_are_joined_once() -> None:
    text = "x" * 10_000
    asked = {"messages": [message("user", text)] * 100}
    tracemalloc.start()
    try:
        (turn,) = phrased(asked, UpstreamProfile(roles="merged"))["messages"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert turn == message("user", "\n\n".join([text] * 100))
    assert peak < 1.5 * 100 * len(text)  # the whole text, and none that is half joined
