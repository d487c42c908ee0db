from __future__ import annotations

import gc
import math
import weakref
from typing import Any

import pytest

from agent_tools.errors import ModelError
from agent_tools.models.base import (
    ArgumentsDelta,
    CallComplete,
    CallStarted,
    Delta,
    Finish,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from agent_tools.models.call_pieces import finish_reason
from agent_tools.models.chunks import ChunkReader, usage_of
from agent_tools.models.reply_limits import MAX_TOKENS


def read(*deltas: dict[str, Any], reason: str = "tool_calls", **more: Any) -> list[Delta]:
    reader = ChunkReader()
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], **more})
    return [*(found for chunk in chunks for found in reader.read(chunk)), *reader.finish()]


def piece(name: str | None = None, arguments: Any = None, **more: Any) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {"tool_calls": [{**more, "function": function}]}


def calls(deltas: list[Delta]) -> list[tuple[str, str]]:
    """(name, arguments) of the complete calls, after a check that their pieces say the same."""
    begun = {delta.index: delta for delta in deltas if isinstance(delta, CallStarted)}
    complete = [delta for delta in deltas if isinstance(delta, CallComplete)]
    assert [begun[call.index] for call in complete] == [
        CallStarted(call.index, call.id, call.name) for call in complete
    ]
    assert len({call.id for call in complete}) == len(complete)
    assert all(call.id for call in complete)
    for call in complete:
        pieces = [d.text for d in deltas if isinstance(d, ArgumentsDelta) and d.index == call.index]
        assert "".join(pieces) == call.arguments
    return [(call.name, call.arguments) for call in complete]


def test_text_and_reasoning_under_both_names() -> None:
    deltas = read({"reasoning_content": "a"}, {"reasoning": "b"}, {"content": "c"}, reason="stop")
    assert deltas == [ReasoningDelta("a"), ReasoningDelta("b"), TextDelta("c"), Finish("stop")]


@pytest.mark.parametrize(
    "delta",
    [
        *({name: "a"} for name in ("thinking", "think", "thoughts", "reasoning_text", "reasoning_summary")),
        {"thinking_blocks": [{"type": "thinking", "thinking": "a"}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "a"}]},
    ],
)
def test_reasoning_in_any_field_is_reasoning(delta: dict[str, Any]) -> None:
    assert read(delta, {"thought_signature": "x", "reasoning_effort": "low"})[:1] == [ReasoningDelta("a")]


def test_a_call_may_be_a_part_of_the_content_or_stand_in_the_choice() -> None:
    part = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}
    assert CallComplete(0, "c", "f", '{"a": 1}') in read({"content": [part]}, reason="stop")
    reader = ChunkReader()
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    events = [{"choices": [None]}, {"choices": [{"tool_calls": [call], "finish_reason": "stop"}]}]
    assert CallStarted(0, "c", "f") in [delta for event in events for delta in reader.read(event)]


@pytest.mark.parametrize(
    "event",
    [
        {"x_groq": {"usage": {"prompt_tokens": 2, "completion_tokens": 3}}},
        {"choices": [{"delta": {"usage": {"input_tokens": 2, "output_tokens": 3}}}]},
        {"choices": [{"usage": {"prompt_tokens": 2, "completion_tokens": 3}}]},
    ],
)
def test_usage_may_stand_anywhere(event: dict[str, Any]) -> None:
    reader = ChunkReader()
    found = [*reader.read({"choices": [{"delta": {}, "finish_reason": "stop"}]}), *reader.read(event)]
    assert Usage(2, 3) in [*found, *reader.finish()]


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        (
            ("stop", "STOP", "eos", "eos_token", "end_turn", "FINISH_REASON_STOP", "stopSequence", "completed", "1"),
            "stop",
        ),
        (("tool_use", "toolCalls", "function_call", "end_of_sequence", "model_stop", True, 1), "stop"),
        (("end_of_text", "EndOfText", "eom", "stop_string"), "stop"),
        (
            ("length", "max_tokens", "MAX_TOKENS", "LENGTH", "maxTokens", "model_length", "context_window_exceeded"),
            "length",
        ),
        (("content_filter", "SAFETY", "PROHIBITED_CONTENT", "recitation", "sensitive"), "content_filter"),
        (("error", "MALFORMED_FUNCTION_CALL", "function_call_filter: MALFORMED_FUNCTION_CALL", "whatever"), ""),
    ],
)
def test_a_finish_reason_counts_in_any_spelling_and_an_unknown_one_is_a_failure(
    reasons: tuple[object, ...], expected: str
) -> None:
    assert {str(reason): finish_reason(reason) for reason in reasons} == dict.fromkeys(map(str, reasons), expected)


@pytest.mark.parametrize("reason", ["error", "OTHER", "network_error"])
def test_no_call_of_an_answer_that_failed_is_yielded_and_the_reason_is_named(reason: str) -> None:
    reader = ChunkReader()
    delta = {"content": "b", **piece("f", "{}")}
    assert [type(each) for each in reader.read({"choices": [{"delta": delta, "finish_reason": reason}]})][:1] == [
        TextDelta
    ]
    with pytest.raises(ModelError) as caught:
        list(reader.finish())
    assert reason in caught.value.detail


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"choices": None}, {"status": "ok"}])
def test_an_answer_without_a_choice_is_a_failure(body: dict[str, Any]) -> None:
    reader = ChunkReader()
    assert list(reader.read_whole(body)) == []
    with pytest.raises(ModelError, match="without a choice"):
        list(reader.finish())


@pytest.mark.parametrize(
    "pieces",
    [
        [{"index": 0, "function": {"name": "f", "parameters": {"a": 1}}}],
        [{"index": 0, "name": "f", "arguments": '{"a": 1}'}],
        [{"index": 0, "function": "f", "arguments": '{"a": 1}'}],
        [{"index": 0, "function": '{"name": "f", "arguments": {"a": 1}}'}],
        [{"index": 0, "type": "custom", "custom": {"name": "f", "input": '{"a": 1}'}}],
        [{"index": 0, "function": {"name": "f", "arguments": ""}}, {"index": 1, "function": {"arguments": '{"a": 1}'}}],
        [{"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a": 1}'[:end]}} for end in (3, 6, 8)],
        [
            None,
            {"index": 0, "function": {"name": "f", "arguments": '{"a": 1}'}},
            {"index": 1, "id": "", "function": {}},
        ],
    ],
)
def test_a_call_in_another_shape_is_the_same_call(pieces: list[Any]) -> None:
    assert calls(read(*({"tool_calls": [each]} for each in pieces))) == [("f", '{"a": 1}')]


TWO = [("f", '{"a":1}'), ("g", "{}")]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        pytest.param([piece("f", '{"a"', index=0, id="1"), piece(None, ":1}", index=0)], TWO[:1], id="as documented"),
        pytest.param([piece("f", "", index=0, id="1"), piece(None, '{"a":1}', index=0)], TWO[:1], id="name first"),
        pytest.param([piece("f", '{"a":1}', index=0)], TWO[:1], id="no id"),
        pytest.param([piece("f", '{"a":1}')], TWO[:1], id="no id, no index"),
        pytest.param([piece("f", '{"a"'), piece(None, ":1}")], TWO[:1], id="no index, in pieces"),
        pytest.param([piece("f", {"a": 1}, index=0)], [("f", '{"a": 1}')], id="arguments as an object"),
        pytest.param(
            [piece("lo", index=0, id="1"), piece("ng", "", index=0), piece(None, "{}", index=0)],
            [("long", "{}")],
            id="name in pieces",
        ),
        pytest.param(
            [piece("f", '{"a"', index=0, id="1"), piece("f", ":1}", index=0, id="1")], TWO[:1], id="name repeated"
        ),
        pytest.param(
            [piece("f", "", index=0, id="1"), piece("f", '{"a":1}', index=0, id="1")], TWO[:1], id="name repeated early"
        ),
        pytest.param([piece("f", '{"a":1}', index=0, id="1"), piece("g", "{}", index=1, id="2")], TWO, id="two"),
        pytest.param([piece("f", '{"a":1}', index=0, id="1"), piece("g", "{}", index=0, id="2")], TWO, id="same index"),
        pytest.param([piece("f", '{"a":1}', id="1"), piece("g", "{}", id="2")], TWO, id="two, no index"),
        pytest.param([piece("f", '{"a":1}'), piece("g", "{}")], TWO, id="two, no index, no id"),
        pytest.param(
            [
                piece("f", '{"a"', index=0, id="1"),
                piece("g", "{", index=1, id="2"),
                piece(None, ":1}", index=0),
                piece(None, "}", index=1),
            ],
            TWO,
            id="interleaved",
        ),
        pytest.param([piece("f", index=0, id="1")], [("f", "")], id="no arguments"),
        pytest.param(
            [piece("f", '{"a":1}', index=0, id=""), piece("g", "{}", index=0, id="")], TWO, id="same index, empty ids"
        ),
        pytest.param(
            [piece("f", '{"a', index=0, id="1"), piece("f", '":', index=0, id="2"), piece("f", "1}", index=0, id="3")],
            TWO[:1],
            id="an id for every piece",
        ),
        pytest.param(
            [piece("f", '{"a', id="1"), piece("f", '":1}', id="2")], TWO[:1], id="an id for every piece, no index"
        ),
        pytest.param(
            [piece("f", '{"a":1}', index=0, id="1"), piece("f", '{"a":1}', index=0, id="2")],
            TWO[:1] * 2,
            id="same index, same name",
        ),
        pytest.param(
            [piece("f", '{"a":"}', index=0), piece("f", '\\\\"', index=0), piece("f", "}", index=0)],
            [("f", '{"a":"}\\\\"}')],
            id="name repeated, a brace in a string",
        ),
        pytest.param(
            [piece("f", '{"a":1}', index=0), piece("f", "", index=0)], TWO[:1], id="name repeated after the end"
        ),
        pytest.param(
            [piece("f", '{"a"', index=0, id="1"), piece(None, ":1}", index=0), piece(None, '{"a":1}', index=0)],
            TWO[:1],
            id="whole again at the end",
        ),
        pytest.param([piece("f", '{"a":1}{"a": 1} \n', index=0, id="1")], TWO[:1], id="twice in one piece"),
        pytest.param(
            [piece("f", "{}", index=0, id="1"), piece(None, '{"a"', index=0), piece(None, ":1}", index=0)],
            TWO[:1],
            id="an empty object first",
        ),
        pytest.param(
            [piece("f", "{}", index=0), piece(None, "{}", index=0)], [("f", "{}")], id="an empty object twice"
        ),
        pytest.param(
            [piece("f", '{"a":1}<|c', index=0, id="1"), piece(None, "all|>", index=0)], TWO[:1], id="a token behind"
        ),
        pytest.param([piece("f", '{"a":1}[END]', index=0)], TWO[:1], id="capitals behind"),
        pytest.param([piece("f", "{1, 2}\n[KEY]", index=0)], [("f", "{1, 2}\n[KEY]")], id="code behind a set"),
        pytest.param([piece("f", "{1, 2}\n[[col]]", index=0)], [("f", "{1, 2}\n[[col]]")], id="a list behind a set"),
        pytest.param([piece("f", '{"a":1}', index=0, id="1")] * 2, TWO[:1], id="the whole call again"),
        pytest.param(
            [piece("f", '{"a"', index=0, id="1"), piece(None, ":1}", index=0), piece("f", '{"a":1}', index=0, id="1")],
            TWO[:1],
            id="the whole call again at the end",
        ),
        pytest.param(
            [piece("f", '{"a":1} {"b"', index=0), piece(None, ":2}", index=0)],
            [("f", '{"a":1} {"b":2}')],
            id="another object",
        ),
        pytest.param(
            [piece("f", '{"a":1}', index=0), piece(None, ", 2", index=0)], [("f", '{"a":1}, 2')], id="text behind"
        ),
        pytest.param(
            [piece("f", 'print({"a":1})', index=0), piece(None, '{"a":1}', index=0)],
            [("f", 'print({"a":1}){"a":1}')],
            id="an object in text",
        ),
        pytest.param([{"function_call": {"name": "f", "arguments": '{"a":1}'}}], TWO[:1], id="before there were tools"),
        pytest.param(
            [piece(None, '{"a"', index=0, id="1"), piece(None, ":1}", index=0), piece("f", index=0)],
            TWO[:1],
            id="name last",
        ),
        pytest.param(
            [piece(None, '{"a"', id="1"), piece(None, ":1}", id="1"), piece("f", "", id="1")],
            TWO[:1],
            id="name last, no index",
        ),
        pytest.param(
            [piece("f", '{"a"', index=0, id="1"), piece(None, ":", index=1), piece(None, "1}", index=2)],
            TWO[:1],
            id="an index for every piece",
        ),
        pytest.param(
            [piece("f", "", id="1"), piece("g", "", id="2"), piece(None, '{"a":1}', id="1"), piece(None, "{}", id="2")],
            TWO,
            id="interleaved, no index",
        ),
        pytest.param([piece("f", '{"a":1}', index=0), piece("", "{}", index=1)], TWO[:1], id="an empty one behind"),
        pytest.param([piece("f", '{"a":1}}', index=0, id="1")], TWO[:1], id="a brace too many"),
    ],
)
def test_calls(pieces: list[dict[str, Any]], expected: list[tuple[str, str]]) -> None:
    assert calls(read(*pieces)) == expected


def test_the_whole_message_after_its_pieces_is_no_second_one() -> None:
    message = {"content": "a", "reasoning_content": "b", **piece("f", "{}", index=0, id="c")}
    reader = ChunkReader()
    events = [{"choices": [{"delta": message}]}, {"choices": [{"message": message, "finish_reason": "stop"}]}]
    deltas = [*(delta for event in events for delta in reader.read(event)), *reader.finish()]
    assert (calls(deltas), deltas.count(TextDelta("a")), deltas.count(ReasoningDelta("b"))) == ([("f", "{}")], 1, 1)


@pytest.mark.parametrize("reason", [{"finish_reason": "null"}, {"finish_reason": "None"}, {"finish_reason": ""}])
def test_words_for_no_finish_reason_are_none(reason: dict[str, Any]) -> None:
    reader = ChunkReader()
    list(reader.read({"choices": [{"delta": {"content": "a"}, **reason}]}))
    assert not reader.is_over
    list(reader.read({"choices": [{"delta": {}, "finishReason": "STOP"}]}))
    assert reader.is_over


def test_content_in_parts_is_text_and_reasoning() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "a"}]},
        {"type": "text", "text": "b"},
        {"type": "reference", "reference_ids": [1]},
    ]
    assert read({"content": parts}, {"content": [{"type": "thinking", "thinking": "c"}]}, reason="stop") == [
        ReasoningDelta("a"),
        TextDelta("b"),
        ReasoningDelta("c"),
        Finish("stop"),
    ]


def test_tokens_go_with_their_text_and_not_with_reasoning() -> None:
    reader = ChunkReader()

    def chunk(text: str) -> list[Delta]:
        choice = {"delta": {"content": text}, "logprobs": {"content": [{"token": text}, 5]}}
        return list(reader.read({"choices": [choice]}))

    assert chunk("<think>") == chunk("</thi") == []
    assert chunk("nk>") == []
    assert chunk("b") == [TextDelta("b", ({"token": "b"},))]


def test_the_last_usage_counts() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
    reader = ChunkReader()
    list(reader.read({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}}))
    list(reader.read({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": usage}))
    assert list(reader.finish()) == [Usage(7, 3, 2), Finish("stop")]


@pytest.mark.parametrize(
    "count", ["seven", "7" * 20, 7.5, -7, True, None, [7], {"a": 7}, 10**400, math.inf, math.nan, 1e300, MAX_TOKENS + 1]
)
def test_tokens_that_are_no_numbers_are_none(count: object) -> None:
    for usage in ({"prompt_tokens": count, "completion_tokens": 3, "prompt_tokens_details": count}, [count], count):
        found = usage_of(usage)
        assert (found.input_tokens, found.cached_tokens) == (0, 0)
    assert usage_of({"prompt_tokens": MAX_TOKENS}).input_tokens == MAX_TOKENS
    assert usage_of({"prompt_tokens": 10.0}).input_tokens == usage_of({"prompt_tokens": "10"}).input_tokens == 10


def test_no_usage_is_none() -> None:
    assert read({"content": "a"}, reason="stop", usage=None) == [TextDelta("a"), Finish("stop")]


@pytest.mark.parametrize("reason", ["tool_calls", "function_call"])
def test_calls_are_no_reason_to_end_where_there_are_none(reason: str) -> None:
    assert read({"content": "a"}, reason=reason)[-1] == Finish("stop")
    assert read(piece("f", "{}", index=0), reason=reason)[-1] == Finish("tool_calls")
    assert read({"function_call": {"name": "f", "arguments": "{}"}}, reason=reason)[-1] == Finish("tool_calls")


def test_usages_add_up() -> None:
    assert Usage(1, 2, 3, 4) + Usage(10, 20, 30, 40) == Usage(11, 22, 33, 44)
    assert Usage(1, 2).total_tokens == 3


def test_only_the_first_choice_is_read() -> None:
    reader = ChunkReader()
    assert list(reader.read({"choices": [{"index": 1, "delta": {"content": "b"}}]})) == []


MIB = 2**20


@pytest.mark.parametrize(
    "delta",
    [
        piece("never_offered", "a" * MIB, index=0),
        piece("never_offered", ["a" * MIB], index=0),
        {"function_call": {"name": "f", "arguments": "a" * MIB}},
        {"content": "a" * MIB},
        {"reasoning": "a" * MIB},
    ],
    ids=["arguments", "arguments as a list", "a function call", "text", "reasoning"],
)
def test_a_reply_without_an_end_is_not_read_on(delta: dict[str, Any]) -> None:
    reader, chunk = ChunkReader(), {"choices": [{"delta": delta}]}
    for _ in range(63):
        list(reader.read(chunk))
    with pytest.raises(ModelError, match="67,108,864 bytes"):
        [list(reader.read(chunk)) for _ in range(2)]


def test_a_name_without_an_end_is_not_read_on() -> None:
    with pytest.raises(ModelError, match="name of more than 1,000 characters"):
        read(*[piece("ab", index=0), piece("c", index=0)] * 334)


def test_a_reply_has_not_more_calls_than_anyone_makes() -> None:
    pieces = [piece("f", "{}", index=index) for index in range(128)]
    assert len(calls(read(*pieces, *[piece(None, " ", index=index) for index in range(128)]))) == 128
    for more in ({"index": 128}, {"index": 0, "id": "another"}, {}):
        with pytest.raises(ModelError, match="more than 128 calls"):
            read(piece("f", "{}", index=0, id="1"), *pieces[1:], piece("f", "{}", **more))


def fields(deltas: list[Delta]) -> tuple[Any, list[Any]]:
    """What goes back to the server: of the message, and of each call."""
    (finish,) = [delta for delta in deltas if isinstance(delta, Finish)]
    return finish.more, [delta.more for delta in deltas if isinstance(delta, CallComplete)]


def test_unknown_fields_of_calls_are_kept_as_they_come() -> None:
    signed = {"google": {"thought_signature": "a/+="}}
    first = piece("f", "{}", index=0, id="1", type="function", extra_content=signed, nothing=None)
    first["tool_calls"][0]["function"]["provider"] = [1]
    again = {"tool_calls": [{"index": 0, "late": "b", "extra_content": signed}]}
    assert fields(read(first, piece("g", "{}", index=1, id="2"), again)) == (
        {},
        [{"extra_content": signed, "function": {"provider": [1]}, "late": "b"}, {}],
    )


@pytest.mark.parametrize("name", ["reasoning_details", "thinking_blocks"])
def test_blocks_of_reasoning_are_joined_from_their_pieces(name: str) -> None:
    def block(**more: Any) -> dict[str, Any]:
        return {"type": "thinking", **more}

    for chunks, joined in (
        ([[block(thinking="a")], [block(thinking="b", signature="s")]], [block(thinking="ab", signature="s")]),
        ([[block(thinking="a", signature="s")], [block(thinking="b")]], None),
        ([[block(thinking="a"), block(thinking="b")]], None),
        (
            [[block(text="a", index=0)], [block(text="c", index=1)], [block(text="b", index=0)]],
            [block(text="ab", index=0), block(text="c", index=1)],
        ),
        (
            [
                [block(thinking="a")],
                [{"type": "redacted_thinking", "data": "d"}],
                [{"type": "redacted_thinking", "data": "e"}],
            ],
            None,
        ),
        ([[block(text=None, id=None)], [block(text="a", id="i")]], [block(text="a", id="i")]),
    ):
        whole = joined or [each for chunk in chunks for each in chunk]
        assert fields(read(*({name: chunk} for chunk in chunks))) == ({name: whole}, [])


def test_too_many_unknown_fields_are_dropped_and_the_reply_goes_on() -> None:
    deltas = read({"content": "a"}, *({"thinking_blocks": [{"type": "t", "data": "d" * 1000}]} for _ in range(1_000)))
    assert fields(deltas) == ({}, [])
    assert deltas[0] == TextDelta("a")
    deep: Any = []
    for _ in range(100_000):  # more than the C stack of any Python has room for
        deep = [deep]
    assert fields(read(piece("f", "{}", index=0, extra=deep)))[1] == [{}]


def test_a_reply_without_an_end_of_thinking_is_the_answer_after_all() -> None:
    heard: dict[str, str] = {}
    reader = ChunkReader(thinking="opened", hear=heard.__setitem__)
    found = [
        *reader.read({"choices": [{"delta": {"content": "It is 42."}, "finish_reason": "stop"}]}),
        *reader.finish(),
    ]
    assert found == [ReasoningDelta("It is 42."), TextDelta("It is 42."), Finish("stop")]
    assert heard == {"thinking": "tagged"}
    cut = ChunkReader(thinking="opened")
    found = [*cut.read({"choices": [{"delta": {"content": "I do"}, "finish_reason": "length"}]}), *cut.finish()]
    assert found == [ReasoningDelta("I do"), Finish("length")]


def test_a_reader_is_freed_with_its_last_reference() -> None:
    gc.disable()
    try:
        reader = ChunkReader()
        list(reader.read({"choices": [{"delta": piece("f", "{}"), "finish_reason": "stop"}]}))
        kept = weakref.ref(reader)
        del reader
        assert kept() is None
    finally:
        gc.enable()
