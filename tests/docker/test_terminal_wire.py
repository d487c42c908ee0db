"""The terminal wire on real containers: figures, shells, files outside HOME, and coming back to a chat."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from agent_tools.runtime.runtime import Runtime
from tests.gateway.asking import until
from tests.gateway.conftest import new_gateway, process_runtime
from tests.wires.conftest import serve
from tests.wires.test_terminal import output, python, ran
from tests.wires.test_terminal_sockets import heard, shell

__all__ = ["new_gateway", "process_runtime", "serve"]
pytestmark = pytest.mark.docker


def test_a_chat_works_in_its_container_and_comes_back_to_it(serve: Any, docker_runtime: Runtime) -> None:
    served = serve(docker_runtime, max_sandboxes=1, max_kept_sandboxes=1)
    ann, bob = served.client("ann"), served.client("bob")
    told = python(ann, "import matplotlib.pyplot as plt\nx = 41\nplt.plot([3, 1, 2]); plt.show()")
    assert base64.b64decode(told["figures"][0].partition(",")[2]).startswith(b"\x89PNG")
    assert output(ran(ann, "id -u; pwd; echo $HOME; touch a.txt && rm a.txt; echo $?")).split()[1:] == [
        "/workspace",
        "/workspace",
        "0",
    ]
    for path in ("/etc/shadow", "/proc/1/environ"):  # a file of /proc has no bytes by its size, so it is empty
        text = ann.get("/files/read", params={"path": path}).text
        assert "root:" not in text
        assert "PATH=" not in text
    assert ann.post("/files/write", json={"path": "/tmp/t.txt", "content": "t"}).status_code == 200
    assert ann.get("/files/view", params={"path": "/tmp/t.txt"}).text == "t"
    ann.post("/files/write", json={"path": "kept.txt", "content": "k"})
    with shell(served, ann) as socket:
        socket.send(b"echo he$((1+1))re; pwd\n")
        heard(socket, "he2re\r\n/workspace")
        assert python(bob, "open('kept.txt', 'w').write('b')")["ok"]  # the only sandbox makes room, with its shell
        until(lambda: ann.get("/api/terminals").json() == [])
    assert ann.get("/files/read", params={"path": "kept.txt"}).json()["content"] == "k"
    told = python(ann, "x + 1")
    assert (told["result"], "kept" in told["notes"][0]) == ("42", True)
