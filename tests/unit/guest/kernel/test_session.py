"""The bounds that the kernel's session keeps to, so that honest code never meets the host's."""

from __future__ import annotations

import array
import json
import math
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from jupyter_client.session import DELIM, Session

from agent_tools.guest.kernel.message_writer import MessageWriter
from agent_tools.guest.kernel.session import (
    MAX_BUFFERS,
    MAX_MESSAGE_BYTES,
    MAX_MESSAGE_MARKS,
    MAX_TEXT_CHARS,
    ChannelNumber,
    WireSession,
)
from agent_tools.guest.wire.framing import pack_parts
from agent_tools.guest.wire.messages import IOPUB, SHELL, MessageReader

CUT = MAX_TEXT_CHARS + 100  # a cut text with its note
MARKS = (b",", b"[", b"{")


class Kept:
    """An writer that keeps what is sent."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.messages: list[tuple[int, list[bytes]]] = []

    def send(self, channel: int, parts: list[bytes], *, can_wait: bool = False) -> None:
        self.messages.append((channel, parts))

    def flush(self) -> None:
        """Nothing waits."""

    def pass_on(self) -> None:
        pass

    def await_room(self) -> None:
        """There always is."""


def wire_session(kept: Kept | None = None) -> WireSession:
    return WireSession(kept or Kept())  # type: ignore[arg-type]


def sent(kind: str, content: Any, **more: Any) -> tuple[list[bytes], dict[str, Any]]:
    """A message as the kernel's session sends it: its parts, and what the host reads from them."""
    kept = Kept()
    wire_session(kept).send(ChannelNumber(IOPUB), kind, content, **more)
    ((channel, parts),) = kept.messages
    assert channel == IOPUB
    header, _, _, read = map(json.loads, parts[:4])
    return parts, {"msg_type": header["msg_type"], "content": read}


def is_small(parts: list[bytes]) -> bool:
    size = sum(map(len, parts))
    return size <= MAX_MESSAGE_BYTES and sum(map(parts[3].count, MARKS)) <= MAX_MESSAGE_MARKS


LARGE: dict[str, Callable[[], dict[str, Any]]] = {
    "6 million Chinese characters": lambda: {"text/html": "中" * 6_000_000},
    "1.5 million numbers": lambda: {"application/json": [[0, 1, 2]] * 500_000},
    "a picture": lambda: {"image/png": "A" * (MAX_MESSAGE_BYTES + 1)},
    "numbers with their text": lambda: {"application/json": [0] * 1_500_000, "text/plain": "x" * 10},
    "many dicts": lambda: {"application/json": [{}] * MAX_MESSAGE_MARKS},
}


@pytest.mark.parametrize("kind", ["display_data", "execute_result", "update_display_data"])
@pytest.mark.parametrize("make", LARGE.values(), ids=LARGE.keys())
def test_a_large_display_is_sent_as_a_note(kind: str, make: Callable[[], dict[str, Any]]) -> None:
    data = make()
    frames, message = sent(kind, {"data": data, "metadata": {"a": "b"}, "transient": {"display_id": "i"}})
    text = message["content"]["data"].pop("text/plain")
    assert is_small(frames)
    assert text.startswith(f"[{' and '.join(data)} left out: ")
    assert (message["msg_type"], message["content"]) == (
        kind,
        {"data": {}, "metadata": {}, "transient": {"display_id": "i"}},
    )


def test_a_result_sent_as_a_note_keeps_its_number() -> None:
    _, message = sent("execute_result", {"data": {"text/html": "x" * MAX_MESSAGE_BYTES}, "execution_count": 7})
    assert message["content"]["execution_count"] == 7


def test_a_large_stream_is_sent_as_a_note_on_the_same_stream() -> None:
    frames, message = sent("stream", {"name": "stderr", "text": "x" * (MAX_MESSAGE_BYTES + 1)})
    assert is_small(frames)
    assert message["content"]["name"] == "stderr"
    assert "left out" in message["content"]["text"]


def test_large_metadata_is_dropped_with_its_message() -> None:
    parts, _ = sent("display_data", {"data": {"text/plain": "p"}}, metadata={"a": "x" * MAX_MESSAGE_BYTES})
    assert is_small(parts)
    assert parts[2] == b"{}"


REPLY: dict[str, Any] = {
    "status": "error",
    "ename": "ValueError",
    "evalue": "wrong",
    "traceback": ["a", "b"],
    "execution_count": 3,
    "payload": [],
    "user_expressions": {},
}


@pytest.mark.parametrize(
    "large",
    [{"user_expressions": {"a": "x" * MAX_MESSAGE_BYTES}}, {"payload": [0] * (MAX_MESSAGE_MARKS + 1)}],
    ids=["bytes", "marks"],
)
def test_a_large_reply_keeps_how_it_ended(large: dict[str, Any]) -> None:
    frames, message = sent("execute_reply", {**REPLY, **large})
    kept = {name: message["content"][name] for name in ("status", "ename", "evalue", "execution_count")}
    assert is_small(frames)
    assert kept == {"status": "error", "ename": "ValueError", "evalue": "wrong", "execution_count": 3}


def test_a_large_ok_reply_stays_ok() -> None:
    _, message = sent("execute_reply", {"status": "ok", "user_expressions": {"a": "x" * MAX_MESSAGE_BYTES}})
    assert message["content"] == {"status": "ok"}


@pytest.mark.parametrize("kind", ["error", "execute_reply"])
@pytest.mark.parametrize(
    "make",
    [lambda: ["中" * 20_000_000], lambda: ["x" * 100] * 200_000, lambda: ["\n"] * 2_000_000],
    ids=["one line", "long lines", "short lines"],
)
def test_a_long_traceback_is_cut_and_the_rest_kept(kind: str, make: Callable[[], list[str]]) -> None:
    lines = make()
    frames, message = sent(kind, {**REPLY, "traceback": ["first", *lines, "last"]})
    (text,) = message["content"].pop("traceback")
    assert is_small(frames)
    assert len(text) < CUT
    assert text.startswith("first\n")
    assert text.endswith("\nlast")
    assert message["content"] == {name: value for name, value in REPLY.items() if name != "traceback"}


def test_a_long_error_value_is_cut() -> None:
    _, message = sent("error", {**REPLY, "evalue": "中" * 20_000_000})
    assert len(message["content"]["evalue"]) < CUT
    assert message["content"]["traceback"] == ["a", "b"]


def test_long_plain_text_is_cut_and_the_rest_kept() -> None:
    data = {"text/plain": "a" + "中" * 20_000_000 + "z", "text/html": "<b>"}
    _, message = sent("execute_result", {"data": data, "execution_count": 1})
    text = message["content"]["data"]["text/plain"]
    assert len(text) < CUT
    assert (text[0], text[-1], message["content"]["data"]["text/html"]) == ("a", "z", "<b>")


def test_cutting_leaves_the_codes_own_objects_alone() -> None:
    data = {"text/plain": "x" * 10**6}
    sent("display_data", {"data": data})
    assert len(data["text/plain"]) == 10**6


SMALL: list[tuple[str, Any]] = [
    ("stream", {"name": "stdout", "text": "中\n" * 1000}),
    ("display_data", {"data": {"text/plain": "x" * MAX_TEXT_CHARS, "text/html": "<b>"}, "metadata": {}}),
    ("display_data", {"data": {"text/html": "x" * (MAX_MESSAGE_BYTES - 1000)}}),
    ("display_data", {"data": {"application/json": [0] * (MAX_MESSAGE_MARKS - 10)}}),
    ("error", REPLY),
    ("execute_reply", {**REPLY, "traceback": ["x" * (MAX_TEXT_CHARS - 1), "y"]}),
    ("status", {"execution_state": "idle"}),
    ("comm_open", {"data": 5, "traceback": None, "evalue": []}),
    ("iopub_welcome", {}),
]


def stock_parts(message: dict[str, Any]) -> list[bytes]:
    """The parts that Jupyter's own session makes of a message."""
    frames = Session(key=b"", packer="json", unpacker="json").serialize(message)
    return list(frames[frames.index(DELIM) + 2 :])


@pytest.mark.parametrize(("kind", "content"), SMALL, ids=[kind for kind, _ in SMALL])
def test_what_is_small_is_untouched(kind: str, content: Any) -> None:
    session = wire_session()
    message = session.msg(kind, content, parent={"header": {"msg_id": "r"}}, metadata={"a": 1})
    assert session.parts_of(message) == stock_parts(message)


@pytest.mark.parametrize("content", [None, b"{}", "{}", {}], ids=repr)
def test_a_content_that_is_packed_already_is_untouched(content: Any) -> None:
    session = wire_session()
    message = {**session.msg("stream"), "content": content}
    assert session.parts_of(message) == stock_parts(message)


def test_a_large_content_that_is_packed_already_is_no_error() -> None:
    session = wire_session()
    message = {**session.msg("stream"), "content": b'{"text": "' + b"x" * MAX_MESSAGE_BYTES + b'"}'}
    assert is_small(session.parts_of(message))


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_lone_surrogates_are_sent_as_escapes(text: str) -> None:
    _, message = sent("stream", {"name": "stdout", "text": text, "list": [text]})
    escaped = text.encode("utf-8", "backslashreplace").decode()
    assert message["content"] == {"name": "stdout", "text": escaped, "list": [escaped]}


def test_a_message_may_have_as_many_buffers_as_fit_into_one() -> None:
    parts, _ = sent("comm_msg", {"data": {}}, buffers=[bytes([number]) for number in range(MAX_BUFFERS)])
    assert parts[4:] == [bytes([number]) for number in range(MAX_BUFFERS)]
    assert len(pack_parts(IOPUB, parts)) > len(parts)  # it can be packed


@pytest.mark.parametrize("buffers", [[b"a"] * (MAX_BUFFERS + 1), [memoryview(bytes(MAX_MESSAGE_BYTES // 2))] * 2])
def test_buffers_that_do_not_fit_are_an_error_and_not_dropped(buffers: list[bytes]) -> None:
    with pytest.raises(ValueError, match=r"buffers of [0-9,]+ bytes are too much for one message"):
        sent("comm_msg", {"data": {}}, buffers=buffers)


def test_buffers_of_any_kind_are_sent_as_bytes() -> None:
    parts, _ = sent("comm_msg", {}, buffers=[b"a", bytearray(b"b"), memoryview(b"cd"), array.array("H", [1])])
    assert parts[4:] == [b"a", b"b", b"cd", b"\1\0"]


def test_a_message_keeps_its_parent_though_another_one_is_sent_meanwhile() -> None:
    kept = Kept()
    session = wire_session(kept)

    class Meanwhile:
        def __iter__(self) -> Iterator[int]:
            session.send(ChannelNumber(IOPUB), "status", {}, parent={"header": {"msg_id": "other"}})
            return iter(())

    header = {**session.msg_header("status"), "late": Meanwhile()}
    session.send(ChannelNumber(IOPUB), "status", {}, parent={"header": {"msg_id": "mine"}}, header=header)
    assert [json.loads(parts[1])["msg_id"] for _, parts in kept.messages] == ["other", "mine"]


def test_a_message_goes_out_on_its_channel_and_after_what_was_printed() -> None:
    kept = Kept()
    session = wire_session(kept)
    session.printed.add("stdout", {"msg_id": "r"}, "before")
    session.send(ChannelNumber(SHELL), "execute_reply", {"status": "ok"}, parent={"header": {"msg_id": "r"}})
    (first, printed), (second, reply) = kept.messages
    assert (first, second) == (IOPUB, SHELL)
    assert json.loads(printed[3]) == {"name": "stdout", "text": "before"}
    assert (json.loads(printed[1]), json.loads(reply[1])) == ({"msg_id": "r"}, {"msg_id": "r"})


# -- together ---------------------------------------------------------------------------------------------------------


def one_request(*, is_unwatched: bool) -> list[list[str]]:
    """What leaves the kernel for a request that prints a line, as types of messages, by the pieces it leaves in."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    writer = MessageWriter(near)
    with near, far, writer.from_children, writer._to_parent:
        session, parent = WireSession(writer), {"msg_id": "1", "msg_type": "execute_request"}
        session.unwatched = {"header": parent} if is_unwatched else {}
        session.send(ChannelNumber(IOPUB), "status", {"execution_state": "busy"}, parent)
        session.send(ChannelNumber(IOPUB), "execute_input", {"code": "print(1)"}, parent)
        session.printed.add("stdout", parent, "1\n")
        session.send(ChannelNumber(SHELL), "execute_reply", {"status": "ok"}, parent)
        session.send(ChannelNumber(IOPUB), "status", {"execution_state": "idle"}, parent)
        session.flush()
        near.close()
        pieces = iter(lambda: far.recv(64 * 1024), b"")
        return [[json.loads(parts[0])["msg_type"] for _, parts in MessageReader(2**20).feed(piece)] for piece in pieces]


def test_what_forked_children_have_sent_goes_out_before_the_reply_of_their_cell() -> None:
    near, far = socket.socketpair()
    writer = MessageWriter(near)
    with near, far, writer.from_children, writer._to_parent:
        session = WireSession(writer)
        for message in (b"one", b"two"):
            writer._to_parent.send(message)
        session.printed.end_cell()
        assert [*writer.queue] == [b"one", b"two"]


def test_where_nobody_watches_only_outputs_and_the_reply_leave_in_one_piece() -> None:
    assert one_request(is_unwatched=True) == [["stream", "execute_reply"]]


def test_what_is_watched_is_known_to_be_busy_before_it_runs() -> None:
    assert one_request(is_unwatched=False) == [["status", "execute_input"], ["stream", "execute_reply", "status"]]


def test_what_earlier_tasks_show_belongs_to_the_request_that_runs_unless_somebody_watches() -> None:
    kept = Kept()
    session = wire_session(kept)
    earlier = {"msg_id": "earlier"}
    for session.unwatched in ({"header": {"msg_id": "now"}}, {}):
        session.printed.add("stdout", earlier, "a line\n")
        session.send(ChannelNumber(IOPUB), session.msg("display_data", {"data": {}}, parent={"header": earlier}))
    parents = [json.loads(parts[1])["msg_id"] for _, parts in kept.messages]
    assert parents == ["now", "now", "earlier", "earlier"]


class Odd:
    def __str__(self) -> str:
        return "odd"


def test_values_that_json_does_not_have_are_sent_without_a_warning() -> None:
    odd = {"a": [math.nan, -math.inf, 1.5], (1, 2): {3: {4}}, "b": Odd(), "c": b"x", "d": array.array("d", [math.nan])}
    parts = WireSession(Kept()).parts_of(
        {  # type: ignore[arg-type]
            "header": {},
            "parent_header": {},
            "metadata": {},
            "msg_type": "display_data",
            "content": {"data": {"application/json": odd}},
        }
    )
    expected = {"a": [None, None, 1.5], "(1, 2)": {"3": [4]}, "b": "odd", "c": "eA==", "d": [None]}
    assert json.loads(parts[3]) == {"data": {"application/json": expected}}
