"""What a connection file may hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_tools.errors import EngineError, InvalidParams
from agent_tools.jupyter.connection import CHANNELS, SCHEME, ConnectionInfo

PORTS = {f"{channel}_port": 5000 + number for number, channel in enumerate(CHANNELS)}
FILE = {"transport": "tcp", "ip": "127.0.0.1", "key": "secret", "signature_scheme": SCHEME, **PORTS}


def test_a_connection_file_is_read_and_told_again(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps(FILE))
    info = ConnectionInfo.load(tmp_path / "c.json")
    assert info.address("shell") == "tcp://127.0.0.1:5000"
    assert info.as_dict() == {**FILE, "key": b"secret"}


def test_private_sockets_lie_in_the_folder() -> None:
    info = ConnectionInfo.private(Path("/run/x"), b"key", SCHEME)
    assert [info.address(channel) for channel in CHANNELS] == [f"ipc:///run/x/k-{number}" for number in range(1, 6)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"transport": "inproc"}, "transport='inproc'"),
        ({"ip": None}, "an ip"),
        ({"shell_port": 0}, "shell_port=0"),
        ({"hb_port": 70_000}, "hb_port=70000"),
        ({"iopub_port": "5001"}, "iopub_port='5001'"),
        ({"control_port": True}, "control_port=True"),
        ({"key": ""}, "no key"),
        ({"key": None}, "no key"),
    ],
)
def test_what_is_unusable_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidParams, match=words):
        ConnectionInfo.read({**FILE, **change})


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_file_that_holds_something_else_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "c.json").write_text(content)
    with pytest.raises(InvalidParams, match="connection file"):
        ConnectionInfo.load(tmp_path / "c.json")


def test_a_path_that_is_too_long_is_said_before_a_socket_fails() -> None:
    with pytest.raises(EngineError, match="AGENT_TOOLS_RUN_DIR"):
        ConnectionInfo.private(Path("/" + "x" * 120), b"key", SCHEME)
