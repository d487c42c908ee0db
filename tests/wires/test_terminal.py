"""The terminal wire by plain HTTP: every route, who may use it, and what starts a container."""

from __future__ import annotations

import base64
import io
import json
import logging
import os
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_tools.containers.records import WireValue
from agent_tools.wires.terminal import MOUNT
from agent_tools.wires.terminal.policies import POLICIES
from agent_tools.wires.terminal.state import ROUTES as OPERATIONS
from agent_tools.wires.terminal.state import resolved
from tests.gateway.asking import until
from tests.skills import skill_folder
from tests.wires.conftest import CHART, Served

PNG = base64.b64encode(
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\6\0\0\0\x1f\x15\xc4\x89\0\0\0\nIDATx\x9cc\0\1\0\0\5\0\1\r\n-\xb4\0\0\0\0"
    b"IEND\xaeB`\x82"
).decode()
NOTEBOOK = json.dumps({"cells": [{"cell_type": "code", "source": ["y = 6\n", "y * 7"]}], "nbformat": 4})
ROUTES = [
    (each.method, each.path.replace("{rest:path}", "80/x").replace("{path:path}", "workspace/a.txt"))
    for each in OPERATIONS.operations
]
ROUTES = [(method, path.replace("{id}", "any").replace("{process_id}", "any")) for method, path in ROUTES]
ROUTES.append(("GET", "/api/config"))
ADMIN = [(each.method, each.path.replace("{name}", "a")) for each in POLICIES.operations]


def ran(client: httpx.Client, command: str, **query: Any) -> dict[str, Any]:
    answer = client.post("/execute", json={"command": command}, params={"wait": 60, **query})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def output(told: dict[str, Any]) -> str:
    return "".join(each["data"] for each in told["output"]).replace("\r\n", "\n")


def python(client: httpx.Client, code: str, **given: Any) -> dict[str, Any]:
    answer = client.post("/python", json={"code": code, **given})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_every_route_needs_a_key_but_those_that_a_browser_asks_without(served: Served) -> None:
    for method, path in ROUTES + ADMIN:
        for prefix in ("", "/p/team"):
            is_public = path in MOUNT.public and not prefix
            for key, expected in ((None, 200 if is_public else 401), ("wrong-key-1", 401)):
                headers = {"Authorization": f"Bearer {key}"} if key else {}
                answer = httpx.request(method, served.url + prefix + path, headers=headers)
                assert answer.status_code == expected, (method, prefix, path, key, answer.text)
    assert served.rows == []


def test_reading_makes_no_container_and_shows_an_empty_home(served: Served) -> None:
    for prefix in ("", "/p/team"):
        client = served.client(prefix=prefix)
        for method, path in ROUTES:
            if method == "GET":
                assert client.get(path).status_code in (200, 404, 422, 501), path
        assert client.get("/files/list").json()["entries"] == []
        assert client.get("/files/read", params={"path": "AGENTS.md"}).status_code == 404
        for path, nothing in (("grep", "matches"), ("search", "results"), ("matches", "results")):
            assert client.get(f"/files/{path}", params={"query": "x"}).json()[nothing] == []
        assert client.post("/files/cwd", json={"path": "/workspace"}).status_code == 200
        for method, path in (
            ("DELETE", "/files/delete?path=a"),
            ("DELETE", "/execute/any"),
            ("DELETE", "/notebooks/any"),
        ):
            assert client.request(method, path).status_code == 404
    assert served.rows == []
    assert served.running == {}


def test_open_webui_finds_the_operators_skills_without_a_container(serve: Any, tmp_path: Path) -> None:
    folder = skill_folder(tmp_path / "skills" / "m", {"scripts/a.py": "1", "b.md": "---\n"})
    (folder / "SKILL.md").write_bytes(b"---\r\nname: m\r\ndescription: Does things.\r\n---\r\nBody\n---\nmore\n")
    served = serve(skills=(str(folder),))
    client = served.client("system", chat="")
    (skill,) = client.get("/skills").json()
    about = {"name": "m", "description": "Does things.", "location": "/skills/m/SKILL.md"}
    assert skill == {"id": "terminal:m", **about, "scope": "global", "source": "terminal"}
    read = {**skill, "content": "Body\n---\nmore", "resources": ["b.md", "scripts/a.py"]}
    assert client.get("/skills/read", params={"name": "m"}).json() == read
    assert client.get("/skills/read", params={"name": "../m"}).status_code == 404
    assert served.rows == []


def test_open_webui_itself_gets_the_prompt_and_no_container(served: Served) -> None:
    for user in ("system", ""):
        client = served.client(user, chat="")
        assert "sealed" in client.get("/system").json()["prompt"]
        assert client.get("/files/cwd").json()["cwd"] == "/workspace"
        for path, body in (("/execute", {"command": "id"}), ("/python", {"code": "1"}), ("/api/terminals", {})):
            answer = client.post(path, json=body)
            assert (answer.status_code, "names one" in answer.text) == (403, True)
    assert served.rows == []


def test_files_are_written_listed_read_and_moved(served: Served) -> None:
    client = served.client()
    assert client.post("/files/write", json={"path": "a/b.txt", "content": "one\r\ntwo\n"}).json()["size"] == 9
    assert client.get("/files/read", params={"path": "a/b.txt"}).json()["content"] == "one\ntwo\n"
    some = client.get("/files/read", params={"path": "~/a/b.txt", "start_line": 2, "end_line": "null"}).json()
    assert (some["path"], some["content"], some["total_lines"]) == ("/workspace/a/b.txt", "two\n", 2)
    form = {"file": ("../../x y.csv", b"1,2")}
    sent = client.post("/files/upload", params={"directory": "/workspace/"}, files=form).json()
    assert sent == {"path": "/workspace/x y.csv", "size": 3}
    kinds = {each["name"]: each["type"] for each in client.get("/files/list").json()["entries"]}
    assert kinds == {"a": "directory", "x y.csv": "file"}
    assert client.post("/files/mkdir", json={"path": "/workspace/d"}).status_code == 200
    to = {"source": "/workspace/x y.csv", "destination": "/workspace/d/z.csv"}
    assert [client.post("/files/move", json=to).status_code for _ in range(2)] == [200, 404]
    assert client.post("/files/move", json={**to, "source": "/workspace/a"}).status_code == 409
    assert client.get("/files/view", params={"path": "/workspace/d/z.csv"}).content == b"1,2"
    assert client.get("/files/serve/workspace/d/z.csv").headers["content-type"].startswith("text/csv")
    assert client.get("/files/display", params={"path": "d/z.csv"}).json()["exists"]
    assert not client.get("/files/display", params={"path": "d"}).json()["exists"]
    assert client.delete("/files/delete", params={"path": "/workspace/d"}).json()["type"] == "directory"
    assert client.get("/files/list", params={"directory": "d"}).status_code == 404
    assert client.delete("/files/delete", params={"path": "~"}).status_code == 400


def test_texts_are_replaced_within_their_lines(served: Served) -> None:
    client = served.client()
    client.post("/files/write", json={"path": "x.py", "content": "a = 1\na = 2\n"})

    def replaced(**each: Any) -> int:
        return client.post("/files/replace", json={"path": "x.py", "replacements": [each]}).status_code

    assert replaced(target="a", replacement="b") == 400
    assert replaced(target="z", replacement="b") == 400
    assert replaced(target="a", replacement="b", start_line=2, end_line=2) == 200
    assert replaced(target="=", replacement=":=", allow_multiple=True) == 200
    assert client.get("/files/read", params={"path": "x.py"}).json()["content"] == "a := 1\nb := 2\n"


def test_a_replacement_with_half_a_character_is_written(served: Served) -> None:
    client = served.client()
    client.post("/files/write", json={"path": "x.py", "content": "a"})
    body = json.dumps({"path": "x.py", "replacements": [{"target": "a", "replacement": "\ud800"}]})
    assert client.post("/files/replace", content=body).json()["size"] == 3


def test_files_are_searched_in_the_sandbox(served: Served) -> None:
    client = served.client()
    for name, text in (
        ("w/x.py", "def f():\n    return 'needle'\n"),
        ("w/☃.md", "a needle\n"),
        (".hidden", "needle\n"),
    ):
        client.post("/files/write", json={"path": name, "content": text})
    found = client.get("/files/grep", params={"query": "need.e", "include": ["*.py", "*.txt"]}).json()["matches"]
    assert found == [{"file": "/workspace/w/x.py", "line": 2, "content": "    return 'needle'"}]
    assert client.get("/files/grep", params={"query": "f("}).status_code == 400
    assert client.get("/files/grep", params={"query": "f(", "regex": False}).json()["matches"][0]["line"] == 1
    assert client.get("/files/grep", params={"query": "x", "path": "nope"}).status_code == 404
    names = [each["path"] for each in client.get("/files/glob", params={"pattern": "*.py"}).json()["matches"]]
    assert names == ["w/x.py"]
    assert [each["name"] for each in client.get("/files/search", params={"query": "☃"}).json()["results"]] == ["☃.md"]
    assert client.get("/files/grep", params={"query": "null"}).json()["matches"] == []
    assert client.get("/files/search", params={"query": "null"}).json()["results"] == []
    rows = client.get("/files/matches", params={"query": "needle"}).json()["results"]
    lines = {each["relative_path"]: each["content_matches"][0] for each in rows}
    assert lines["w/☃.md"] == {"line": 1, "column": 3, "text": "a needle"}
    assert ".hidden" not in lines
    given = {"original": "w/x.py", "revised": "w/☃.md"}
    compared = client.post("/files/compare", json=given).json()
    assert (compared["additions"], compared["deletions"]) == (1, 2)
    assert compared["original"]["path"] == "/workspace/w/x.py"


def test_an_archive_holds_what_can_be_read(served: Served) -> None:
    client = served.client()
    client.post("/files/write", json={"path": "w/x.py", "content": "x" * 100_000})
    ran(client, "ln -s nowhere w/dangling; mkfifo w/pipe; touch $'w/\\xff.txt'")
    answer = client.post("/files/archive", json={"paths": ["/workspace/w"]})
    assert answer.headers["content-disposition"] == 'attachment; filename="w.zip"'
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert sorted(archive.namelist()) == ["w/?.txt", "w/x.py"]
        assert archive.testzip() is None
    assert client.post("/files/archive", json={"paths": ["/workspace/nope"]}).status_code == 404
    assert client.post("/files/archive", json={"paths": []}).status_code == 400


def test_commands_have_a_terminal_a_folder_and_an_end(served: Served) -> None:
    client = served.client()
    given = {"command": "echo $HOME $A; exit 3", "env": {"A": "b"}}
    told = client.post("/execute", json=given, params={"wait": 60, "tail": "null"}).json()
    assert (told["status"], told["exit_code"], output(told)) == ("done", 3, "/workspace b\n")
    client.post("/files/mkdir", json={"path": "/workspace/sub"})
    client.post("/files/cwd", json={"path": "/workspace/sub"})
    assert output(ran(client, "basename $PWD")) == "sub\n"
    assert output(ran(served.client(chat="1"), "seq 5", tail=2)) == "4\n5\n"
    client.post("/files/cwd", json={"path": "/workspace/nope"})
    assert client.get("/files/cwd").json()["cwd"] == "/workspace/sub"


def test_a_command_that_goes_on_is_read_typed_into_and_ended(served: Served) -> None:
    client = served.client()
    told = ran(client, "read line; echo got $line ☃; sleep 100", wait=0)
    id_ = told["id"]
    assert told["status"] == "running"
    client.post(f"/execute/{id_}/input", json={"input": "hello\n"})
    until(lambda: "got hello ☃" in output(client.get(f"/execute/{id_}/status").json()))
    told = client.get(f"/execute/{id_}/status").json()
    again = client.get(f"/execute/{id_}/status", params={"offset": told["next_offset"]}).json()
    assert again["output"] == []
    assert [each["status"] for each in client.get("/execute").json()] == ["running"]
    assert client.delete(f"/execute/{id_}", params={"force": True}).status_code == 200
    assert client.get(f"/execute/{id_}/status", params={"wait": 60}).json()["status"] == "killed"
    assert client.post(f"/execute/{id_}/input", json={"input": "x"}).status_code == 400


def test_so_many_commands_go_on_in_a_container(serve: Any) -> None:
    client = serve().client()
    client.post("/files/mkdir", json={"path": "/workspace/a"})
    with ThreadPoolExecutor(20) as pool:
        given = {"json": {"command": "sleep 100"}, "params": {"wait": 0}}
        answers = list(pool.map(lambda _: client.post("/execute", **given), range(20)))
    assert sorted(each.status_code for each in answers) == [200] * 16 + [429] * 4
    assert any("16 commands" in each.text for each in answers)


def test_python_keeps_variables_and_shows_pictures(served: Served) -> None:
    client = served.client()
    shown = f"from IPython.display import Image\nImage(base64.b64decode('{PNG}'))"
    code = f"import base64\nx = 41\nprint('p')\nopen('new.txt', 'w').write('a')\n{shown}"
    told = python(client, code)
    assert (told["ok"], told["stdout"], told["figures"]) == (True, "p\n", [f"data:image/png;base64,{PNG}"])
    assert told["files"] == [{"path": "new.txt", "size": 1}]
    assert python(client, "x + 1")["result"] == "42"
    assert python(client, CHART)["result"] == "[A chart]"
    failed = python(client, "1 / 0")
    assert (failed["ok"], "ZeroDivisionError" in failed["error"]) == (False, True)
    assert "NameError" in python(served.client(chat="2"), "x")["error"]
    late = python(client, "while True: pass", timeout=0.5)
    assert not late["ok"]


def test_a_client_that_leaves_ends_its_code(served: Served) -> None:
    client = served.client()
    python(client, "1")
    with pytest.raises(httpx.ReadTimeout):
        client.post("/python", json={"code": "import time\nwhile True: time.sleep(0.01)"}, timeout=1)
    assert python(client, "2", timeout=30)["result"] == "2"


def test_a_notebook_has_a_kernel_of_its_own_and_its_file_has_the_outputs(served: Served) -> None:
    client = served.client()
    python(client, "x = 1")
    client.post("/files/write", json={"path": "n.ipynb", "content": NOTEBOOK})
    id_ = client.post("/notebooks", json={"path": "n.ipynb"}).json()["id"]

    def cell(**given: Any) -> dict[str, Any]:
        found: dict[str, Any] = client.post(f"/notebooks/{id_}/execute", json={"cell_index": 0, **given}).json()
        return found

    assert cell()["outputs"][0]["data"]["text/plain"] == "42"
    assert cell(source="x")["outputs"][0]["ename"] == "NameError"
    assert cell(source="print(y)")["outputs"] == [{"output_type": "stream", "name": "stdout", "text": "6\n"}]
    saved = json.loads(client.get("/files/read", params={"path": "n.ipynb"}).json()["content"])
    assert saved["cells"][0]["execution_count"] == 3
    assert client.post(f"/notebooks/{id_}/execute", json={"cell_index": 9}).status_code == 400
    assert client.get(f"/notebooks/{id_}").json()["status"] == "ready"
    assert client.delete(f"/notebooks/{id_}").json() == {"status": "stopped"}
    assert client.get(f"/notebooks/{id_}").status_code == 404
    for content in ("[]", "{", '{"cells": 1}'):
        client.post("/files/write", json={"path": "bad.ipynb", "content": content})
        assert client.post("/notebooks", json={"path": "bad.ipynb"}).status_code == 400
    assert client.post("/notebooks", json={"path": "nope.ipynb"}).status_code == 404


# -- users ------------------------------------------------------------------------------------------------------------


def test_keys_users_policies_and_chats_each_have_a_container(served: Served) -> None:
    clients = {
        (key, user, chat, prefix): served.client(user, chat, key, prefix)
        for key in ("first", "second")
        for user in ("ann", "bob")
        for chat in ("1", "2")
        for prefix in ("", "/p/team")
    }
    for who, client in clients.items():
        client.post("/files/write", json={"path": "who.txt", "content": repr(who)})
    assert len(served.rows) == len(clients)
    for who, client in clients.items():
        assert client.get("/files/read", params={"path": "who.txt"}).json()["content"] == repr(who)


def test_a_key_that_is_not_for_users_names_none(served: Served) -> None:
    named, other = served.client("ann", "1", "plain"), served.client("bob", "2", "plain", "/p/team")
    named.post("/files/write", json={"path": "a.txt", "content": "a"})
    assert other.get("/files/read", params={"path": "a.txt"}).json()["content"] == "a"
    assert len(served.rows) == 1
    for method, path in ADMIN:
        assert named.request(method, path).status_code == 403


def test_nobody_reaches_what_another_user_has(served: Served) -> None:
    ann = served.client()
    ann.post("/files/write", json={"path": "n.ipynb", "content": NOTEBOOK})
    ids = [
        ran(ann, "sleep 100", wait=0)["id"],
        ann.post("/api/terminals").json()["id"],
        ann.post("/notebooks", json={"path": "n.ipynb"}).json()["id"],
    ]
    others = [
        served.client("bob"),
        served.client(chat="2"),
        served.client(key="second"),
        served.client(prefix="/p/team"),
    ]
    for other in [*others, served.client(key="plain")]:
        for method, path, _ in [(m, p, None) for m, p in ROUTES if "any" in p]:
            for id_ in ids:
                body = {"input": "x", "cell_index": 0}
                answer = other.request(method, path.replace("any", id_), json=body)
                assert answer.status_code == 404, (method, path)
        assert [other.get(path).json() for path in ("/execute", "/api/terminals")] == [[], []]
        assert other.get("/api/terminals/user/output").status_code == 404
        assert other.get("/files/read", params={"path": "n.ipynb", "user_id": "ann"}).status_code == 404
    assert [each["id"] for each in ann.get("/execute").json()] == [ids[0]]
    assert len(served.rows) == 1


def test_policies_are_for_the_holder_of_the_key_alone(served: Served) -> None:
    admin = served.client("", "")
    for method, path in ADMIN:
        assert served.client(chat="").request(method, path, json={}).status_code == 403
    owner = served.gateway.services.keys.caller(dict(admin.headers)).owner
    served.gateway.services.store.add(WireValue(id="e2b-i1", owner=owner, created_at=1.0, value="{}"))
    assert admin.get("/api/v1/policies").json() == {"policies": 0}
    assert admin.get("/api/v1/policies/team").status_code == 404
    usual = {"cpu_limit": "1", "memory_limit": "1Gi", "idle_timeout_minutes": 30}
    assert admin.put("/api/v1/policies/team", json=usual).status_code == 200
    assert admin.get("/api/v1/policies/team").json()["data"]["memory_limit"] == "1Gi"
    assert admin.put("/api/v1/policies/team", json={"memory_limit": "3Gi"}).status_code == 200
    served.client(prefix="/p/team").post("/files/write", json={"path": "a", "content": ""})
    assert [row.memory_limit for row in served.rows] == ["4g"]
    for bad in ({"image": "evil"}, {"env": {"A": "b"}}, {"memory_limit": "1Ti"}, {"memory_limit": "x"}):
        assert admin.put("/api/v1/policies/team", json=bad).status_code == 422
    assert admin.put("/api/v1/policies/team/lifecycle", json={}).status_code == 200
    assert admin.put("/api/v1/policies/team/lifecycle", json={"a": 1}).status_code == 422
    assert admin.post("/api/v1/terminals/refresh", json={}).json() == {"refreshed": 0}
    assert served.client("", "", "second").get("/api/v1/policies/team").status_code == 404


# -- limits -----------------------------------------------------------------------------------------------------------


def test_a_user_has_so_many_containers_and_loses_the_oldest(serve: Any) -> None:
    served = serve(max_user_containers=2)
    bob = served.client("bob")
    bob.post("/files/write", json={"path": "a", "content": "bob"})
    for chat in "123":
        served.client(chat=chat).post("/files/write", json={"path": "a", "content": chat})
    there = [served.client(chat=chat).get("/files/read", params={"path": "a"}).status_code for chat in "123"]
    assert there == [404, 200, 200]
    assert bob.get("/files/read", params={"path": "a"}).status_code == 200


def test_polls_are_no_use_and_an_open_shell_delays_no_expiry(served: Served) -> None:
    client = served.client()
    client.post("/files/write", json={"path": "a", "content": "a"})
    assert client.post("/api/terminals").status_code == 200
    before = served.rows[0].last_active_at
    for path in ("/execute", "/ports", "/files/list", "/files/read?path=a", "/api/terminals", "/files/cwd", "/system"):
        assert client.get(path).status_code == 200
    assert served.rows[0].last_active_at == before
    services = served.gateway.services
    services.containers.clock = lambda: time.time() + 8 * 86_400
    services.containers.sweep()
    assert [row.status for row in served.rows] == ["expired"]
    assert served.running == {}
    assert client.get("/files/list").json()["entries"] == []


def test_many_open_shells_leave_the_places_to_code(serve: Any) -> None:
    served = serve(max_sandboxes=8, max_kept_sandboxes=64, min_memory_free=0)
    users = [served.client(f"user-{number}") for number in range(50)]
    opened: list[int] = []
    threads = [
        threading.Thread(target=lambda client=client: opened.append(client.post("/api/terminals").status_code))
        for client in users
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened == [200] * len(users)
    assert python(served.client("one more"), "1 + 1")["result"] == "2"
    assert len(served.running) == len(users) + 1
    assert not any(served.running.values())


def test_a_shell_makes_room_before_a_command_does(serve: Any) -> None:
    served = serve(max_sandboxes=1, max_kept_sandboxes=2)
    ann, bob, eve = (served.client(user) for user in ("ann", "bob", "eve"))
    command = ran(ann, "sleep 100", wait=0)["id"]
    bob.post("/api/terminals")
    assert python(eve, "1")["ok"]
    until(lambda: bob.get("/api/terminals").json() == [])
    assert ann.get(f"/execute/{command}/status").json()["status"] == "running"
    assert python(bob, "1")["ok"]
    assert python(eve, "1")["ok"]
    assert ann.get(f"/execute/{command}/status").json()["status"] == "running"


def test_a_chat_comes_back_with_files_and_variables(serve: Any) -> None:
    served = serve(max_sandboxes=1, max_kept_sandboxes=1)
    ann, bob = served.client("ann"), served.client("bob")
    python(ann, "x = 41; open('a.txt', 'w').write('a')")
    python(bob, "1")
    assert [each["name"] for each in ann.get("/files/list").json()["entries"]] == ["a.txt"]
    told = python(ann, "x + 1")
    assert (told["result"], len(told["notes"])) == ("42", 1)


# -- what cannot be trusted -------------------------------------------------------------------------------------------


def test_no_browser_runs_an_answer_in_the_origin_of_who_shows_it(served: Served) -> None:
    client = served.client()
    client.post("/files/write", json={"path": "page.html", "content": "<script>alert(1)</script>"})
    answers = [client.get(path) for path in ("/files/view?path=page.html", "/files/serve/workspace/page.html", "/nope")]
    for answer in [*answers, client.get("/files/read"), httpx.get(served.url + "/health")]:
        assert answer.headers["content-security-policy"].startswith("sandbox")
        assert "allow-same-origin" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_no_link_is_followed_on_the_host(served: Served, tmp_path: Path) -> None:
    client = served.client()
    client.post("/files/write", json={"path": "a.txt", "content": "a"})
    services, row = served.gateway.services, served.rows[0]
    folder = services.containers.folder(row.id)
    (tmp_path / "secret").write_text("of the host")
    os.symlink(tmp_path / "secret", folder / "file")
    os.symlink(tmp_path, folder / "dir")
    services.containers.stop({row.owner})  # so that the host alone answers
    for path in ("file", "dir/secret", "../../secret", "/workspace/../etc/passwd", f"{tmp_path}/secret"):
        for route in ("/files/read", "/files/view", "/files/display"):
            assert "of the host" not in client.get(route, params={"path": path}).text
    assert client.get("/files/list", params={"directory": "dir"}).status_code == 404
    kinds = {each["name"]: each["type"] for each in client.get("/files/list").json()["entries"]}
    assert kinds == {"a.txt": "file", "file": "file", "dir": "file"}
    assert served.running == {}


def test_a_folder_of_too_many_files_is_refused_and_names_cross_as_they_are(served: Served) -> None:
    client = served.client()
    client.post("/files/write", json={"path": "many/a", "content": ""})
    ran(client, "touch $'bad-\\xff' '<img src=x onerror=alert(1)>' $'two\\nlines'; cd many; seq 10001 | xargs touch")
    names = [each["name"] for each in client.get("/files/list").json()["entries"]]
    assert {"bad-\udcff", "<img src=x onerror=alert(1)>", "two\nlines", "many"} == set(names)
    answer = client.get("/files/list", params={"directory": "many"})
    assert (answer.status_code, "10,000" in answer.json()["detail"]) == (413, True)


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 422), (b"[]", 422), (b'{"path": 1, "content": "x"}', 422), (b"[" * 100_000, 422), (b'{"a":1}', 422)],
)
def test_bodies_that_cannot_be_used_are_answered_with_a_detail(served: Served, body: bytes, status: int) -> None:
    answer = served.client().post("/files/write", content=body)
    assert answer.status_code == status
    assert answer.json()["detail"][0]["loc"][0] == "body"
    assert served.rows == []


def test_large_bodies_and_files_are_refused(served: Served) -> None:
    client = served.client()
    huge = b'{"path": "x", "content": "' + b"x" * (17 * 2**20)
    assert client.post("/files/write", content=huge).status_code == 413
    ran(client, "truncate -s 17M big.txt")
    assert client.get("/files/read", params={"path": "big.txt"}).status_code == 413
    with client.stream("GET", "/files/view", params={"path": "big.txt"}) as answer:
        assert int(answer.headers["content-length"]) == 17 * 2**20


@pytest.mark.parametrize(
    ("path", "cwd", "expected"),
    [
        ("a", "/workspace", "/workspace/a"),
        ("../..", "/workspace/sub", "/"),
        ("../../../..", "/workspace", "/"),
        ("~", "/tmp", "/workspace"),
        ("~/a//b/", "/", "/workspace/a/b"),
        ("/home/user/a", "/", "/workspace/a"),
        ("/home/username", "/", "/home/username"),
        ("/mnt/data/../x", "/", "/x"),
        ("//etc", "/", "/etc"),
        ("", "/workspace", "/workspace"),
    ],
)
def test_paths_are_as_a_shell_has_them(path: str, cwd: str, expected: str) -> None:
    assert resolved(path, cwd) in (expected, expected.replace("/x", "/workspace/x") if "mnt" in path else expected)


def test_tools_have_plain_types_and_a_route_each(served: Served) -> None:
    client = served.client()
    document = client.get("/openapi.json").json()
    tools = [each.name for each in OPERATIONS.operations if each.is_tool]
    assert len(tools) == len(set(tools)) == 15
    routed = {(each.method, each.path) for each in OPERATIONS.operations}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert (method.upper(), path) in routed
            assert all("type" in each["schema"] for each in operation["parameters"]), operation["operationId"]
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            assert all("type" in each for each in body.get("properties", {}).values())
    assert "anyOf" not in json.dumps(document)
    assert "$ref" not in json.dumps(document)


def test_requests_are_counted_by_their_routes(served: Served) -> None:
    served.client().get("/execute")
    assert 'route="list_processes",status="200"' in httpx.get(f"{served.gateway.url}/metrics").text


def test_the_log_names_no_file_and_no_poll(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    client = served.client()
    client.post("/files/write", json={"path": "secret.txt", "content": ""})
    with caplog.at_level(logging.INFO, logger="agent_tools.gateway.access"):
        client.get("/files/serve/workspace/secret.txt")
        client.get("/files/view", params={"path": "secret.txt"})
        client.get("/execute")
        client.get("/ports")

        def logged() -> set[str]:  # each line comes after its answer
            return {each.getMessage().split('"')[1] for each in caplog.records if each.name.endswith("access")}

        until(lambda: {"GET /terminal/files/serve/", "GET /terminal/files/view"} <= logged())
    assert not any("secret" in line or "/execute" in line or "/ports" in line for line in logged())


def test_a_gateway_without_the_wire_has_no_such_path(new_gateway: Any) -> None:
    assert httpx.get(f"{new_gateway({}).url}/terminal/health").status_code == 404
