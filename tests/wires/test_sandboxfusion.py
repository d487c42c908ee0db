"""SandboxFusion's API: scripts with input, arguments, files and limits; cells; what a hostile script leaves."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.asking import until
from tests.wires.conftest import Served

BOTH = pytest.mark.parametrize("prefix", ["", "/shared"], ids=["sealed", "shared"])


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def post(served: Served, path: str, key: str = "plain", **given: Any) -> Any:
    headers = {"Authorization": f"Bearer {served.keys[key]}"}
    answer = httpx.post(f"{served.gateway.url}/sandboxfusion{path}", json=given, headers=headers, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def run(served: Served, code: str, prefix: str = "", **given: Any) -> Any:
    return post(served, f"{prefix}/run_code", code=code, **{"language": "python", **given})


@BOTH
def test_a_script_has_input_arguments_and_files(served: Served, prefix: str) -> None:
    code = "import sys; print(input(), sys.argv[1:], __name__, open('d/in.txt').read())"
    code += "; open('out.bin', 'wb').write(b'\\0')"
    given = {"stdin": "hello\n", "args": ["a", "b c"], "files": {"d/in.txt": b64(b"x")}}
    told = run(served, code, prefix, **given, fetch_files=["out.bin", "none"])
    assert (told["status"], told["run_result"]["stdout"]) == ("Success", "hello ['a', 'b c'] __main__ x\n")
    assert told["run_result"]["return_code"] == 0
    assert told["files"] == {"out.bin": b64(b"\0")}


@BOTH
def test_ends_of_scripts_are_told_apart(served: Served, prefix: str) -> None:
    failed = run(served, "import sys; print('e', file=sys.stderr); sys.exit(3)", prefix)
    assert (failed["status"], failed["run_result"]["return_code"]) == ("Failed", 3)
    assert (failed["run_result"]["status"], failed["run_result"]["stderr"]) == ("Finished", "e\n")
    late = run(served, "print('begun', flush=True)\nwhile True: pass", prefix, run_timeout=1)
    assert (late["status"], late["run_result"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert late["run_result"]["return_code"] is None
    assert late["run_result"]["stdout"] == "begun\n"
    flood = run(served, "print('x' * 5_000_000)", prefix)
    assert "bytes before this are left out" in flood["run_result"]["stdout"][:80]
    assert len(flood["run_result"]["stdout"]) < 1_100_000
    assert run(served, "echo $((6*7))", prefix, language="bash")["run_result"]["stdout"] == "42\n"
    small = run(served, "x = bytearray(2_000_000_000)", prefix, memory_limit_MB=500)
    assert "MemoryError" in small["run_result"]["stderr"]


@BOTH
def test_cells_share_variables_within_a_request_alone(served: Served, prefix: str) -> None:
    cells = ["a = 123", "a", "import sys; print(a); sys.stderr.write('err')", "raise RuntimeError('bad')"]
    told = post(served, f"{prefix}/run_jupyter", cells=cells, files={"f.txt": b64(b"f")}, fetch_files=["f.txt"])
    assert (told["status"], told["driver"]["status"]) == ("Failed", "Finished")
    assert told["cells"][1]["display"][0]["text/plain"] == "123"
    assert (told["cells"][2]["stdout"], told["cells"][2]["stderr"]) == ("123\n", "err")
    assert told["cells"][3]["error"][0]["ename"] == "RuntimeError"
    assert told["files"] == {"f.txt": b64(b"f")}
    again = post(served, f"{prefix}/run_jupyter", cells=["a"])
    assert again["cells"][0]["error"][0]["ename"] == "NameError"
    late = post(served, f"{prefix}/run_jupyter", cells=["1", "import time; time.sleep(60)", "3"], cell_timeout=1)
    assert (late["driver"]["status"], len(late["cells"])) == ("TimeLimitExceeded", 2)


def test_a_cell_that_no_kernel_takes_fails_alone(served: Served) -> None:
    told = post(served, "/run_jupyter", cells=["print(1)", "'\0'", "print(2)"])
    assert told["status"] == "Failed"
    assert [each["stdout"] for each in told["cells"]] == ["1\n", "", "2\n"]
    assert [error["ename"] for each in told["cells"] for error in each["error"]] == ["InvalidParams"]


def test_requests_that_cannot_be_met_say_why(served: Served) -> None:
    assert "cpp" in run(served, "int main(){}", language="cpp")["message"]
    assert "base64" in run(served, "1", files={"a": "!"})["message"]
    told = run(served, "1", language="pytest")
    assert told["status"] in ("SandboxError", "Failed", "Success")
    url, key = f"{served.gateway.url}/sandboxfusion", {"Authorization": f"Bearer {served.keys['plain']}"}
    assert httpx.get(f"{url}/v1/ping", headers=key).text == "pong"
    assert httpx.get(f"{url}/v1/ping").status_code == 401
    for bad in ({}, {"code": 1, "language": "python"}, {"code": "1", "language": "python", "run_timeout": -1}):
        assert httpx.post(f"{url}/run_code", json=bad, headers=key).status_code == 422
    assert httpx.post(f"{url}/run_code", content=b"[" * 100_000, headers=key).status_code == 422


def test_single_scripts_leave_nothing_and_wait_for_a_place(serve: Any) -> None:
    served = serve(max_sandboxes=2)
    codes = ["print(1)", "import os; os.abort()", "import time; time.sleep(600)", "print('x' * 3_000_000)"] * 2
    with ThreadPoolExecutor(8) as pool:  # only the one that sleeps meets its limit, however busy the machine
        told = list(pool.map(lambda code: run(served, code, run_timeout=1 if "sleep" in code else 100), codes))
    kinds = [(each["run_result"]["status"], each["run_result"]["return_code"]) for each in told]
    assert kinds == [("Finished", 0), ("Finished", 134), ("TimeLimitExceeded", None), ("Finished", 0)] * 2
    until(lambda: served.rows == [])
    assert served.running == {}


def test_shared_scripts_of_other_keys_have_another_container(served: Served) -> None:
    for key in ("plain", "first"):
        post(served, "/shared/run_code", key, code="open('../mine.txt', 'a').write('x')", language="python")
        told = post(served, "/shared/run_code", key, code="print(open('../mine.txt').read())", language="python")
        assert told["run_result"]["stdout"] == "x\n"
    assert len(served.rows) == 2


def test_a_client_that_leaves_ends_its_script(served: Served) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{served.gateway.url}/sandboxfusion/run_code",
            json={"code": "import time; time.sleep(600)", "language": "python", "run_timeout": 600},
            headers={"Authorization": f"Bearer {served.keys['plain']}"},
            timeout=5,
        )
    until(lambda: served.rows == [])


def test_a_client_that_leaves_while_it_waits_leaves_the_queue(serve: Any) -> None:
    served = serve(max_sandboxes=1)
    queue, url = served.gateway.services.containers.queue, httpx.URL(served.gateway.url)
    body = json.dumps({"code": "print(1)", "language": "python"})
    head = f"POST /sandboxfusion/run_code HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {served.keys['plain']}\r\n"
    with queue.slot("another", "", 0):
        with socket.create_connection((url.host, url.port)) as client:
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            until(lambda: queue.waiting == 1)
        until(lambda: queue.waiting == 0)
    assert served.rows == []


def test_the_audit_log_has_each_script_and_nothing_else(serve: Any, tmp_path: Path) -> None:
    served, path = serve(audit=str(tmp_path / "audit")), tmp_path / "audit"
    codes = ["print(1)", "print(2)"]
    for prefix, code in (("", codes[0]), ("/shared", codes[1])):
        assert run(served, code, prefix)["status"] == "Success"
    tool = {"code": "print(3)", "tools": [], "lang": "py"}
    key = {"X-API-Key": served.keys["plain"]}
    assert (
        httpx.post(f"{served.gateway.url}/librechat/exec/programmatic", json=tool, headers=key, timeout=60).json()[
            "stdout"
        ]
        == "3\n"
    )
    begun = [line for line in map(json.loads, path.read_text().splitlines()) if line["event"] == "command_begun"]
    assert [line["code_sha256"] for line in begun] == [
        hashlib.sha256(code.encode()).hexdigest() for code in (*codes, "print(3)")
    ]
