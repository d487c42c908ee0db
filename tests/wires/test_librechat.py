"""LibreChat's code API: sessions that keep files and variables, uploads, and scripts whose tools the client answers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.gateway.asking import until
from tests.wires.conftest import CHART, Served

SEEN = "Session not found", "File not found"


def client(served: Served, key: str = "plain") -> httpx.Client:
    headers = {"X-API-Key": served.keys[key], "User-Agent": "LibreChat/1.0"}
    made = httpx.Client(base_url=f"{served.gateway.url}/librechat", headers=headers, timeout=60)
    return served._stack.enter_context(made)


def run(asked: httpx.Client, code: str, lang: str = "py", path: str = "/exec", **given: Any) -> dict[str, Any]:
    answer = asked.post(path, json={"lang": lang, "code": code, **given})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_session_keeps_files_and_variables(served: Served) -> None:
    here = client(served)
    first = run(here, "x = 41\nopen('a.txt', 'w').write('a')\nprint('done')")
    assert (first["stdout"].splitlines()[0], first["stderr"]) == ("done", "")
    assert [each["name"] for each in first["files"]] == ["a.txt"]
    again = run(here, "print(x + 1, open('a.txt').read())", files=first["files"])
    assert (again["session_id"], again["stdout"], again["files"]) == (first["session_id"], "42 a\n", [])
    shell = run(here, 'cat a.txt; echo "$1" > b.txt', "bash", session_id=first["session_id"], args=["b c"])
    assert (shell["stdout"], [each["name"] for each in shell["files"]]) == ("a", ["b.txt"])
    assert run(here, CHART, files=first["files"])["stdout"] == "[A chart]\n"
    failed = run(here, "import sys; print(sys.argv[1]); 1 / 0", files=first["files"], args=["arg"])
    assert failed["stdout"] == "arg\n"
    assert "ZeroDivisionError" in failed["stderr"]
    assert "NameError" in run(here, "x")["stderr"]
    assert "ZeroDivisionError" in run(here, "%%capture\n1 / 0")["stderr"]
    late = run(here, "!sleep 600\nprint('went on')", timeout=1_000)
    assert ("went on" in late["stdout"], "time" in late["stderr"].lower()) == (False, True)
    assert "js is not available" in run(here, "1", "js")["stderr"]


def test_a_hint_names_a_session(served: Served) -> None:
    here = client(served)
    told = [run(here, "n = globals().get('n', 0) + 1; print(n)", runtime_session_hint="chat") for _ in range(2)]
    assert [(each["runtime_status"], each["stdout"]) for each in told] == [("new", "1\n"), ("reused", "2\n")]
    other = run(here, "print(globals().get('n'))", runtime_session_hint="chat", user_id="bob")
    assert (other["stdout"], other["runtime_session_id"] == told[0]["runtime_session_id"]) == ("None\n", False)


def test_code_that_libre_chat_wraps_runs(served: Served) -> None:
    wrapped = "async def __user_main__():\n    print('in')\n\nif __name__ == \"__main__\":\n    import asyncio\n"
    told = run(client(served), wrapped + "    asyncio.run(__user_main__())\n")
    assert (told["stdout"], told["stderr"]) == ("in\n", "")


def test_uploads_are_found_by_code_downloaded_and_deleted(served: Served) -> None:
    here = client(served)
    forms = [("file", ("data/in.csv", b"1,2")), ("file", ("../../up.txt", b"u"))]
    sent = here.post("/upload", files=forms, data={"kind": "user", "id": "1"}).json()
    session = sent["storage_session_id"]
    assert (sent["message"], [each["filename"] for each in sent["files"]]) == ("success", ["data/in.csv", "up.txt"])
    files = [
        {"id": each["fileId"], "name": each["filename"], "storage_session_id": session, "kind": "user"}
        for each in sent["files"]
    ]
    older = [{"id": each["id"], "name": each["name"], "session_id": session} for each in files]
    assert run(here, "print(open('data/in.csv').read())", files=older)["stdout"] == "1,2\n"
    told = run(here, "print(1)", files=[*older, {"id": "nope", "name": "gone.csv", "session_id": session}])
    assert (told["stdout"], told["stderr"]) == ("1\n", "['gone.csv' is not there: it was deleted, or has expired]\n")
    elsewhere = run(here, "print(open('data/in.csv').read())", files=files, runtime_session_hint="other")
    assert elsewhere["stdout"] == "1,2\n"
    assert elsewhere["files"] == []
    listed = here.get(f"/files/{session}", params={"detail": "full"}).json()
    assert [each["metadata"]["original-filename"] for each in listed] == ["data/in.csv", "up.txt"]
    one = files[1]["id"]
    answer = here.get(f"/download/{session}/{one}")
    assert (answer.content, answer.headers["content-disposition"]) == (b"u", 'attachment; filename="up.txt"')
    assert here.get(f"/sessions/{session}/objects/{one}").json()["size"] == 1
    assert here.delete(f"/sessions/{session}/objects/{one}").status_code == 200
    assert here.delete(f"/files/{session}/{one}").status_code == 404
    assert here.post("/upload", data={"a": "b"}, files={}).status_code == 400


def test_no_key_reaches_the_session_of_another(served: Served) -> None:
    mine, other = client(served), client(served, "first")
    told = run(mine, "open('secret.txt', 'w').write('s')")
    session, file = told["session_id"], told["files"][0]
    for path in (f"/files/{session}", f"/download/{session}/{file['id']}", f"/sessions/{session}/objects/{file['id']}"):
        assert mine.get(path).status_code == 200
        answer = other.get(path)
        assert (answer.status_code, answer.json()["error"] in SEEN) == (404, True)
    assert other.delete(f"/files/{session}/{file['id']}").status_code == 404
    taken = run(other, "import os; print(os.listdir('.'))", session_id=session, files=[file])
    assert (taken["stdout"], taken["session_id"] == session) == ("[]\n", False)
    for bad in ("..", "a", "%2e%2e", "x" * 21):
        assert mine.get(f"/files/{bad}").status_code == 404
    assert httpx.get(f"{served.gateway.url}/librechat/health").status_code == 200
    assert httpx.post(f"{served.gateway.url}/librechat/exec", json={}).status_code == 401


TOOLS = [{"name": "get-weather", "parameters": {}}, {"name": "class"}]


def test_scripts_call_tools_of_the_client(served: Served) -> None:
    here = client(served)
    code = (
        "a, b = await asyncio.gather(get_weather(city='SF'), get_weather(city='NY'))\n"
        "print(a['t'] + b['t'])\nprint(await class_tool(x=1))\nopen('out.txt', 'w').write('o')"
    )
    told = run(here, code, path="/exec/programmatic", tools=TOOLS)
    assert told["status"] == "tool_call_required"
    assert [(each["name"], each["input"]) for each in told["tool_calls"]] == [
        ("get-weather", {"city": "SF"}),
        ("get-weather", {"city": "NY"}),
    ]
    results = [{"call_id": each["id"], "result": {"t": 20}, "is_error": False} for each in told["tool_calls"]]
    token = told["continuation_token"]
    assert client(served, "first").post("/exec/programmatic", json={"continuation_token": token}).status_code == 404
    told = here.post("/exec/programmatic", json={"continuation_token": token, "tool_results": results}).json()
    assert [each["name"] for each in told["tool_calls"]] == ["class"]
    results = [{"call_id": told["tool_calls"][0]["id"], "result": "r", "is_error": False}]
    told = here.post("/exec/programmatic", json={"continuation_token": token, "tool_results": results}).json()
    assert (told["status"], told["stdout"], told["stderr"]) == ("completed", "40\nr\n", "")
    assert [each["name"] for each in told["files"]] == ["out.txt"]
    assert here.post("/exec/programmatic", json={"continuation_token": token}).status_code == 404


def test_scripts_that_fail_say_how(served: Served) -> None:
    here = client(served)
    session = run(here, "1")["session_id"]
    for code, error, stderr, timeout in (
        ("1 / 0", "Sandbox exited with code 1", "ZeroDivisionError", None),
        ("await get_weather(city=1)", "Sandbox exited with code 1", "no such city", None),
        ("import sys; sys.exit(7)", "Sandbox exited with code 7", "", None),
        ("import time; time.sleep(600)", "Time limit exceeded", "", 1_000),
        ("import os; os.write(3, b'nonsense\\n')", "stdout length exceeded", "", None),
        ("import os; os.write(1, b'raw')", None, "raw", None),
    ):
        told = run(here, code, path="/exec/programmatic", tools=TOOLS, timeout=timeout, session_id=session)
        if told["status"] == "tool_call_required":
            failed = [{"call_id": told["tool_calls"][0]["id"], "is_error": True, "error_message": "no such city"}]
            given = {"continuation_token": told["continuation_token"], "tool_results": failed}
            told = here.post("/exec/programmatic", json=given).json()
        assert (told["status"], told.get("error")) == ("error" if error else "completed", error), code
        assert stderr in told["stderr"]


def test_output_that_is_left_out_is_named(served: Served) -> None:
    told = run(client(served), "print('x' * 1_000_000)\nprint('end')")
    assert "characters left out" in told["stdout"]
    assert told["stdout"].endswith("end\n")


def test_a_script_ends_as_a_program_does(served: Served) -> None:
    code = (
        "import atexit, threading, time\nout = open('out.txt', 'w')\nout.write('data')\n"
        "atexit.register(print, 'exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()"
    )
    here = client(served)
    told = run(here, code, path="/exec/programmatic", tools=TOOLS)
    assert (told["status"], told["stdout"]) == ("completed", "thread\nexit\n")
    name, session = told["files"][0], told["session_id"]
    assert here.get(f"/download/{session}/{name['id']}").content == b"data"


def test_a_client_that_leaves_ends_its_code(served: Served) -> None:
    here = client(served)
    session = run(here, "1")["session_id"]
    code = "import time; time.sleep(600)"

    def leave(path: str, lang: str) -> None:
        given = {"lang": lang, "code": "sleep 600" if lang == "bash" else code, "session_id": session, "tools": TOOLS}
        with pytest.raises(httpx.ReadTimeout):
            here.post(path, json={**given, "timeout": 600_000}, timeout=4)

    with ThreadPoolExecutor(3) as clients:
        list(clients.map(leave, ("/exec", "/exec", "/exec/programmatic"), ("py", "bash", "py")))
    until(lambda: not any(served.running.values()))
    assert run(here, "print('alive')", session_id=session)["stdout"] == "alive\n"
