import dataclasses
import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.errors import ProtocolViolation
from agent_tools.guest.kernel.session import _shorten
from agent_tools.guest.wire.messages import CONTROL, IOPUB, SHELL, STDIN, MessageReader
from agent_tools.limits import MIB, Limits
from agent_tools.results.execution import Cleared, Display, Error, Omitted, Output, Result, Stream
from agent_tools.runtime.kernel.protocol import (
    MAX_ERROR_CHARS,
    MAX_HEADER_BYTES,
    MAX_JSON_NODES,
    MAX_MARKS,
    MAX_TEXT_CHARS,
    PARENTS,
    KernelMessage,
    _parent_id,
    execute_request,
    outputs_of,
    read_bundle,
    read_error,
    read_message,
)
from tests.settled import settle

LIMITS = Limits()
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
HEADER: dict[str, Any] = {
    "msg_id": "m",
    "msg_type": "stream",
    "username": "u",
    "session": "s",
    "date": "2024-01-01T00:00:00.000000Z",
    "version": "5.3",
}
KINDS = ["stream", "display_data", "update_display_data", "execute_result", "error", "clear_output"]


def parts_of(
    header: Any = HEADER, parent: Any = b'{"msg_id": "r"}', metadata: Any = b"{}", content: Any = b"{}"
) -> list[bytes]:
    """The parts of a message; each as JSON, or as the bytes to put in its place."""
    parts = (header, parent, metadata, content)
    return [part if isinstance(part, bytes) else json.dumps(part).encode() for part in parts]


def read(parts: list[bytes]) -> KernelMessage:
    return read_message(IOPUB, parts)


def shown(kind: str, content: dict[str, Any], limits: Limits = LIMITS) -> list[Output]:
    return list(outputs_of(KernelMessage(IOPUB, kind, "r", content), limits))


def texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from texts_in(key)
            yield from texts_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from texts_in(item)
    elif dataclasses.is_dataclass(value):
        yield from texts_in(list(vars(value).values()))


# --- requests ---


def test_a_request_is_one_message_on_the_shell_channel() -> None:
    request_id, data = execute_request("1", 2.5, is_silent=True)
    ((channel, parts),) = MessageReader(MIB).feed(data)
    header, parent, metadata, content = map(json.loads, parts)
    assert (channel, parent, metadata) == (SHELL, {}, {"timeout": 2.5, "is_unwatched": True})
    assert (header["msg_id"], header["msg_type"], header["version"]) == (request_id, "execute_request", "5.4")
    assert (content["code"], content["silent"], content["store_history"]) == ("1", True, False)


@pytest.mark.parametrize(
    "code", ["", "\0", "\ud800", "中" * 100_000, '"\\'], ids=["empty", "NUL", "half", "wide", "quotes"]
)
def test_any_code_can_be_asked_for(code: str) -> None:
    ((_, parts),) = MessageReader(MIB).feed(execute_request(code, 1, is_silent=False)[1])
    assert json.loads(parts[3])["code"] == code


# --- parts to messages ---


@pytest.mark.parametrize("channel", [SHELL, IOPUB, CONTROL, STDIN])
def test_a_message_is_read(channel: int) -> None:
    content = {"name": "stdout", "text": "hi 中文"}
    request_id, _ = execute_request("1", 1, is_silent=False)
    message = read_message(channel, parts_of(parent={"msg_id": request_id}, content=content))
    assert message == KernelMessage(channel, "stream", request_id, content)


def test_buffers_after_a_message_are_ignored() -> None:
    assert read([*parts_of(), b"buffer", b"", *[b"\xff"] * 58]).kind == "stream"


def test_metadata_are_ignored() -> None:
    for metadata in (b"", b"{", b"\xff", b"[" * 50_000, b"9" * 10_000, b"null"):
        assert read(parts_of(metadata=metadata)) == KernelMessage(IOPUB, "stream", "r", {})


def test_a_message_sent_again_is_read_again() -> None:
    assert read(parts_of()) == read(parts_of())


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([b""] * 4, id="four empty parts"),
        pytest.param([b""] * 64, id="64 empty parts"),
        pytest.param([b"<IDS|MSG>", b"0" * 64, *parts_of()], id="a signed message"),
        pytest.param([b"kernel.1.stream", *parts_of()], id="a topic"),
        pytest.param(parts_of()[::-1], id="the other way round"),
        pytest.param([*parts_of()[1:], b"{}"], id="no header"),
    ],
)
def test_parts_that_are_no_message_are_a_violation(parts: list[bytes]) -> None:
    with pytest.raises(ProtocolViolation):
        read(parts)


BROKEN_PARTS = [
    pytest.param(b"", id="empty"),
    pytest.param(b"{", id="cut off"),
    pytest.param(b"\x00", id="NUL"),
    pytest.param(b"\xff\xfe{}", id="invalid UTF-8"),
    pytest.param(b"[" * 200_000, id="200k open lists"),
    pytest.param(b"[" * 200_000 + b"]" * 200_000, id="200k nested lists"),
    pytest.param(b'{"a":' * 200_000 + b"1" + b"}" * 200_000, id="200k nested objects"),
    pytest.param(b'{"a":' + b"9" * 10_000 + b"}", id="10,000-digit number"),
]


@pytest.mark.parametrize("name", ["header", "parent", "content"])
@pytest.mark.parametrize("part", BROKEN_PARTS)
def test_a_part_that_is_no_json_is_a_violation(name: str, part: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        read(parts_of(**{name: part}))


@pytest.mark.parametrize("content", [b"null", b"[]", b'"text"', b"5", b"true", b"NaN"], ids=bytes.decode)
def test_content_that_is_no_object_is_a_violation(content: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        read(parts_of(content=content))


@pytest.mark.parametrize(
    "header",
    [
        pytest.param([], id="list"),
        pytest.param(b"null", id="null"),
        pytest.param("text", id="text"),
        pytest.param(5, id="number"),
        pytest.param({}, id="empty"),
        pytest.param({**HEADER, "msg_type": 5}, id="msg_type is a number"),
        pytest.param({**HEADER, "msg_type": None}, id="msg_type is null"),
        pytest.param({**HEADER, "msg_type": ["stream"]}, id="msg_type is a list"),
        pytest.param(b'{"msg_type": "stream", "msg_type": 5}', id="msg_type is a number the second time"),
        pytest.param(b'{"msg_type": NaN}', id="msg_type is NaN"),
        pytest.param(b'{"msg_type": ' + b"9" * 4000 + b"}", id="msg_type is a huge number"),
    ],
)
def test_a_header_without_a_type_is_a_violation(header: Any) -> None:
    with pytest.raises(ProtocolViolation):
        read(parts_of(header=header))


ODD_DATES = ["2024-01-01T00:00:00", "0001-01-01T00:00:00", "9999-99-99T99:99:99Z", None, 5, "soon", []]


@pytest.mark.parametrize("date", ODD_DATES, ids=str)
def test_an_odd_date_is_ignored(date: object) -> None:
    assert read(parts_of(header={**HEADER, "date": date})).kind == "stream"


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        pytest.param(b'{"msg_type": 5, "msg_type": "error"}', "error", id="the last of two types"),
        pytest.param(b'{"msg_type": "error", "n": NaN, "i": -Infinity}', "error", id="NaN"),
        pytest.param(b'{"msg_type": "error", "n": ' + b"9" * 4000 + b"}", "error", id="a huge number"),
        pytest.param(b'{"msg_type": "e\xff"}', "e\ufffd", id="no UTF-8 in the type"),
        pytest.param(b' \n{"msg_type": "error"}\t ', "error", id="white space around it"),
    ],
)
def test_an_odd_header_with_a_type_is_read(header: bytes, kind: str) -> None:
    assert read(parts_of(header=header)).kind == kind


@pytest.mark.parametrize("version", ["4.1", "5.4", "6.0", "-1", "five", 5, None], ids=repr)
@pytest.mark.parametrize("kind", [*KINDS, "pyout", "pyerr", "execute_reply", "complete_reply", "input_request"])
def test_another_version_of_the_protocol_is_read_as_ours(version: object, kind: str) -> None:
    for content in ({}, {"data": 5, "text": [], "payload": 5, "ename": {}}, {"payload": [1], "data": {"a": 5}}):
        message = read(parts_of({**HEADER, "version": version, "msg_type": kind}, content=content))
        assert message == KernelMessage(IOPUB, kind, "r", content)


@pytest.mark.parametrize(
    "parent",
    [b"null", b"[]", b"{}", b'"text"', b"5", b"NaN", b'{"msg_id": 5}', b'{"msg_id": null}', b'{"msg_id": ["r"]}'],
    ids=bytes.decode,
)
def test_a_parent_that_names_no_request_gives_no_id(parent: bytes) -> None:
    assert read(parts_of(parent=parent)).parent_id == ""


def test_parents_are_told_apart_however_many_there_are_and_few_are_remembered() -> None:
    for _ in range(2):
        for number in range(3 * PARENTS):
            assert read(parts_of(parent=b'{"msg_id": "r%d"}' % number)).parent_id == f"r{number}"
            with pytest.raises(ProtocolViolation):
                read(parts_of(parent=b'{"msg_id": "r%d"' % number))
    assert _parent_id.cache_info().currsize == PARENTS


PART = st.binary(max_size=20) | st.sampled_from([b"{}", b"[]", b"null", b'{"a": NaN}', json.dumps(HEADER).encode()])


@given(st.lists(PART, min_size=4, max_size=12))
def test_arbitrary_parts_raise_only_violations(parts: list[bytes]) -> None:
    try:
        message = read(parts)
    except ProtocolViolation:
        return
    assert isinstance(message.content, dict)
    assert isinstance(message.kind, str)


DISPLAYS = ["stream", "execute_result", "display_data", "update_display_data"]


def display_of(json_value: bytes, kind: str = "display_data") -> list[bytes]:
    content = b'{"data": {"application/json": ' + json_value + b"}}"
    return parts_of({**HEADER, "msg_type": kind}, content=content)


@pytest.mark.parametrize("kind", DISPLAYS)
@pytest.mark.parametrize(
    "costly", [b"[" + b"0," * MAX_MARKS + b"0]", b"[" * MAX_MARKS, b"{" * MAX_MARKS], ids=["numbers", "lists", "dicts"]
)
def test_a_content_that_is_costly_to_read_is_noted_and_not_parsed(kind: str, costly: bytes) -> None:
    parts = display_of(costly, kind)
    note = Omitted(f"a message of {len(parts[-1]):,} bytes that would be costly to read")
    message = read(parts)
    assert (message.kind, message.parent_id) == (kind, "r")
    assert list(outputs_of(message, LIMITS)) == [note]


@pytest.mark.parametrize("claimed", [5, "x", [], {}, None, float("nan")], ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_a_content_cannot_claim_to_be_costly(kind: str, claimed: object) -> None:
    message = read(parts_of({**HEADER, "msg_type": kind}, content={"omitted": claimed, "unread": claimed}))
    assert list(outputs_of(message, LIMITS)) == shown(kind, {})


@pytest.mark.parametrize("kind", ["execute_reply", "status"])
def test_another_content_that_is_costly_to_read_shows_nothing(kind: str) -> None:
    message = read(display_of(b"[" * MAX_MARKS, kind))
    assert list(outputs_of(message, LIMITS)) == []


def test_a_content_with_as_many_marks_as_may_be_is_read() -> None:
    numbers = b"[" + b"0," * (MAX_MARKS - 3) + b"0]"
    message = read(display_of(numbers))
    assert len(message.content["data"]["application/json"]) == MAX_MARKS - 2


def test_a_long_text_without_marks_is_read() -> None:
    text = "x" * (MAX_MARKS * 4)
    assert read(parts_of(content={"text": text})).content == {"text": text}


def test_a_costly_content_with_a_broken_header_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation):
        read([b"{", *display_of(b"[" * MAX_MARKS)[1:]])


N = 15 * MIB
WIDE = {"raw": "\U0001f600".encode(), "escaped": b"\\ud83d\\ude00"}


@pytest.mark.parametrize("wide", WIDE.values(), ids=WIDE.keys())
def test_a_long_text_that_one_character_makes_four_times_as_long_in_memory_is_noted(wide: bytes) -> None:
    message = read(parts_of(content=b'{"text": "' + b"x" * N + wide + b'"}'))
    assert list(outputs_of(message, LIMITS)) == [
        Omitted(f"a message of {N + len(wide) + 12:,} bytes that would be costly to read")
    ]


@pytest.mark.parametrize("text", [b"x" * N, b"\xc3\xa9" * (N // 2), b"\xe4\xb8\xad" * MIB, b"\\u00e9" * MIB])
def test_a_long_text_of_one_width_is_read(text: bytes) -> None:
    message = read(parts_of(content=b'{"text": "' + text + b'"}'))
    assert message.content == {"text": json.loads(b'"' + text + b'"')}


def bundle(mime: str, value: bytes) -> bytes:
    return b'{"data": {"' + mime.encode() + b'": ' + value + b"}}"


@pytest.mark.cost
@pytest.mark.parametrize(
    ("kind", "make"),
    [
        pytest.param("stream", lambda: b'{"text": "\\u001b' + b"x" * N + b'"}', id="text"),
        pytest.param(
            "stream", lambda: b'{"text": "\\u001b' + b"x" * (8 * MIB - 99) + b'\xe4\xb8\xad"}', id="wide text"
        ),
        pytest.param("display_data", lambda: bundle("text/html", b'"\\u001b' + b"x" * N + b'\xc3\xa9"'), id="HTML"),
        pytest.param("display_data", lambda: bundle("text/plain", b'"\\u001b' + b"x" * N + b'\xc3\xa9"'), id="plain"),
        pytest.param("display_data", lambda: bundle("application/json", b'["\\u001b' + b"x" * N + b'"]'), id="JSON"),
        pytest.param("display_data", lambda: bundle("image/png", b'"' + b"ab " * (N // 3) + b'"'), id="picture"),
        pytest.param("error", lambda: b'{"traceback": ["\\u001b' + b"x" * N + b'\xc3\xa9"]}', id="traceback"),
    ],
)
def test_reading_the_largest_message_takes_a_few_times_its_size(kind: str, make: Callable[[], bytes]) -> None:
    parts = parts_of({**HEADER, "msg_type": kind}, content=make())
    tracemalloc.start()
    shown = list(outputs_of(read(parts), LIMITS))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(shown) >= 1
    assert peak < 4 * LIMITS.max_message_bytes


def test_a_value_far_too_long_keeps_its_ends() -> None:
    (error,) = shown("error", {"evalue": "a" + "x" * (2 * MIB) + "\x1b[31mz"})
    assert isinstance(error, Error)
    assert (error.value[0], error.value[-1]) == ("a", "z")
    assert "characters left out" in error.value
    assert len(error.value) <= MAX_ERROR_CHARS + 100


@pytest.mark.parametrize("size", [200_000, 1_000_000, 5_000_000])
def test_characters_that_the_guest_has_left_out_are_counted(size: int) -> None:
    content: dict[str, Any] = {"evalue": "x" * size, "traceback": ["File", "x" * (size - 5)]}
    _shorten(content)
    (error,) = shown("error", content)
    assert isinstance(error, Error)
    note = f"[... {size - MAX_ERROR_CHARS:,} characters left out ...]"
    assert [text.split("\n")[1] for text in (error.value, error.traceback.removeprefix("File\n"))] == [note, note]
    content = {"data": {"text/plain": "x" * size}}
    _shorten(content)
    data, _ = read_bundle(content["data"], Limits(max_text_chars=10))
    assert data["text/plain"] == f"xxxxx\n[... {size - 10:,} characters left out ...]\nxxxxx"


def test_a_very_long_stream_text_comes_whole_in_pieces() -> None:
    text = "".join(f"{number}," for number in range(400_000))
    streams = shown("stream", {"name": "stderr", "text": text})
    assert [len(stream.text) for stream in streams[:-1]] == [MAX_TEXT_CHARS] * 2  # type: ignore[union-attr]
    assert settle(streams) == (Stream("stderr", text),)


def padded(size: int) -> bytes:
    """A header, parent and metadata in one, of so many bytes."""
    base = json.dumps({**HEADER, "username": ""}).encode()
    return base.replace(b'"username": ""', b'"username": "' + b"x" * (size - len(base)) + b'"')


@pytest.mark.parametrize("name", ["header", "parent", "metadata"])
def test_a_header_that_is_too_long_is_a_violation(name: str) -> None:
    read(parts_of(**{name: padded(MAX_HEADER_BYTES)}))
    with pytest.raises(ProtocolViolation, match="a header that is too long"):
        read(parts_of(**{name: padded(MAX_HEADER_BYTES + 1)}))


# --- messages to outputs ---


@pytest.mark.parametrize(
    ("kind", "content", "outputs"),
    [
        ("stream", {"name": "stdout", "text": "a"}, [Stream("stdout", "a")]),
        ("stream", {"name": "stderr", "text": "a"}, [Stream("stderr", "a")]),
        ("stream", {"name": "other", "text": "a"}, [Stream("stdout", "a")]),
        ("stream", {"name": "stdout", "text": ["a\n", "b"]}, [Stream("stdout", "a\nb")]),
        ("execute_result", {"data": {"text/plain": "4"}}, [Result({"text/plain": "4"})]),
        ("display_data", {"data": {"text/plain": "d"}}, [Display({"text/plain": "d"})]),
        ("clear_output", {"wait": True}, [Cleared(wait=True)]),
        ("clear_output", {"wait": False}, [Cleared()]),
        ("error", {"ename": "E", "evalue": "v", "traceback": ["a", "b"]}, [Error("E", "v", "a\nb")]),
        ("status", {"execution_state": "idle"}, []),
        ("comm_open", {"data": {}}, []),
        ("", {}, []),
    ],
)
def test_what_a_message_shows(kind: str, content: dict[str, Any], outputs: list[Output]) -> None:
    assert shown(kind, content) == outputs


def test_display_ids_are_read() -> None:
    content = {"data": {}, "transient": {"display_id": "i"}}
    assert shown("display_data", content) == [Display({}, "i")]
    assert shown("update_display_data", content) == [Display({}, "i", is_update=True)]


def test_pictures_are_read_as_bytes() -> None:
    (result,) = shown("execute_result", {"data": {"image/png": PNG, "text/plain": "<Figure>"}})
    assert isinstance(result, Result)
    assert result.data["image/png"].startswith(b"\x89PNG")
    assert result.text == "<Figure>"


def test_a_refused_picture_leaves_the_rest_and_a_note() -> None:
    outputs = shown("display_data", {"data": {"image/png": "!", "text/plain": "<Figure>"}})
    assert outputs == [Display({"text/plain": "<Figure>"}), Omitted("a picture (not base64 text)")]


@pytest.mark.parametrize("mime", ["text/html", "image/svg+xml", "text/latex"])
def test_a_rich_text_that_is_too_long_leaves_a_note(mime: str) -> None:
    data, notes = read_bundle({mime: "x" * 1001}, Limits(max_rich_chars=1000))
    assert data == {}
    assert notes == [Omitted(f"{mime} of 1,001 characters")]


@pytest.mark.parametrize("mime", ["application/json", "application/geo+json", "application/vnd.vegalite.v6.json"])
def test_json_is_read_under_every_name_that_ends_so(mime: str) -> None:
    assert read_bundle({mime: {"a": [1]}}, LIMITS) == ({mime: {"a": [1]}}, [])


def test_json_that_is_too_long_leaves_a_note() -> None:
    data, notes = read_bundle({"application/vnd.plotly.v1+json": ["x" * 1001]}, Limits(max_rich_chars=1000))
    assert data == {}
    assert len(notes) == 1


@pytest.mark.parametrize("wrap", [list, lambda parts: [list(parts)], lambda parts: dict.fromkeys(map(str, parts), 0)])
def test_json_of_too_many_parts_leaves_a_note(wrap: Callable[[range], object]) -> None:
    data, notes = read_bundle({"application/json": wrap(range(MAX_JSON_NODES)), "text/plain": "p"}, LIMITS)
    assert data == {"text/plain": "p"}
    assert notes == [Omitted(f"application/json of more than {MAX_JSON_NODES:,} parts")]


def test_json_of_as_many_parts_as_may_be_is_kept() -> None:
    value = [0] * (MAX_JSON_NODES - 1)
    assert read_bundle({"application/json": value}, LIMITS) == ({"application/json": value}, [])


def test_plain_text_that_is_too_long_is_shortened() -> None:
    data, notes = read_bundle({"text/plain": "x" * 100}, Limits(max_text_chars=10))
    assert data == {"text/plain": "xxxxx\n[... 90 characters left out ...]\nxxxxx"}
    assert notes == []


def test_json_values_are_kept_as_they_are() -> None:
    value = {"a": [1, None, 2.5, "x"]}
    assert read_bundle({"application/json": value}, LIMITS) == ({"application/json": value}, [])


@pytest.mark.parametrize(
    "mime", ["", "text", "text/", "TEXT/plain", "a/b c", "text/x\n", "text/" + "x" * 81, "t\ud800/x"]
)
def test_what_is_no_mime_type_is_dropped(mime: str) -> None:
    assert read_bundle({mime: "x"}, LIMITS) == ({}, [])


def test_only_so_many_representations_are_read() -> None:
    data, _ = read_bundle({f"text/x{number}": "a" for number in range(1000)}, LIMITS)
    assert len(data) == 16


def test_an_error_is_bounded() -> None:
    lines = ["x" * 100] * 5000
    error = read_error({"ename": "E" * 5000, "evalue": "v" * 50_000, "traceback": lines})
    assert len(error.name) < 300
    assert len(error.value) < MAX_ERROR_CHARS + 100
    assert len(error.traceback) < MAX_ERROR_CHARS + 100


@pytest.mark.parametrize("value", [None, 5, 1.5, True, [], [5, None], {}, {"a": 1}, float("nan")], ids=repr)
def test_wrong_types_in_every_field_read_as_nothing(value: Any) -> None:
    assert shown("stream", {"name": value, "text": value}) == [Stream("stdout", "")]
    assert shown("execute_result", {"data": value}) == [Result({})]
    assert shown("display_data", {"data": value, "transient": value}) == [Display({})]
    assert shown("display_data", {"data": {}, "transient": {"display_id": value}}) == [Display({})]
    assert read_error({"ename": value, "evalue": value}) == Error("Error", "", "")
    assert read_error({"traceback": value}).traceback.strip() == ""
    assert shown("clear_output", {"wait": value}) == [Cleared(wait=value is True)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_content_is_no_error(kind: str) -> None:
    assert len(shown(kind, {})) == 1


@pytest.mark.parametrize("value", [None, 5, [], {}, [["x"]], {"a": "x"}], ids=repr)
@pytest.mark.parametrize("mime", ["text/plain", "text/html", "image/png", "image/jpeg", "image/svg+xml"])
def test_a_representation_of_a_wrong_type_is_empty_or_noted(mime: str, value: Any) -> None:
    data, notes = read_bundle({mime: value}, LIMITS)
    assert data.get(mime, "") == ""
    assert len(notes) == (mime in ("image/png", "image/jpeg"))


HOSTILE = "a\x1b[31m\ud800\x00\u202e\x9bm"


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        pytest.param("stream", {"name": HOSTILE, "text": HOSTILE}, id="stream"),
        pytest.param("stream", {"text": [HOSTILE, HOSTILE]}, id="stream in parts"),
        pytest.param("error", {"ename": HOSTILE, "evalue": HOSTILE, "traceback": [HOSTILE, [HOSTILE]]}, id="error"),
        pytest.param("execute_result", {"data": {"text/plain": HOSTILE, "text/html": HOSTILE}}, id="result"),
        pytest.param("display_data", {"data": {"image/svg+xml": HOSTILE, HOSTILE: HOSTILE}}, id="display"),
        pytest.param("display_data", {"data": {"image/png": HOSTILE}}, id="picture"),
        pytest.param("display_data", {"data": {"application/json": [HOSTILE, {HOSTILE: HOSTILE}]}}, id="JSON"),
        pytest.param("display_data", {"data": {}, "transient": {"display_id": HOSTILE}}, id="display_id"),
    ],
)
def test_all_text_is_neutralised(kind: str, content: dict[str, Any]) -> None:
    for text in texts_in(shown(kind, content)):
        text.encode("utf-8")
        assert not set(text) & set("\x1b\x00\x9b\u202e")


def test_a_display_id_is_bounded() -> None:
    (display,) = shown("display_data", {"data": {}, "transient": {"display_id": "x" * 10**6}})
    assert isinstance(display, Display)
    assert len(display.display_id or "") <= 1000


def read_nested(depth: int) -> KernelMessage:
    nested = b"[" * depth + b"]" * depth
    content = b'{"data": {"application/json": ' + nested + b"}}"
    return read(parts_of({**HEADER, "msg_type": "display_data"}, content=content))


def deepest_readable() -> KernelMessage:
    low, high = 10, 200_000
    while high - low > 1:
        middle = (low + high) // 2
        try:
            read_nested(middle)
            low = middle
        except ProtocolViolation:
            high = middle
    return read_nested(low)


def outputs_from_deep_below(frames: int, message: KernelMessage) -> list[Output]:
    return outputs_from_deep_below(frames - 1, message) if frames else list(outputs_of(message, LIMITS))


@pytest.mark.parametrize("frames", [0, 50])
def test_json_as_deep_as_the_parser_takes_is_no_error(frames: int) -> None:
    assert len(outputs_from_deep_below(frames, deepest_readable())) >= 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([HOSTILE, PNG, "stdout"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
MIME = st.sampled_from(["text/plain", "text/html", "image/png", "image/jpeg", "application/json", "x"])
FIELD = st.sampled_from(
    ["name", "text", "data", "metadata", "transient", "ename", "evalue", "traceback", "wait", "execution_count"]
)
CONTENT = st.dictionaries(FIELD, JSON | st.dictionaries(MIME | st.just("display_id"), JSON, max_size=4), max_size=6)


@given(st.sampled_from([*KINDS, "status", ""]), CONTENT)
def test_no_content_raises(kind: str, content: dict[str, Any]) -> None:
    for output in shown(kind, content):
        if isinstance(output, (Stream, Error)):
            assert all(text.encode("utf-8") is not None for text in texts_in(output))
