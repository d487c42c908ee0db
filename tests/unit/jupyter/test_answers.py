"""What clients may be told of what a kernel says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_tools.guest.wire.messages import CONTROL, IOPUB, SHELL, STDIN
from agent_tools.jupyter.answers import ClientMessage, read_answer
from agent_tools.runtime.kernel.protocol import read_message


def answer_to(
    channel: int, kind: str, content: bytes, metadata: bytes = b"{}", *buffers: bytes
) -> ClientMessage | None:
    """The answer made of one message."""
    parts = [json.dumps({"msg_type": kind}).encode(), b"{}", metadata, content, *buffers]
    return read_answer(read_message(channel, parts), parts)


def test_a_content_is_passed_on_byte_by_byte() -> None:
    content = b'{"name":  "stdout", "text": "\\u00e9 \xc3\xa9"}'
    assert answer_to(IOPUB, "stream", content, b'{"a": 1}', b"buffer") == ClientMessage(
        "stream", content, json.loads(content), b'{"a": 1}', (b"buffer",)
    )


@pytest.mark.parametrize(
    ("channel", "kind", "content"),
    [
        (IOPUB, "shutdown_reply", b"{}"),
        (IOPUB, "debug_event", b"{}"),
        (IOPUB, "execute_reply", b"{}"),
        (IOPUB, "status", b'{"execution_state": "dead"}'),
        (SHELL, "stream", b"{}"),
        (STDIN, "input_reply", b"{}"),
        (CONTROL, "shutdown_reply", b"{}"),
    ],
)
def test_a_type_that_is_not_for_its_channel_is_nobodys(channel: int, kind: str, content: bytes) -> None:
    assert answer_to(channel, kind, content) is None


@pytest.mark.parametrize("content", [b'{"text": "\\ud800"}', b'{"text": "\xff"}'], ids=["half", "latin-1"])
def test_text_that_readers_choke_on_is_written_anew(content: bytes) -> None:
    answer = answer_to(IOPUB, "stream", content)
    assert answer
    assert json.loads(answer.content.decode())["text"] in ("?", "\ufffd")


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity"])
def test_numbers_that_json_does_not_have_are_nobodys(value: bytes) -> None:
    assert answer_to(IOPUB, "display_data", b'{"data": {"application/json": %s}}' % value) is None
    assert answer_to(IOPUB, "stream", b'{"text": "%s"}' % value)


@pytest.mark.parametrize("metadata", [b"[]", b"{", b"\xff", b'{"a": NaN}', b"[" * 60_000])
def test_metadata_that_are_no_object_are_empty(metadata: bytes) -> None:
    answer = answer_to(IOPUB, "stream", b"{}", metadata)
    assert answer
    assert answer.metadata == b"{}"


@pytest.mark.parametrize(
    ("channel", "kind", "place"),
    [
        (IOPUB, "stream", ("text",)),
        (IOPUB, "display_data", ("data", "text/plain")),
        (IOPUB, "execute_result", ("data", "text/plain")),
        (SHELL, "execute_reply", ("evalue",)),
    ],
)
def test_a_content_that_would_be_costly_to_read_is_a_note(channel: int, kind: str, place: tuple[str, ...]) -> None:
    answer = answer_to(channel, kind, b'{"x": [%s]}' % b",".join([b"[]"] * 600_000))
    assert answer
    found: Any = json.loads(answer.content)
    for name in place:
        found = found[name]
    assert "left out" in found


def test_a_comm_that_would_be_costly_to_read_is_nobodys() -> None:
    assert answer_to(IOPUB, "comm_msg", b'{"x": [%s]}' % b",".join([b"[]"] * 600_000)) is None
