"""E2B's protocol: sandboxes and their time, code, contexts, files, commands, terminals, and bad requests."""

from __future__ import annotations

import base64
import json
import struct
import time
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pytest

from agent_tools.bodies.envelopes import Envelopes, envelope
from agent_tools.containers.records import WireValue
from agent_tools.wires.e2b.state import E2BState
from tests.gateway.asking import until
from tests.wires.conftest import Served


def read(envelopes: Envelopes, data: bytes) -> list[Any]:
    return list(map(json.loads, envelopes.feed(data)))


class Client:
    """A client with a key, and its calls."""

    def __init__(self, served: Served, key: str = "plain") -> None:
        self.key = served.keys[key]
        made = httpx.Client(base_url=f"{served.gateway.url}/e2b", headers={"X-API-Key": self.key}, timeout=60)
        self.http = served._stack.enter_context(made)

    def create(self, **given: Any) -> Sandbox:
        answer = self.http.post("/v2/sandboxes", json={"templateID": "base", "timeout": 300, **given})
        assert answer.status_code == 201, answer.text
        assert answer.json()["envdAccessToken"] == self.key
        return Sandbox(self, answer.json()["sandboxID"])


class Sandbox:
    """A sandbox, called as the SDKs do it: its token is beside an Authorization that names a user."""

    def __init__(self, client: Client, id_: str) -> None:
        self.id = id_
        self.http = client.http
        self.headers = {"E2b-Sandbox-Id": id_, "X-Access-Token": client.key, "Authorization": "Basic cm9vdDo="}
        self.stream_headers = {**self.headers, "Content-Type": "application/connect+json"}

    def ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        return self.http.request(method, path, **{"headers": self.headers, **given})

    def run(self, code: str, **given: Any) -> list[dict[str, Any]]:
        answer = self.ask("POST", "/execute", json={"code": code, **given})
        assert answer.status_code == 200, answer.text
        return [json.loads(line) for line in answer.text.splitlines()]

    def text(self, code: str, **given: Any) -> str:
        found = [line for line in self.run(code, **given) if line["type"] in ("result", "error")]
        return str(found[0].get("text") or found[0].get("name"))

    def rpc(self, service: str, method: str, **given: Any) -> Any:
        path = {"files": "/filesystem.Filesystem/", "processes": "/process.Process/"}[service] + method
        answer = self.ask("POST", path, json=given)
        return answer.json() if answer.status_code == 200 else (answer.status_code, answer.json()["code"])

    def stream(self, method: str, *messages: dict[str, Any], **headers: str) -> list[dict[str, Any]]:
        content, headers = b"".join(map(envelope, messages)), {**self.stream_headers, **headers}
        answer = self.ask("POST", f"/process.Process/{method}", content=content, headers=headers)
        assert answer.status_code == 200, answer.text
        return read(Envelopes(), answer.content)

    def command(self, command: str, **given: Any) -> tuple[str, int]:
        config = {"cmd": "/bin/bash", "args": ["-c", command], **given}
        events = [each["event"] for each in self.stream("Start", {"process": config, "stdin": False}) if each]
        assert "start" in events[0], events
        return output(events, "stdout"), events[-1]["end"]["exitCode"]


def output(events: list[dict[str, Any]], name: str) -> str:
    pieces = [base64.b64decode(each["data"][name]) for each in events if name in each.get("data", {})]
    return b"".join(pieces).decode()


def test_a_sandbox_is_made_listed_timed_and_killed(served: Served) -> None:
    client = Client(served)
    sandbox, other = client.create(metadata={"a": "1"}), client.create(metadata={"a": "2"})
    shown = client.http.get(f"/sandboxes/{sandbox.id}").json()
    assert (shown["state"], shown["metadata"], shown["memoryMB"] > 0) == ("running", {"a": "1"}, True)
    found = client.http.get("/v2/sandboxes", params={"metadata": "a=2", "state": "running"}).json()
    assert [each["sandboxID"] for each in found] == [other.id]
    assert client.http.post(f"/sandboxes/{sandbox.id}/timeout", json={"timeout": 3_000}).status_code == 204
    assert client.http.get(f"/sandboxes/{sandbox.id}").json()["endAt"] > shown["endAt"]
    assert client.http.post(f"/v2/sandboxes/{sandbox.id}/connect", json={"timeout": 1}).status_code == 200
    assert sandbox.ask("GET", "/health").status_code == 200
    assert client.http.delete(f"/sandboxes/{sandbox.id}").status_code == 204
    assert client.http.delete(f"/sandboxes/{sandbox.id}").status_code == 404
    assert sandbox.ask("GET", "/health").status_code == 502
    assert "was not found" in sandbox.ask("POST", "/execute", json={"code": "1"}).json()["message"]
    assert client.http.post(f"/sandboxes/{other.id}/timeout", json={"timeout": 0}).status_code == 204
    until(lambda: served.rows == [])


def test_code_is_answered_in_lines(served: Served) -> None:
    sandbox = Client(served).create(envVars={"FOO": "bar"})
    lines = sandbox.run("import sys\nprint('o')\nprint('e', file=sys.stderr)\n6 * 7")
    assert [line["type"] for line in lines] == ["stdout", "stderr", "result", "number_of_executions"]
    assert (lines[2]["text"], lines[2]["is_main_result"], lines[3]["execution_count"]) == ("42", True, 1)
    shown = {"text/html": "<b>", "image/svg+xml": "<svg/>", "text/latex": "$x$", "text/x-own": "o"}
    shown |= {"application/json": {"a": [1]}, "application/vnd.e2b.chart+json": {"type": "line"}}  # type: ignore[dict-item]
    found = sandbox.run(f"from IPython.display import display\ndisplay({shown!r}, raw=True)")[0]
    assert (found["html"], found["svg"], found["latex"], found["json"]) == ("<b>", "<svg/>", "$x$", {"a": [1]})
    assert (found["chart"], found["extra"]) == ({"type": "line"}, {"text/x-own": "o"})
    failed = sandbox.run("1 / 0")
    assert (failed[0]["type"], failed[0]["name"]) == ("error", "ZeroDivisionError")
    look = "import os; [os.environ.get(name) for name in ('FOO', 'X')]"
    assert sandbox.text(look, env_vars={"X": "1", "FOO": "2"}) == "['2', '1']"
    assert sandbox.text(look) == "['bar', None]"
    assert sandbox.text("_") == "['bar', None]"
    assert sandbox.ask("POST", "/execute", json={"code": "1", "env_vars": {"A=": "\0"}}).status_code == 400


def test_results_have_the_forms_of_e2b(served: Served) -> None:
    sandbox = Client(served).create()
    charts = "def chart_figure_to_dict(figure): return {'type': 'bar', 'title': figure.title}"
    sandbox.run(f"open('e2b_charts.py', 'w').write({charts!r})")
    table = "import pandas\npandas.DataFrame({'a': [1, 2], 't': pandas.to_datetime(['2020-01-01', None])})"
    assert sandbox.run(table)[0]["data"] == {"a": [1, 2], "t": ["2020-01-01T00:00:00.000", None]}
    figure = "class Figure: title = 'T'\nFigure.__module__ = 'matplotlib.figure'\n"
    figure += (
        "for form in get_ipython().display_formatter.formatters.values(): form.pop(Figure, None)\n"  # as pyplot does
    )
    figure += "Figure()"
    found = next(line for line in sandbox.run(figure) if line["type"] == "result")
    assert found["chart"] == {"type": "bar", "title": "T"}
    context = sandbox.ask("POST", "/contexts", json={}).json()["id"]
    assert sandbox.run("{'a': (1,)}", context_id=context)[0]["json"] == {"a": [1]}
    assert "json" not in sandbox.run("{'a': object()}")[0]
    for string in ('"a"', '"it\'s"'):
        assert sandbox.run(string)[0]["text"] == string[1:-1]
    sandbox.ask("POST", "/contexts/default/restart")
    assert sandbox.run("[1]")[0]["json"] == [1]


def test_variables_of_a_sandbox_are_set_once(served: Served) -> None:
    sandbox = Client(served).create(envVars={"X": "old", "Y": "y"})
    assert sandbox.text("import os; os.environ['X']", env_vars={"X": "own"}) == "own"
    assert sandbox.text("os.environ['X'] + os.environ['Y']") == "oldy"
    sandbox.run("os.environ['X'] = 'new'")
    assert sandbox.text("os.environ['X']") == "new"


def test_a_repeated_request_creates_no_second_sandbox(served: Served) -> None:
    client = Client(served)
    made = [
        client.http.post("/v2/sandboxes", json={"templateID": "base"}, headers={"Idempotency-Key": key}).json()
        for key in ("one", "one", "two")
    ]
    first, again, other = (each["sandboxID"] for each in made)
    assert first == again != other
    assert {each["sandboxID"] for each in client.http.get("/v2/sandboxes").json()} == {first, other}
    client.http.post(f"/sandboxes/{first}/pause")
    answer = client.http.post("/v2/sandboxes", json={"templateID": "base"}, headers={"Idempotency-Key": "one"})
    assert answer.status_code == 201
    assert client.http.get(f"/sandboxes/{first}").json()["state"] == "running"
    client.http.delete(f"/sandboxes/{first}")
    answer = client.http.post("/v2/sandboxes", json={"templateID": "base"}, headers={"Idempotency-Key": "one"})
    assert answer.status_code == 201


def test_metadata_is_found_by_any_characters(served: Served) -> None:
    client, name = Client(served), "a@b.com x+y%z"
    sandbox = client.create(metadata={"the user": name})
    quoted = urlencode({quote("the user"): quote(name)})  # as the SDKs do it
    found = client.http.get("/v2/sandboxes", params={"metadata": quoted}).json()
    assert [each["sandboxID"] for each in found] == [sandbox.id]


def test_metrics_are_of_now(served: Served) -> None:
    client = Client(served)
    sandbox = client.create(network={"allowPublicTraffic": False})
    sandbox.run("open('f', 'w').write('f' * 10_000)")
    (used,) = client.http.get(f"/sandboxes/{sandbox.id}/metrics").json()
    assert used["memUsed"] > 0
    assert (used["cpuUsedPct"] >= 0, used["diskUsed"] >= 10_000) == (True, True)
    for span in ({"end": used["timestampUnix"] - 60}, {"start": used["timestampUnix"] + 60}):
        assert client.http.get(f"/sandboxes/{sandbox.id}/metrics", params=span).json() == []


def test_contexts_have_variables_of_their_own(served: Served) -> None:
    sandbox = Client(served).create()
    sandbox.run("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()")
    made = sandbox.ask("POST", "/contexts", json={"cwd": "/tmp"}).json()
    assert (made["language"], made["cwd"]) == ("python", "/tmp")
    sandbox.run("x = 1", context_id=made["id"])
    assert sandbox.text("x", context_id=made["id"]) == "1"
    assert sandbox.text("x") == "NameError"
    assert sandbox.text("import os; os.getcwd()", context_id=made["id"]) == "/tmp"
    assert [each["id"] for each in sandbox.ask("GET", "/contexts").json()] == ["default", made["id"]]
    assert sandbox.ask("POST", f"/contexts/{made['id']}/restart").status_code == 200
    assert sandbox.text("x", context_id=made["id"]) == "NameError"
    assert sandbox.ask("DELETE", f"/contexts/{made['id']}").status_code == 200
    assert sandbox.ask("POST", "/execute", json={"code": "1", "context_id": made["id"]}).status_code == 404
    assert sandbox.ask("POST", "/contexts", json={"cwd": "/none"}).status_code == 400
    sandbox.run("y = 1")
    assert sandbox.ask("POST", "/contexts/default/restart").status_code == 200
    assert sandbox.text("y") == "NameError"


def test_files_go_in_and_out(served: Served) -> None:
    sandbox = Client(served).create()
    parts = [("file", ("a/1", b"one")), ("file", ("~/2", b"\0"))]
    written = sandbox.ask("POST", "/files", files=parts).json()
    assert [each["path"] for each in written] == ["/home/user/a/1", "/home/user/2"]
    raw = {"params": {"path": "/home/user/raw"}, "content": b"r" * 3_000_000}
    headers = {**sandbox.headers, "Content-Type": "application/octet-stream"}
    assert sandbox.ask("POST", "/files", **raw, headers=headers).status_code == 200
    assert sandbox.ask("GET", "/files", params={"path": "raw"}).content == raw["content"]
    assert sandbox.text("open('a/1').read()") == "one"
    entries = sandbox.rpc("files", "ListDir", path="~", depth=2)["entries"]
    assert [each["path"] for each in entries] == [f"/home/user/{name}" for name in ("2", "a", "a/1", "raw")]
    entry = sandbox.rpc("files", "Stat", path="a/1")["entry"]
    assert (entry["size"], entry["type"], entry["permissions"][:4]) == ("3", "FILE_TYPE_FILE", "-rw-")
    assert sandbox.rpc("files", "MakeDir", path="b/c")["entry"]["type"] == "FILE_TYPE_DIRECTORY"
    assert sandbox.rpc("files", "MakeDir", path="b/c") == (409, "already_exists")
    assert sandbox.rpc("files", "Move", source="a/1", destination="b/1")["entry"]["name"] == "1"
    assert sandbox.rpc("files", "Stat", path="a/1") == (404, "not_found")
    for _ in range(2):
        assert sandbox.rpc("files", "Remove", path="b") == {}
    assert sandbox.rpc("files", "Remove", path="a/..") == (400, "invalid_argument")
    assert sandbox.ask("GET", "/files", params={"path": "none"}).status_code == 404
    assert sandbox.ask("GET", "/files", params={"path": "a"}).status_code == 400
    assert sandbox.ask("GET", "/files", params={"path": "a\0"}).status_code == 400


def test_watched_folders_show_what_has_changed(served: Served) -> None:
    sandbox = Client(served).create()
    sandbox.run("open('old', 'w').write('1'); open('gone', 'w').close()")
    flat, deep = (
        sandbox.rpc("files", "CreateWatcher", path="~", recursive=recursive)["watcherId"] for recursive in (False, True)
    )
    assert sandbox.rpc("files", "GetWatcherEvents", watcherId=flat) == {"events": []}
    watch = envelope({"path": "."})
    path = "/filesystem.Filesystem/WatchDir"
    with sandbox.http.stream("POST", path, content=watch, headers=sandbox.stream_headers) as it:
        pieces, envelopes = it.iter_bytes(), Envelopes()
        streamed = read(envelopes, next(pieces))
        code = (
            "import os; os.makedirs('d'); open('d/new', 'w').write('n'); open('old', 'a').write('2'); os.remove('gone')"
        )
        sandbox.run(code)
        while len(streamed) < 4:
            streamed += read(envelopes, next(pieces))
    found = [
        (each["name"], each["type"][11:]) for each in sandbox.rpc("files", "GetWatcherEvents", watcherId=flat)["events"]
    ]
    assert sorted(found) == [("d", "CREATE"), ("gone", "REMOVE"), ("old", "WRITE")]
    assert sorted((each["filesystem"]["name"], each["filesystem"]["type"][11:]) for each in streamed[1:]) == sorted(
        found
    )
    names = {each["name"] for each in sandbox.rpc("files", "GetWatcherEvents", watcherId=deep)["events"]}
    assert names == {"d", "d/new", "gone", "old"}
    assert sandbox.rpc("files", "RemoveWatcher", watcherId=flat) == {}
    assert sandbox.rpc("files", "GetWatcherEvents", watcherId=flat) == (404, "not_found")
    assert sandbox.rpc("files", "CreateWatcher", path="none") == (404, "not_found")
    most = [sandbox.rpc("files", "CreateWatcher", path=".") for _ in range(17)]
    assert most[-1] == (429, "resource_exhausted")


def test_commands_run_to_their_end(served: Served) -> None:
    sandbox = Client(served).create(envVars={"FOO": "bar"})
    assert sandbox.command("echo $FOO $X; exit 3", envs={"X": "x"}) == ("bar x\n", 3)
    assert sandbox.command("pwd", cwd="/tmp") == ("/tmp\n", 0)
    assert sandbox.command("", cmd="/usr/bin/printenv", args=["PWD"]) == ("/home/user\n", 0)
    assert len(sandbox.command("head -c 3000000 /dev/zero | tr '\\0' x")[0]) == 3_000_000
    start = {"process": {"cmd": "/bin/sleep", "args": ["60"]}}
    late = sandbox.stream("Start", start, **{"Connect-Timeout-Ms": "500"})
    assert late[-1]["error"]["code"] == "deadline_exceeded"
    for bad in ({"process": {"cmd": "ls", "cwd": "/none"}}, {"process": {}}, {}):
        assert sandbox.stream("Start", bad)[-1]["error"]["code"] in ("not_found", "invalid_argument")


def test_commands_go_on_beside_their_client(served: Served) -> None:
    sandbox = Client(served).create()
    start = {"process": {"cmd": "/bin/cat"}, "tag": "mine"}
    with sandbox.http.stream(
        "POST", "/process.Process/Start", content=envelope(start), headers=sandbox.stream_headers
    ) as it:
        first = read(Envelopes(), next(it.iter_bytes()))
    pid = first[0]["event"]["start"]["pid"]
    assert [(each["pid"], each["tag"]) for each in sandbox.rpc("processes", "List")["processes"]] == [(pid, "mine")]
    by_pid, typed = {"process": {"pid": pid}}, base64.b64encode(b"hi\n").decode()
    with sandbox.http.stream(
        "POST", "/process.Process/Connect", content=envelope(by_pid), headers=sandbox.stream_headers
    ) as it:
        pieces, envelopes = it.iter_bytes(), Envelopes()
        events = read(envelopes, next(pieces))
        assert sandbox.rpc("processes", "SendInput", process={"tag": "mine"}, input={"stdin": typed}) == {}
        streamed = [{"start": by_pid}, {"keepalive": {}}, {"data": {"input": {"stdin": typed}}}]
        assert sandbox.stream("StreamInput", *streamed)[-1] == {}
        assert sandbox.rpc("processes", "CloseStdin", **by_pid) == {}
        events += [each for piece in pieces for each in read(envelopes, piece)]
    assert output([each["event"] for each in events if each], "stdout") == "hi\nhi\n"
    until(lambda: sandbox.rpc("processes", "List") == {"processes": []})
    assert sandbox.rpc("processes", "SendSignal", **by_pid, signal="SIGNAL_SIGKILL") == (404, "not_found")


def test_terminals_have_a_size_and_end_by_signal(served: Served) -> None:
    sandbox = Client(served).create()
    start = {"process": {"cmd": "/bin/sh"}, "pty": {"size": {"rows": 30, "cols": 90}}}
    with sandbox.http.stream(
        "POST", "/process.Process/Start", content=envelope(start), headers=sandbox.stream_headers
    ) as it:
        pieces, envelopes = it.iter_bytes(), Envelopes()
        events = read(envelopes, next(pieces))
        mine = {"process": {"pid": events[0]["event"]["start"]["pid"]}}
        assert sandbox.rpc("processes", "Update", **mine, pty={"size": {"rows": 40, "cols": 100}}) == {}
        typed = base64.b64encode(b"stty size; echo re''ady\n").decode()
        assert sandbox.rpc("processes", "SendInput", **mine, input={"pty": typed}) == {}
        while "ready" not in output([each["event"] for each in events], "pty"):
            events += read(envelopes, next(pieces))
        assert sandbox.rpc("processes", "SendSignal", **mine, signal="SIGNAL_SIGKILL") == {}
        assert sandbox.rpc("processes", "SendSignal", **mine, signal="SIGNAL_SIGKILL") == (404, "not_found")
        events += [each for piece in pieces for each in read(envelopes, piece)]
    assert "40 100" in output([each["event"] for each in events if each], "pty")
    assert events[-2]["event"]["end"]["exitCode"] != 0


def test_a_paused_sandbox_keeps_files_and_variables(served: Served) -> None:
    client = Client(served)
    sandbox = client.create(timeout=100)
    sandbox.run("x = 41; open('f', 'w').write('f')")
    assert client.http.post(f"/sandboxes/{sandbox.id}/pause", json={}).status_code == 204
    assert client.http.post(f"/sandboxes/{sandbox.id}/pause", json={}).status_code == 409
    assert sandbox.ask("GET", "/health").status_code == 502
    assert client.http.get("/v2/sandboxes").json()[0]["state"] == "paused"
    assert client.http.get("/v2/sandboxes", params={"state": "running"}).json() == []
    assert client.http.post(f"/sandboxes/{sandbox.id}/connect", json={"timeout": 100}).status_code == 201
    assert sandbox.text("x + 1, open('f').read()") == "(42, 'f')"
    waking = client.create(timeout=0, autoPause=True, autoResume={"enabled": True})
    until(lambda: client.http.get(f"/sandboxes/{waking.id}").json().get("state") == "paused")
    assert waking.text("1 + 1") == "2"


def test_code_ends_with_the_time_of_a_sandbox_that_is_paused_then(served: Served) -> None:
    client = Client(served)
    sandbox = client.create(autoPause=True)
    asked: dict[str, Any] = {"json": {"code": "x = 1; print(x, flush=True); import time; time.sleep(600)"}}
    with sandbox.http.stream("POST", "/execute", headers=sandbox.headers, **asked) as answer:
        lines = map(json.loads, answer.iter_lines())
        assert next(lines)["text"] == "1\n"
        assert client.http.post(f"/sandboxes/{sandbox.id}/timeout", json={"timeout": 0}).status_code == 204
        assert "error" in [each["type"] for each in lines]
    assert client.http.post(f"/sandboxes/{sandbox.id}/connect", json={"timeout": 100}).status_code == 201
    assert sandbox.text("x") == "1"


def test_a_sandbox_without_its_memory_is_refused(served: Served) -> None:
    client = Client(served)
    sandbox = client.create(autoPauseMemory=True)
    for path, given in (
        ("/v2/sandboxes", {"templateID": "base", "autoPauseMemory": False}),
        (f"/sandboxes/{sandbox.id}/pause", {"memory": False}),
        (f"/sandboxes/{sandbox.id}/connect", {"timeout": 100, "memory": False}),
    ):
        assert client.http.post(path, json=given).status_code == 501
    assert client.http.post(f"/sandboxes/{sandbox.id}/pause", json={"memory": True}).status_code == 204


def test_a_pause_that_ends_a_command_is_not_undone_by_the_end_of_its_stream(served: Served) -> None:
    client = Client(served)
    sandbox = client.create(timeout=100, autoPause=True, autoResume={"enabled": True})
    start = envelope({"process": {"cmd": "/bin/sleep", "args": ["60"]}})
    path = "/process.Process/Start"
    with sandbox.http.stream("POST", path, content=start, headers=sandbox.stream_headers) as it:
        pieces, envelopes = it.iter_bytes(), Envelopes()
        read(envelopes, next(pieces))
        assert client.http.post(f"/sandboxes/{sandbox.id}/pause", json={}).status_code == 204
        last = [each for piece in pieces for each in read(envelopes, piece)][-1]
    assert last["error"]["code"] == "unavailable"
    assert client.http.get(f"/sandboxes/{sandbox.id}").json()["state"] == "paused"


def test_a_sandbox_whose_time_ends_while_no_gateway_runs_is_paused(served: Served) -> None:
    client, services = Client(served), served.gateway.services
    sandbox = client.create(timeout=300, autoPause=True)
    row = services.store.get(WireValue, f"e2b-{sandbox.id}")
    assert row
    ended = E2BState.model_validate_json(row.value).model_copy(update={"ends": time.time() - 600})
    services.store.change(WireValue, row.id, value=ended.model_dump_json())
    services.containers.endings.sweep(time.time() + 900)
    assert client.http.get(f"/sandboxes/{sandbox.id}").json().get("state") == "paused"
    assert client.http.post(f"/sandboxes/{sandbox.id}/connect", json={"timeout": 100}).status_code == 201


def test_sandboxes_of_other_keys_are_not_found(served: Served) -> None:
    sandbox = Client(served).create()
    stranger = Client(served, "second")
    assert stranger.http.get("/v2/sandboxes").json() == []
    assert stranger.http.get(f"/sandboxes/{sandbox.id}").status_code == 404
    assert stranger.http.delete(f"/sandboxes/{sandbox.id}").status_code == 404
    theirs = Sandbox(stranger, sandbox.id)
    assert theirs.ask("POST", "/execute", json={"code": "1"}).status_code == 502
    assert theirs.rpc("files", "ListDir", path="/") == (502, "unavailable")
    for headers in ({}, {"X-Access-Token": "none"}, {"Authorization": "Basic cm9vdDo="}):
        answer = httpx.get(f"{served.gateway.url}/e2b/health", headers={"E2b-Sandbox-Id": sandbox.id, **headers})
        assert answer.status_code == 401
        assert (answer.json()["code"], answer.json()["message"]) == (401, answer.json()["detail"])


def test_a_proxy_may_name_the_sandbox_by_its_host(served: Served) -> None:
    client = Client(served)
    made = client.http.post("/sandboxes", json={}, headers={"Host": "api.sandboxes.test"}).json()
    assert made["domain"] == "sandboxes.test"
    for port, status in ((49999, 200), (49983, 200), (8000, 501)):
        headers = {"Host": f"{port}-{made['sandboxID']}.{made['domain']}", "X-Access-Token": client.key}
        answer = httpx.post(f"{served.gateway.url}/e2b/execute", json={"code": "6 * 7"}, headers=headers, timeout=60)
        assert answer.status_code == status
        assert status != 200 or '"text":"42"' in answer.text


def test_sandboxes_are_listed_page_by_page(served: Served) -> None:
    client = Client(served)
    made = [client.create().id for _ in range(3)][::-1]
    first = client.http.get("/v2/sandboxes", params={"limit": 2})
    token = first.headers["X-Next-Token"]
    second = client.http.get("/v2/sandboxes", params={"limit": 2, "nextToken": token})
    assert [each["sandboxID"] for page in (first, second) for each in page.json()] == made
    assert "X-Next-Token" not in second.headers
    for query, found in (
        ({"order": "asc", "limit": 1}, made[2:]),
        ({"template": "other"}, []),
        ({"startedAfter": "2999-01-01T00:00:00Z"}, []),
    ):
        assert [each["sandboxID"] for each in client.http.get("/v2/sandboxes", params=query).json()] == found
    for bad in ({"limit": 0}, {"nextToken": "x"}, {"order": "up"}, {"startedAfter": "x"}):
        assert client.http.get("/v2/sandboxes", params=bad).status_code == 422


def test_parts_that_are_absent_answer_with_a_sentence(served: Served) -> None:
    client = Client(served)
    sandbox = client.create()
    asked = [
        client.http.get("/templates"),
        client.http.post("/v3/templates", json={}),
        client.http.post(f"/sandboxes/{sandbox.id}/resume", json={}),
        client.http.post("/volumes", json={"name": "own"}),
        client.http.delete("/volumes/data"),
        client.http.get("/volumecontent/data/file", params={"path": "/x"}),
        client.http.post(f"/sandboxes/{sandbox.id}/snapshots", json={}),
        client.http.post("/v2/sandboxes", json={"templateID": "my-own"}),
        client.http.post("/v2/sandboxes", json={"network": {"allowOut": ["a.org"]}}),
        sandbox.ask("POST", "/execute", json={"code": "1", "language": "r"}),
        sandbox.ask("GET", "/health", headers={**sandbox.headers, "E2b-Sandbox-Port": "8000"}),
    ]
    for answer in asked:
        assert answer.status_code == 501, answer.text
        assert answer.json()["message"].endswith("."), answer.text
    assert client.http.get("/none").status_code == 404


@pytest.mark.parametrize(
    "content",
    [b"", b"\0", b"\1\0\0\0\2{}", b"\0\xff\xff\xff\xff", envelope({})[:-1] + b"[", b"\0\0\0\0\2[]", b"[" * 100_000],
    ids=["empty", "short", "compressed", "too large", "no JSON", "no object", "nested"],
)
def test_malformed_streams_are_answered_with_an_error(served: Served, content: bytes) -> None:
    sandbox = Client(served).create()
    for method in ("Start", "Connect"):
        headers = sandbox.stream_headers
        answer = sandbox.ask("POST", f"/process.Process/{method}", content=content, headers=headers)
        flags, size = struct.unpack_from(">BI", answer.content)
        assert (answer.status_code, flags, size) == (200, 2, len(answer.content) - 5)
        assert "error" in json.loads(answer.content[5:])


def test_bad_requests_are_answered_with_an_error(served: Served) -> None:
    client = Client(served)
    sandbox = client.create()
    for bad in ({"timeout": -1}, {"timeout": 1e99}, {"metadata": {"a": 1}}, {"metadata": {"a": "x" * 70_000}}, []):
        assert client.http.post("/v2/sandboxes", json=bad).status_code in (400, 422)
    for id_ in ("i" * 25, "..", "i" + "0" * 24, "%00"):
        assert client.http.get(f"/sandboxes/{id_}").status_code == 404
    start = envelope({"process": {"cmd": "ls"}})
    for late in ("0", "-1", "1e3", "9" * 400):
        headers = {**sandbox.stream_headers, "Connect-Timeout-Ms": late}
        assert (
            b"invalid_argument" in sandbox.ask("POST", "/process.Process/Start", content=start, headers=headers).content
        )
    for method in ("SendSignal", "SendInput", "CloseStdin", "Update"):
        assert sandbox.rpc("processes", method, process="x") == (422, "invalid_argument")


def test_errors_of_captured_code_and_of_files_that_run_are_told(served: Served) -> None:
    sandbox = Client(served).create()
    for code, name in (
        ("%%capture\n1 / 0", "ZeroDivisionError"),
        ("%%capture x\nx = = 3", "SyntaxError"),
        ("get_ipython().run_cell('1 / 0')", "ZeroDivisionError"),
        ("open('bad.py', 'w').write('raise ValueError(1)')\n%run bad.py\nprint('went on'.upper())", "ValueError"),
    ):
        answer = sandbox.ask("POST", "/execute", json={"code": code}).text
        assert "WENT ON" not in answer, code
        (error,) = (each for each in map(json.loads, answer.splitlines()) if each["type"] == "error")
        assert error["name"] == name, code


def test_no_later_line_runs_once_a_client_has_left(served: Served) -> None:
    sandbox = Client(served).create()
    with pytest.raises(httpx.ReadTimeout):
        sandbox.ask("POST", "/execute", json={"code": "x = 1\n!sleep 600\nx = 2"}, timeout=2)
    assert sandbox.text("x") == "1"


def test_code_of_a_sandbox_that_is_killed_ends_with_an_error(served: Served) -> None:
    sandbox = Client(served).create()
    asked: dict[str, Any] = {"json": {"code": "print(1, flush=True); import time; time.sleep(600)"}}
    with sandbox.http.stream("POST", "/execute", headers=sandbox.headers, **asked) as answer:
        lines = map(json.loads, answer.iter_lines())
        assert next(lines)["text"] == "1\n"
        assert Client(served).http.delete(f"/sandboxes/{sandbox.id}").status_code == 204
        *_, last = lines
    assert (last["type"], last["name"]) == ("error", "SessionClosed")


def test_a_client_that_leaves_ends_its_code(served: Served) -> None:
    sandbox = Client(served).create()
    with pytest.raises(httpx.ReadTimeout):
        sandbox.ask("POST", "/execute", json={"code": "x = 1\nimport time\ntime.sleep(600)"}, timeout=2)
    assert sandbox.text("x") == "1"


def test_code_that_runs_up_to_the_end_of_its_sandboxs_time_is_told_as_ended(served: Served) -> None:
    client = Client(served)
    sandbox = client.create()
    with sandbox.http.stream(
        "POST",
        "/execute",
        json={"code": "print('begun', flush=True)\n!sleep 600\nprint('went on')"},
        headers=sandbox.headers,
    ) as answer:
        lines = answer.iter_lines()
        assert json.loads(next(lines))["text"] == "begun\n"
        assert client.http.post(f"/sandboxes/{sandbox.id}/timeout", json={"timeout": 0}).status_code == 204
        *_, last = map(json.loads, lines)
    assert last["type"] == "error"
    assert "went on" not in str(last)
