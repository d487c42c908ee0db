"""What was said, however a client sends it back."""

from __future__ import annotations

import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agent_tools.gateway.conversations.fingerprint import ConversationFingerprint, ConversationIdentity
from agent_tools.gateway.conversations.normal_form import Line, digests, lines_of
from agent_tools.limits import MIB

ASKED = {"role": "user", "content": "How many rows?"}
ANSWERED = {"role": "assistant", "content": "Ten rows."}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": '{"city": "Ulm"}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "Rain."}


def test_conversations_are_read_beside_each_other() -> None:
    both = threading.Barrier(2)

    class Slow(dict[str, Any]):
        """An item whose fingerprint takes until that of another one is made, too."""

        def __getitem__(self, name: str) -> Any:
            if name == "id":
                both.wait(30)
            return super().__getitem__(name)

    def read(id_: str) -> tuple[str, ...]:
        return ConversationFingerprint.of(ConversationIdentity("me"), [Slow(ASKED, id=id_)]).fingerprints.items

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(read, "ab"))) == 2


@pytest.mark.parametrize(
    "again",
    [
        {"type": "message", "id": "msg_1", "status": "completed", **ANSWERED},
        {
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Ten rows.", "annotations": [], "logprobs": []}],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "Ten "}, {"type": "text", "text": "rows.\n"}]},
    ],
)
def test_an_answer_is_the_same_in_every_form(again: dict[str, Any]) -> None:
    assert digests(lines_of([ASKED, again]), "") == digests(lines_of([ASKED, ANSWERED]), "")


def test_what_some_clients_leave_out_counts_for_nothing() -> None:
    extra = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "container_id": "cntr_1", "outputs": None},
        {"type": "shell_call_output", "call_id": "c", "output": []},
    ]
    assert lines_of([ASKED, *extra, ANSWERED]) == lines_of([ASKED, ANSWERED])


def test_a_models_texts_and_calls_between_others_are_one_run() -> None:
    parts = [{"role": "assistant", "content": "I"}, CALL, {"role": "assistant", "content": "look."}, RESULT]
    whole = [
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Ulm"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "Rain."},
    ]
    assert lines_of(parts) == lines_of(whole)
    assert lines_of(whole) == [
        Line("assistant", "Ilook."),
        Line("call", 'weather {"city":"Ulm"}'),
        Line("result", "Rain."),
    ]


def test_a_call_of_a_custom_tool_is_a_call() -> None:
    call = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "patch", "input": "*** Begin"}
    result = {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done."}
    assert lines_of([call, result]) == [Line("call", "patch ***Begin"), Line("result", "Done.")]
    fingerprints = ConversationFingerprint.of(ConversationIdentity("me"), [ASKED, call, result]).fingerprints
    assert len(fingerprints.calls) == len(fingerprints.items) == 1


@pytest.mark.parametrize(
    "other",
    [
        [{"role": "user", "content": "How many columns?"}, ANSWERED],
        [{"role": "developer", "content": "You talk to Bob."}, ASKED, ANSWERED],
        [
            {
                **ASKED,
                "content": [{"type": "text", "text": ASKED["content"]}, {"type": "input_image", "image_url": "data:x"}],
            },
            ANSWERED,
        ],
        [ASKED, {"role": "assistant", "content": "Ten rows"}],
        [ASKED, ANSWERED, ASKED],
    ],
    ids=["question", "system", "picture", "answer", "further"],
)
def test_what_differs_is_another_conversation(other: list[dict[str, Any]]) -> None:
    assert digests(lines_of(other), "").whole != digests(lines_of([ASKED, ANSWERED]), "").whole


def test_each_answer_has_its_digest_the_newest_first() -> None:
    first = digests(lines_of([ASKED, ANSWERED]), "a")
    more = digests(lines_of([ASKED, ANSWERED, {"role": "user", "content": "And?"}, CALL, RESULT]), "a")
    assert more.answers[-1] == first.answers[0] == first.whole
    assert len(more.answers) == 2
    assert more.opening == first.opening == digests(lines_of([ASKED]), "a").whole
    assert digests(lines_of([ASKED, ANSWERED]), "b").answers != first.answers


@pytest.mark.parametrize("content", [None, 7, {"a": [1]}, ["x", None, {"type": "text"}, {"type": ["a"]}], "\ud800"])
def test_whatever_a_client_sends_is_read(content: Any) -> None:
    for role in ("user", "assistant", "tool", None, ["a"]):
        assert digests(lines_of([{"role": role, "content": content}]), "").whole


def test_arguments_of_many_parts_are_taken_as_text() -> None:
    many = "[" + "[], " * MIB + "0]"
    tracemalloc.start()
    try:
        assert lines_of([{**CALL, "arguments": many}]) == [Line("call", f"weather {many.replace(' ', '')}")]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(many)


def test_the_fingerprints_of_a_conversation_are_made_once() -> None:
    conversation = ConversationFingerprint.of(ConversationIdentity("me"), [ASKED, ANSWERED])
    assert conversation.fingerprints is conversation.fingerprints


def test_what_is_nested_deeply_is_read() -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    assert digests(lines_of([{"role": "user", "content": [{"type": "x", "y": value}]}]), "").whole
    nested = "[" * 100_000 + "]" * 100_000
    assert lines_of([{**CALL, "arguments": nested}]) == [Line("call", f"weather {nested}")]
