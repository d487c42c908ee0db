"""The frames of clients: read if they are signed, and never at more cost than they are worth."""

from __future__ import annotations

import pytest
from jupyter_client.session import DELIM, Session

from agent_tools.guest.wire.messages import MAX_PARTS
from agent_tools.jupyter.connection import SCHEME
from agent_tools.jupyter.wire import (
    MAX_HEADER_BYTES,
    MAX_IDENTITIES,
    MAX_MARKS,
    MAX_METADATA_BYTES,
    MAX_REQUEST_BYTES,
    BadRequest,
    ClientRequest,
    SignedFrames,
)

KEY = b"a key"


def frames_of(kind: str = "execute_request", content: object = None, key: bytes = KEY, **more: object) -> list[bytes]:
    """A message as the stock client sends it."""
    session = Session(key=key)
    message = session.msg(kind, content=content or {"code": "1"}, **more)
    return [b"identity", *session.serialize(message)]


def test_a_request_is_read_as_its_client_wrote_it() -> None:
    frames = [*frames_of(), b"buffer"]
    request = SignedFrames(KEY, SCHEME).read("shell", frames)
    assert (request.kind, request.identities, request.content) == ("execute_request", (b"identity",), {"code": "1"})
    assert request.parts == tuple(frames[3:])
    assert request.header == frames[3]
    assert request.size == sum(map(len, frames[3:]))


def test_what_is_written_is_read_by_the_stock_client() -> None:
    session = Session(key=KEY)
    frames = SignedFrames(KEY, SCHEME).write("stream", b'{"msg_id": "1"}', {"name": "stdout"}, b'{"a": 1}', [b"buffer"])
    message = session.deserialize(session.feed_identities(frames)[1])
    assert (message["msg_type"], message["content"]) == ("stream", {"name": "stdout"})
    assert (message["parent_header"]["msg_id"], message["metadata"], message["buffers"]) == ("1", {"a": 1}, [b"buffer"])


@pytest.mark.parametrize(
    ("kind", "reply"), [("execute_request", "execute_reply"), ("comm_msg", ""), ("input_reply", "")]
)
def test_only_requests_have_replies(kind: str, reply: str) -> None:
    assert ClientRequest("shell", (), kind, "1", ()).reply_kind == reply


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [DELIM],
        [DELIM, b"signature"],
        [b"x"] * 10,
        [b"x"] * (MAX_IDENTITIES + 1) + frames_of(),
        frames_of(key=b"another"),
        [*frames_of()[:-1], b"{}"],
        frames_of(content={"code": [[]] * MAX_MARKS}, key=b"another"),
        frames_of(header={"msg_id": "1", "msg_type": "y" * MAX_HEADER_BYTES}),
        frames_of(header={"msg_id": 1, "msg_type": "execute_request"}, content={"code": [[]] * MAX_MARKS}),
    ],
    ids=["nothing", "delimiter", "signature", "none", "identities", "key", "tampered", "costly", "header", "no id"],
)
def test_anything_else_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(BadRequest):
        SignedFrames(KEY, SCHEME).read("shell", frames)


@pytest.mark.parametrize(
    ("frames", "told"),
    [
        ([*frames_of(), *[b""] * MAX_PARTS], "more than 64 parts"),
        ([*frames_of(), bytes(MAX_REQUEST_BYTES)], "more than 67,108,864 bytes"),
        (frames_of(metadata={"x": "y" * MAX_METADATA_BYTES}), "metadata, that is too long"),
        (frames_of(content={"code": [[]] * MAX_MARKS}), "500,000 commas"),
    ],
    ids=["parts", "bytes", "metadata", "marks"],
)
def test_of_a_costly_one_the_header_is_read_so_that_it_can_be_answered(frames: list[bytes], told: str) -> None:
    request = SignedFrames(KEY, SCHEME).read("shell", frames)
    assert (request.kind, request.identities) == ("execute_request", (b"identity",))
    assert request.id in frames[3].decode()
    assert told in request.refusal
    assert request.size < 1000


def test_a_message_that_comes_again_is_refused() -> None:
    wire, frames = SignedFrames(KEY, SCHEME), frames_of()
    wire.read("shell", frames)
    with pytest.raises(BadRequest, match="Duplicate"):
        wire.read("shell", frames)
