import contextlib
import dataclasses
import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jupyter_client.session import DELIM, Session

from agent_tools.errors import ProtocolViolation
from agent_tools.execution import Cleared, Display, Error, Omitted, Output, Result, Stream
from agent_tools.runtime.kernel.protocol import (
    MAX_HEADER_BYTES,
    MAX_JSON_NODES,
    MAX_MARKS,
    MAX_TEXT_CHARS,
    Message,
    outputs_of,
    read_bundle,
    read_error,
    read_message,
    wire_session,
)
from agent_tools.runtime.kernel.settling import settle
from agent_tools.settings import MIB, Limits

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


@pytest.fixture
def session() -> Session:
    return wire_session(b"k")


def signed(*parts: bytes) -> list[bytes]:
    """Frames of four raw parts (header, parent header, metadata, content), signed as a guest with the key would."""
    return [DELIM, wire_session(b"k").sign(list(parts)), *parts]


def frames_of(
    header: Any = HEADER, parent: Any = b'{"msg_id": "r"}', metadata: Any = b"{}", content: Any = b"{}"
) -> list[bytes]:
    """A signed message; each part as JSON, or as the bytes to put in its place."""
    parts = (header, parent, metadata, content)
    return signed(*(part if isinstance(part, bytes) else json.dumps(part).encode() for part in parts))


def serialized(kind: str, content: dict[str, Any], parent: dict[str, Any] | None = None) -> list[bytes]:
    sender = wire_session(b"k")
    return sender.serialize(sender.msg(kind, content, parent=parent))


def shown(kind: str, content: dict[str, Any], limits: Limits = LIMITS) -> list[Output]:
    return list(outputs_of(Message(kind, "r", content), limits))


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


# --- frames to messages ---


def test_a_signed_message_is_read(session: Session) -> None:
    request = wire_session(b"k").msg("execute_request")
    content = {"name": "stdout", "text": "hi 中文"}
    message = read_message(session, serialized("stream", content, parent=request))
    assert message == Message("stream", request["header"]["msg_id"], content)


def test_identities_before_and_buffers_after_a_message_are_ignored(session: Session) -> None:
    frames = [b"kernel.1.stream", *serialized("stream", {}), b"buffer", b""]
    assert read_message(session, frames).kind == "stream"


def test_a_message_with_another_key_is_a_violation(session: Session) -> None:
    sender = wire_session(b"other")
    with pytest.raises(ProtocolViolation):
        read_message(session, sender.serialize(sender.msg("stream", {})))


def test_a_message_sent_again_is_a_violation(session: Session) -> None:
    frames = frames_of()
    read_message(session, frames)
    with pytest.raises(ProtocolViolation):
        read_message(session, frames)


@pytest.mark.parametrize("part", range(2, 6), ids=["header", "parent", "metadata", "content"])
def test_a_changed_part_is_a_violation(session: Session, part: int) -> None:
    frames = frames_of()
    frames[part] += b" "
    with pytest.raises(ProtocolViolation):
        read_message(session, frames)


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([], id="no frames"),
        pytest.param([b""], id="one empty frame"),
        pytest.param([DELIM], id="only the delimiter"),
        pytest.param([DELIM, b""], id="an empty signature"),
        pytest.param([DELIM, b"0" * 64], id="only a signature"),
        pytest.param([b"x"] * 10_000, id="10,000 frames"),
        pytest.param([*frames_of(), *[b"x"] * 10_000], id="10,000 buffers"),
        pytest.param([DELIM] * 10, id="many delimiters"),
        pytest.param(frames_of()[1:], id="no delimiter"),
        pytest.param([DELIM, b"", *frames_of()[2:]], id="unsigned"),
        pytest.param([DELIM, b"\xff\xfe" * 32, *frames_of()[2:]], id="signature not ASCII"),
        pytest.param(signed(b"{}", b"{}"), id="parts missing"),
    ],
)
def test_frames_that_are_no_message_are_a_violation(session: Session, frames: list[bytes]) -> None:
    with pytest.raises(ProtocolViolation):
        read_message(session, frames)


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


@pytest.mark.parametrize("name", ["header", "parent", "metadata", "content"])
@pytest.mark.parametrize("part", BROKEN_PARTS)
def test_a_part_that_is_no_json_is_a_violation(session: Session, name: str, part: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        read_message(session, frames_of(**{name: part}))


@pytest.mark.parametrize("content", [b"null", b"[]", b'"text"', b"5", b"true", b"NaN"], ids=bytes.decode)
def test_content_that_is_no_object_is_a_violation(session: Session, content: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        read_message(session, frames_of(content=content))


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
        pytest.param({**HEADER, "version": 5}, id="version is a number"),
        pytest.param({**HEADER, "version": "five"}, id="version is no number"),
        pytest.param({**HEADER, "date": "9999-99-99T99:99:99Z"}, id="date that is none"),
    ],
)
def test_a_header_that_is_none_is_a_violation(session: Session, header: Any) -> None:
    with pytest.raises(ProtocolViolation):
        read_message(session, frames_of(header=header))


@pytest.mark.parametrize("date", ["2024-01-01T00:00:00", "0001-01-01T00:00:00", None, 5, "soon", []], ids=str)
def test_an_odd_date_raises_nothing_else(session: Session, date: object) -> None:
    try:
        message = read_message(session, frames_of(header={**HEADER, "date": date}))
    except ProtocolViolation:
        return
    assert message.kind == "stream"


@pytest.mark.parametrize("version", ["4.1", "5.4", "6.0", "-1"])
@pytest.mark.parametrize("kind", [*KINDS, "pyout", "pyerr", "execute_reply", "complete_reply", "input_request"])
def test_another_version_of_the_protocol_raises_nothing_else(session: Session, version: str, kind: str) -> None:
    for content in ({}, {"data": 5, "text": [], "payload": 5, "ename": {}}, {"payload": [1], "data": {"a": 5}}):
        with contextlib.suppress(ProtocolViolation):
            read_message(session, frames_of({**HEADER, "version": version, "msg_type": kind}, content=content))


@pytest.mark.parametrize(
    "parent",
    [b"null", b"[]", b"{}", b'"text"', b"5", b'{"msg_id": 5}', b'{"msg_id": null}', b'{"msg_id": ["r"]}'],
    ids=bytes.decode,
)
def test_a_parent_that_names_no_request_gives_no_id(session: Session, parent: bytes) -> None:
    assert read_message(session, frames_of(parent=parent)).parent_id == ""


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20) | st.just(DELIM), max_size=12))
def test_arbitrary_frames_are_a_violation(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolViolation):
        read_message(wire_session(b"k"), frames)


PART = st.binary(max_size=20) | st.sampled_from([b"{}", b"[]", b"null", b'{"a": NaN}', json.dumps(HEADER).encode()])


@settings(deadline=None)
@given(st.lists(PART, min_size=4, max_size=4))
def test_arbitrary_signed_parts_raise_only_violations(parts: list[bytes]) -> None:
    try:
        message = read_message(wire_session(b"k"), signed(*parts))
    except ProtocolViolation:
        return
    assert isinstance(message.content, dict)


DISPLAYS = ["stream", "execute_result", "display_data", "update_display_data"]


def display_of(json_value: bytes, kind: str = "display_data") -> list[bytes]:
    content = b'{"data": {"application/json": ' + json_value + b"}}"
    return frames_of({**HEADER, "msg_type": kind}, content=content)


@pytest.mark.parametrize("kind", DISPLAYS)
@pytest.mark.parametrize(
    "costly", [b"[" + b"0," * MAX_MARKS + b"0]", b"[" * MAX_MARKS, b"{" * MAX_MARKS], ids=["numbers", "lists", "dicts"]
)
def test_a_content_that_is_costly_to_read_is_noted_and_not_parsed(session: Session, kind: str, costly: bytes) -> None:
    frames = display_of(costly, kind)
    note = Omitted(f"a message of {len(frames[-1]):,} bytes that would be costly to read")
    message = read_message(session, frames)
    assert (message.kind, message.parent_id) == (kind, "r")
    assert list(outputs_of(message, LIMITS)) == [note]


@pytest.mark.parametrize("kind", ["execute_reply", "status"])
def test_another_content_that_is_costly_to_read_shows_nothing(session: Session, kind: str) -> None:
    message = read_message(session, display_of(b"[" * MAX_MARKS, kind))
    assert list(outputs_of(message, LIMITS)) == []


def test_a_content_with_as_many_marks_as_may_be_is_read(session: Session) -> None:
    numbers = b"[" + b"0," * (MAX_MARKS - 3) + b"0]"
    message = read_message(session, display_of(numbers))
    assert len(message.content["data"]["application/json"]) == MAX_MARKS - 2


def test_a_long_text_without_marks_is_read(session: Session) -> None:
    text = "x" * (MAX_MARKS * 4)
    assert read_message(session, frames_of(content={"text": text})).content == {"text": text}


def test_a_costly_content_with_another_key_is_a_violation(session: Session) -> None:
    frames = display_of(b"[" * MAX_MARKS)
    frames[1] = b"0" * 64
    with pytest.raises(ProtocolViolation):
        read_message(session, frames)


N = 15 * MIB
WIDE = {"raw": "\U0001f600".encode(), "escaped": b"\\ud83d\\ude00"}


@pytest.mark.parametrize("wide", WIDE.values(), ids=WIDE.keys())
def test_a_long_text_that_one_character_makes_four_times_as_long_in_memory_is_noted(
    session: Session, wide: bytes
) -> None:
    message = read_message(session, frames_of(content=b'{"text": "' + b"x" * N + wide + b'"}'))
    assert list(outputs_of(message, LIMITS)) == [
        Omitted(f"a message of {N + len(wide) + 12:,} bytes that would be costly to read")
    ]


@pytest.mark.parametrize("text", [b"x" * N, b"\xc3\xa9" * (N // 2), b"\xe4\xb8\xad" * MIB, b"\\u00e9" * MIB])
def test_a_long_text_of_one_width_is_read(session: Session, text: bytes) -> None:
    message = read_message(session, frames_of(content=b'{"text": "' + text + b'"}'))
    assert message.content == {"text": json.loads(b'"' + text + b'"')}


def bundle(mime: str, value: bytes) -> tuple[str, bytes]:
    return "display_data", b'{"data": {"' + mime.encode() + b'": ' + value + b"}}"


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        pytest.param("stream", b'{"text": "\\u001b' + b"x" * N + b'"}', id="text"),
        pytest.param("stream", b'{"text": "\\u001b' + b"x" * (8 * MIB - 99) + b'\xe4\xb8\xad"}', id="wide text"),
        pytest.param(*bundle("text/html", b'"\\u001b' + b"x" * N + b'\xc3\xa9"'), id="HTML"),
        pytest.param(*bundle("text/plain", b'"\\u001b' + b"x" * N + b'\xc3\xa9"'), id="plain"),
        pytest.param(*bundle("application/json", b'["\\u001b' + b"x" * N + b'"]'), id="JSON"),
        pytest.param(*bundle("image/png", b'"' + b"ab " * (N // 3) + b'"'), id="picture"),
        pytest.param("error", b'{"traceback": ["\\u001b' + b"x" * N + b'\xc3\xa9"]}', id="traceback"),
    ],
)
def test_reading_the_largest_message_takes_a_few_times_its_size(session: Session, kind: str, content: bytes) -> None:
    frames = frames_of({**HEADER, "msg_type": kind}, content=content)
    tracemalloc.start()
    shown = list(outputs_of(read_message(session, frames), LIMITS))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(shown) >= 1
    assert peak < 4 * LIMITS.max_message_bytes


def test_a_value_far_too_long_keeps_its_ends() -> None:
    (error,) = shown("error", {"evalue": "a" + "x" * (2 * MIB) + "\x1b[31mz"})
    assert isinstance(error, Error)
    assert (error.value[0], error.value[-1]) == ("a", "z")
    assert "characters left out" in error.value
    assert len(error.value) <= LIMITS.max_error_chars + 100


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
def test_a_header_that_is_too_long_is_a_violation(session: Session, name: str) -> None:
    read_message(session, frames_of(**{name: padded(MAX_HEADER_BYTES)}))
    with pytest.raises(ProtocolViolation, match="a header that is too long"):
        read_message(session, frames_of(**{name: padded(MAX_HEADER_BYTES + 1)}))


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
    error = read_error({"ename": "E" * 5000, "evalue": "v" * 50_000, "traceback": lines}, LIMITS)
    assert len(error.name) < 300
    assert len(error.value) < LIMITS.max_error_chars + 100
    assert len(error.traceback) < LIMITS.max_error_chars + 100


@pytest.mark.parametrize("value", [None, 5, 1.5, True, [], [5, None], {}, {"a": 1}, float("nan")], ids=repr)
def test_wrong_types_in_every_field_read_as_nothing(value: Any) -> None:
    assert shown("stream", {"name": value, "text": value}) == [Stream("stdout", "")]
    assert shown("execute_result", {"data": value}) == [Result({})]
    assert shown("display_data", {"data": value, "transient": value}) == [Display({})]
    assert shown("display_data", {"data": {}, "transient": {"display_id": value}}) == [Display({})]
    assert read_error({"ename": value, "evalue": value}, LIMITS) == Error("Error", "", "")
    assert read_error({"traceback": value}, LIMITS).traceback.strip() == ""
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


def read_nested(depth: int) -> Message:
    nested = b"[" * depth + b"]" * depth
    content = b'{"data": {"application/json": ' + nested + b"}}"
    return read_message(wire_session(b"k"), frames_of({**HEADER, "msg_type": "display_data"}, content=content))


def deepest_readable() -> Message:
    low, high = 10, 200_000
    while high - low > 1:
        middle = (low + high) // 2
        try:
            read_nested(middle)
            low = middle
        except ProtocolViolation:
            high = middle
    return read_nested(low)


def outputs_from_deep_below(frames: int, message: Message) -> list[Output]:
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


@settings(deadline=None)
@given(st.sampled_from([*KINDS, "status", ""]), CONTENT)
def test_no_content_raises(kind: str, content: dict[str, Any]) -> None:
    for output in shown(kind, content):
        if isinstance(output, (Stream, Error)):
            assert all(text.encode("utf-8") is not None for text in texts_in(output))
