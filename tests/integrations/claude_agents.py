"""Claude Managed Agents: Anthropic's own worker against a stand-in of the API, written from the types of its SDK."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import queue
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from anthropic import AsyncAnthropic
from anthropic.lib.tools import ToolError

from agent_tools.errors import AgentToolsError, HostFull
from agent_tools.integrations.claude_agents import ClaudeWorker, SessionBox
from agent_tools.machine.owner import Owner
from agent_tools.machine.private_folder import private_base
from agent_tools.results.commands import CommandResult
from tests.integrations.scenario import Death

EXPECTED: dict[str, str] = {}
NOW = "2026-11-29T00:00:00Z"
KEY = "sk-environment-key"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SKILL = "---\nname: adder\ndescription: Adds numbers.\n---\nRun add.py.\n"
LOOK = """
import glob, json, os, socket
places = ["/proc/1/environ", "/proc/self/environ", *glob.glob("/proc/[0-9]*/cmdline")]
places += [os.path.join(top, name) for root in ("/workspace", "/tmp", "/home", "/etc", "/run")
           for top, _, names in os.walk(root) for name in names]
found = []
for place in places:
    try:
        with open(place, "rb") as file:
            if b"sk-" + b"environment" in file.read(1 << 20):
                found.append(place)
    except OSError:
        pass
print(json.dumps([found, [name for _, name in socket.if_nameindex()]]))
"""


class Session:
    """A session of the stand-in: calls go out as events, results come back."""

    def __init__(self, id_: str, **more: Any) -> None:
        self.id = id_
        self.log: list[dict[str, Any]] = []
        self.live: list[queue.Queue[dict[str, Any] | None]] = []
        self.results: queue.Queue[dict[str, Any]] = queue.Queue()
        self.body = {
            "id": id_,
            "type": "session",
            "status": "running",
            "agent": {"id": "agent_1", "type": "agent", "name": "a", "skills": more.get("skills", [])},
            "resources": more.get("resources", []),
            "environment_id": "env_1",
            "created_at": NOW,
            "updated_at": NOW,
            "metadata": {},
        }
        self._number = 0

    def emit(self, event: dict[str, Any]) -> None:
        self.log.append(event)
        for each in self.live:
            each.put(event)

    def begin(self, tool: str, **given: Any) -> str:
        self._number += 1
        id_ = f"{self.id}_{self._number}"
        self.emit({"type": "agent.tool_use", "id": id_, "name": tool, "input": given, "processed_at": NOW})
        return id_

    def call(self, tool: str, **given: Any) -> tuple[bool, Any]:
        """Return whether a call failed, and its content: the text, or the blocks."""
        return self.result(self.begin(tool, **given))

    def result(self, id_: str) -> tuple[bool, Any]:
        event = self.results.get(timeout=60)
        assert event["tool_use_id"] == id_
        content = event.get("content", [])
        texts = [each["text"] for each in content if each["type"] == "text"]
        return bool(event.get("is_error")), "".join(texts) if len(texts) == len(content) else content

    def end(self) -> None:
        self.emit({"type": "session.status_terminated", "id": f"{self.id}_end", "processed_at": NOW})


class Api(ThreadingHTTPServer):
    """The stand-in."""

    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A worker that is gone reads no answer."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.work: queue.Queue[Session] = queue.Queue()
        self.sessions: dict[str, Session] = {}
        self.stopped: queue.Queue[str] = queue.Queue()
        self.states: dict[str, str] = {}
        self.memories: dict[str, dict[str, str]] = {}
        self.keys: set[str] = set()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def queue(self, id_: str, **more: Any) -> Session:
        session = self.sessions[id_] = Session(id_, **more)
        self.work.put(session)
        return session

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """One request of the worker."""

    server: Api
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def _send(self, body: Any, status: int = 200) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.server.keys.add(self.headers.get("authorization", ""))
        parts = urlsplit(self.path).path.strip("/").split("/")[1:]
        match parts:
            case ["environments", _, "work", "poll"]:
                try:
                    session = self.server.work.get(timeout=0.3)
                except queue.Empty:
                    self._send(b"null")
                    return
                token = {"sessions_token": "sk-sessions-token"} if session.body["resources"] else {}
                secret = base64.urlsafe_b64encode(json.dumps(token).encode()).decode() if token else None
                work = {"id": f"work_{session.id}", "type": "work", "state": "queued", "environment_id": "env_1"}
                work |= {"created_at": NOW, "metadata": {}, "secret": secret}
                self._send({**work, "data": {"type": "session", "id": session.id}})
            case ["sessions", id_]:
                self._send(self.server.sessions[id_].body)
            case ["sessions", id_, "events"]:
                self._send({"data": list(self.server.sessions[id_].log), "next_page": None})
            case ["sessions", id_, "events", "stream"]:
                self._stream(self.server.sessions[id_])
            case ["skills", id_, "versions", version]:
                self._send(
                    {
                        "id": f"{id_}_1",
                        "name": "adder",
                        "directory": "adder",
                        "version": version,
                        "type": "skill_version",
                    }
                )
            case ["skills", _, "versions", _, "content" | "download"]:
                archive = io.BytesIO()
                with zipfile.ZipFile(archive, "w") as file:
                    file.writestr("adder/SKILL.md", SKILL)
                    file.writestr("adder/add.py", "print(1 + 1)\n")
                self._send(archive.getvalue())
            case ["memory_stores", id_, "memories", *_]:
                self._send({"data": [self._memory(id_, path) for path in self.server.memories[id_]], "next_page": None})
            case _:
                self._send({"type": "error", "error": {"type": "not_found_error", "message": self.path}}, 404)

    def _memory(self, store: str, path: str) -> dict[str, Any]:
        import hashlib

        content = self.server.memories[store][path]
        digest = hashlib.sha256(content.encode()).hexdigest()
        memory = {"id": f"mem_{path.strip('/').replace('/', '_')}", "type": "memory", "path": path, "content": content}
        return {
            **memory,
            "content_sha256": digest,
            "memory_store_id": store,
            "created_at": NOW,
            "updated_at": NOW,
            "content_size_bytes": len(content),
            "memory_version_id": "v1",
        }

    def _stream(self, session: Session) -> None:
        events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        session.live.append(events)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            while event := events.get():
                self.wfile.write(f"event: message\ndata: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()
        except OSError:
            pass
        session.live.remove(events)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
        parts = urlsplit(self.path).path.strip("/").split("/")[1:]
        match parts:
            case ["environments", _, "work", id_, "heartbeat"]:
                state = self.server.states.get(id_, "active")
                self._send(
                    {
                        "type": "work_heartbeat",
                        "last_heartbeat": NOW,
                        "lease_extended": True,
                        "ttl_seconds": 2,
                        "state": state,
                    }
                )
            case ["environments", _, "work", id_, "stop"]:
                self.server.stopped.put(id_)
                self._send(
                    {
                        "id": id_,
                        "type": "work",
                        "state": "stopped",
                        "environment_id": "env_1",
                        "metadata": {},
                        "created_at": NOW,
                        "data": {"type": "session", "id": id_.removeprefix("work_")},
                    }
                )
            case ["environments", _, "work", id_, "ack"]:
                self._send(
                    {
                        "id": id_,
                        "type": "work",
                        "state": "starting",
                        "environment_id": "env_1",
                        "metadata": {},
                        "created_at": NOW,
                        "data": {"type": "session", "id": id_.removeprefix("work_")},
                    }
                )
            case ["sessions", id_, "events"]:
                for event in body["events"]:
                    self.server.sessions[id_].log.append(
                        {**event, "id": f"ev_{time.monotonic_ns()}", "processed_at": NOW}
                    )
                    self.server.sessions[id_].results.put(event)
                self._send({"data": []})
            case ["memory_stores", store, "memories", *rest]:
                path = body.get("path") or next(
                    p for p in self.server.memories[store] if self._memory(store, p)["id"] == rest[0]
                )
                self.server.memories[store][path] = body["content"]
                self._send(self._memory(store, path))
            case _:
                self._send({"type": "error", "error": {"type": "not_found_error", "message": self.path}}, 404)


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api()
    yield api
    for session in api.sessions.values():
        for each in session.live:
            each.put(None)
    api.shutdown()
    api.server_close()


class Working:
    """A worker in a thread of its own."""

    def __init__(self, api: Api, **options: Any) -> None:
        self._ready = threading.Event()
        self._api, self._options = api, options
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._thread.start()
        self._ready.wait()

    async def _main(self) -> None:
        client = AsyncAnthropic(auth_token=KEY, base_url=self._api.url, max_retries=0)
        self.worker = ClaudeWorker("env_1", KEY, client=client, **{"sessions": 2, **self._options})
        self._loop, self._task = asyncio.get_running_loop(), asyncio.ensure_future(self.worker.run())
        self._ready.set()
        await asyncio.wait((self._task,))
        await client.close()

    def __enter__(self) -> Working:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert all(box._is_over for box in self.worker._boxes)


@pytest.fixture
def worker(api: Api) -> Iterator[Working]:
    with Working(api) as working:
        yield working


def test_thirty_calls_of_all_tools(api: Api, worker: Working) -> None:
    s = api.queue("sesn_1")
    assert s.call("bash", command="pwd; id -u | grep -qv '^0$' && echo user") == (False, "/workspace\nuser")
    assert s.call("bash", command="mkdir d; cd d; X=5; sleep 0.1 & echo $!")[0] is False
    assert s.call("bash", command="pwd; echo $X") == (False, "/workspace/d\n5")
    assert s.call("bash", command="false") == (True, "exit code 1")
    assert s.call("bash", command="echo why >&2; exit 3")[0] is True  # which ends the shell
    assert s.call("bash", command="pwd") == (False, "/workspace")
    assert s.call("bash", restart=True) == (False, "bash session restarted")
    assert s.call("bash") == (True, "bash: command is required")
    assert s.call("bash", command="echo 'open")[0] is True
    assert s.call("bash", command="cat <<X\nhere $((1+1))\nX") == (False, "here 2")
    assert s.call("bash", command="read x; echo got $x")[1] == "got"
    error, text = s.call("bash", command="sleep 100", timeout_ms=300)
    assert (error, "timed out" in text) == (True, True)
    assert s.call("bash", command="echo again") == (False, "again")
    error, text = s.call("bash", command="head -c 3000000 /dev/zero | tr '\\0' x")
    assert (error, text.startswith("[output truncated]\n"), len(text) < 110_000) == (False, True, True)
    assert s.call("bash", command="printf 'no newline'") == (False, "no newline")
    assert s.call("bash", command="echo '__done_0_0'") == (False, "__done_0_0")
    assert s.call("write", file_path="a/b.txt", content="one\ntwo\nthree\n")[0] is False
    assert s.call("read", file_path="a/b.txt") == (False, "one\ntwo\nthree\n")
    assert s.call("read", file_path="/workspace/a/b.txt", view_range=[2, 2]) == (False, "two")
    assert s.call("read", file_path="a/b.txt", view_range=[2, -1]) == (False, "two\nthree\n")
    assert s.call("bash", command="head -c 300000 /dev/zero | tr '\\0' x > wide.log")[0] is False
    error, text = s.call("read", file_path="wide.log", view_range=[1, 1])
    assert (error, "262144-byte limit" in text) == (True, True)
    assert s.call("edit", file_path="a/b.txt", old_string="two", new_string="2")[0] is False
    assert s.call("read", file_path="a/b.txt")[1] == "one\n2\nthree\n"
    assert s.call("edit", file_path="a/b.txt", old_string="e", new_string="E")[0] is True
    assert s.call("edit", file_path="a/b.txt", old_string="e", new_string="E", replace_all=True)[0] is False
    assert s.call("edit", file_path="a/b.txt", old_string="none", new_string="x")[0] is True
    assert s.call("read", file_path="missing") == (True, "read: missing: No such file or directory")
    assert s.call("read", file_path="a")[0] is True
    assert s.call("grep", pattern="thr\\w+", path="a") == (False, "a/b.txt:3:thrEE")
    assert s.call("grep", pattern="absent") == (False, "no matches")
    assert s.call("grep", pattern="(")[0] is True
    assert s.call("glob", pattern="**/*.txt")[1].endswith("/workspace/a/b.txt")
    assert s.call("glob", pattern="../*")[0] is True
    image = (
        f"python3 -c \"import base64; open('i.png', 'wb').write(base64.b64decode('{base64.b64encode(PNG).decode()}'))\""
    )
    assert s.call("bash", command=image)[0] is False
    error, (block,) = s.call("read", file_path="i.png")
    assert (error, block["type"], base64.b64decode(block["source"]["data"])) == (False, "image", PNG)
    s.end()
    assert api.stopped.get(timeout=30) == "work_sesn_1"


def test_no_key_and_no_network_are_inside(api: Api, worker: Working, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_ENVIRONMENT_KEY", KEY)
    s = api.queue("sesn_1")
    s.call("write", file_path="look.py", content=LOOK)
    error, text = s.call("bash", command="python3 look.py; env | grep -c ANTHROPIC")
    assert json.loads(text.splitlines()[0]) == [[], ["lo"]]
    assert text.splitlines()[1] == "0"
    assert error is True  # of grep
    assert f"Bearer {KEY}" in api.keys
    s.end()


def test_sessions_have_containers_of_their_own_and_files_in_and_out(api: Api, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1,2\n")
    log = tmp_path / "audit"
    options = {"keep": tmp_path / "kept", "files": [str(tmp_path / "data.csv")], "options": {"audit": str(log)}}
    with Working(api, **options):
        first, second = api.queue("sesn_1"), api.queue("sesn_2")
        assert first.call("bash", command="cat data.csv; echo 1 > out; X=1") == (False, "1,2")
        assert second.call("bash", command="ls; echo [$X]") == (False, "data.csv\n[]")
        first.end()
        assert api.stopped.get(timeout=30) == "work_sesn_1"
        assert second.call("bash", command="echo still") == (False, "still")
    assert (tmp_path / "kept" / "sesn_1" / "out").read_text() == "1\n"
    assert {json.loads(line)["container"] for line in log.read_text().splitlines()} == {"sesn_1", "sesn_2"}


def test_skills_are_read_only(api: Api, worker: Working) -> None:
    s = api.queue("sesn_1", skills=[{"type": "custom", "skill_id": "skill_1", "version": "1"}])
    assert s.call("read", file_path="skills/adder/SKILL.md") == (False, SKILL)
    assert s.call("bash", command="python3 skills/adder/add.py") == (False, "2")
    assert s.call("write", file_path="skills/adder/add.py", content="x")[0] is True
    assert s.call("bash", command="rm -rf skills/adder/add.py; ls /skills/adder")[1].endswith("add.py")
    s.end()


@pytest.mark.parametrize("is_mounted", [False, True])
def test_memory_stores_survive_as_a_folder(api: Api, worker: Working, tmp_path: Path, is_mounted: bool) -> None:
    top, inside = tmp_path, "memory"
    if is_mounted:  # as the API names them
        inside = str(top := Path("/mnt/memory"))
        try:
            top.mkdir(exist_ok=True)
        except PermissionError:
            pytest.skip("the SDK makes folders in /mnt/memory, which this user may not")
    notes, facts = (f"{name}-{secrets.token_hex(4)}" for name in ("notes", "facts"))
    api.memories["memstore_1"] = {"/notes.md": "old\n"}
    api.memories["memstore_2"] = {"/fixed.md": "fixed\n"}
    stores = [
        {
            "type": "memory_store",
            "memory_store_id": f"memstore_{number}",
            "name": name,
            "access": access,
            "mount_path": str(top / name),
        }
        for number, name, access in ((1, notes, "read_write"), (2, facts, "read_only"))
    ]
    s = api.queue("sesn_1", resources=stores)
    assert s.call("read", file_path=f"{top}/{notes}/notes.md") == (False, "old\n")
    assert s.call("write", file_path=f"{top}/{notes}/new.md", content="new\n")[0] is False
    change = f"cd {inside}; echo more >> {notes}/notes.md; ln -s /etc/passwd {notes}/link; find {notes} {facts} -type f"
    found = [f"{facts}/fixed.md", f"{notes}/new.md", f"{notes}/notes.md"]
    assert sorted(s.call("bash", command=change)[1].split()) == found
    assert s.call("write", file_path=f"{top}/{facts}/fixed.md", content="x")[0] is True
    assert s.call("bash", command=f"echo x > {facts}/fixed.md")[0] is False
    big = f"{notes}/big"
    failed, said = s.call("bash", command=f"echo said; head -c 300000 /dev/zero > {big}")
    assert (failed, said.startswith("said\n"), "big" in said) == (True, True, True)
    failed, said = s.call("bash", command=f"rm {big}; head -c 300000 /dev/zero > {big}; false")
    assert (failed, said.startswith("exit code 1\n"), "big" in said) == (True, True, True)
    assert s.call("bash", command=f"rm {big}")[0] is False
    assert s.call("bash", command=f"echo late >> {notes}/notes.md; false") == (True, "exit code 1")
    s.end()
    assert api.stopped.get(timeout=60) == "work_sesn_1"
    assert api.memories == {
        "memstore_1": {"/notes.md": "old\nmore\nlate\n", "/new.md": "new\n"},
        "memstore_2": {"/fixed.md": "fixed\n"},
    }
    if is_mounted:
        with suppress(OSError):  # as a rule: others have folders there
            top.rmdir()


def test_a_store_that_cannot_be_pulled_keeps_no_other(api: Api, worker: Working, tmp_path: Path) -> None:
    first, second = (f"{name}-{secrets.token_hex(4)}" for name in ("first", "second"))
    stores = [
        {
            "type": "memory_store",
            "memory_store_id": f"memstore_{name}",
            "name": name,
            "access": "read_write",
            "mount_path": str(tmp_path / name),
        }
        for name in (first, second)
    ]
    api.memories |= {f"memstore_{name}": {"/a.md": "old\n"} for name in (first, second)}
    s = api.queue("sesn_1", resources=stores)
    change = f"cd memory; (cd {first} && seq 4001 | xargs touch); echo new > {second}/a.md"
    failed, said = s.call("bash", command=change)
    assert (failed, f"{tmp_path / first}: " in said, "more than 4,000 entries" in said) == (True, True, True)
    assert said.count("could be kept") == 1
    assert (tmp_path / second / "a.md").read_text() == "new\n"
    s.end()
    assert api.stopped.get(timeout=60) == "work_sesn_1"
    assert api.memories[f"memstore_{second}"] == {"/a.md": "new\n"}


def test_a_session_that_is_stopped_or_lost_ends(api: Api, worker: Working) -> None:
    s = api.queue("sesn_1")
    assert s.call("bash", command="echo 1") == (False, "1")
    api.states["work_sesn_1"] = "stopping"
    assert api.stopped.get(timeout=30) == "work_sesn_1"
    s = api.queue("sesn_2")
    assert s.call("bash", command="X=kept; echo 1") == (False, "1")
    for each in list(s.live):
        each.put(None)  # the connection is lost
    assert s.call("bash", command="echo $X") == (False, "kept")


def test_a_session_has_its_time(api: Api) -> None:
    with Working(api, seconds=2.0):
        s = api.queue("sesn_1")
        error, text = s.call("bash", command="sleep 100")
        assert error is True, text
        error, text = s.call("bash", command="echo 1")
        assert (error, "may use it for 2 seconds" in text) == (True, True)
        s.end()


@pytest.mark.stops
def test_stopping_the_worker_ends_a_call_under_way(api: Api, tmp_path: Path) -> None:
    with Working(api, keep=tmp_path):
        api.queue("sesn_1").begin("bash", command="touch started; sleep 100")
        while not (tmp_path / "sesn_1" / "started").exists():
            time.sleep(0.05)
        Death.come()
        began = time.monotonic()
    assert time.monotonic() - began < 30


def test_a_session_that_could_not_start_gets_its_files_with_the_next_call(tmp_path: Path) -> None:
    class Sandbox:
        def __init__(self) -> None:
            self.done: list[Any] = []
            self.is_alive = True
            self.sync = SimpleNamespace(skills=("skill",))

        async def start(self) -> None:
            self.done.append("start")
            if len(self.done) == 1:
                raise HostFull("all slots are taken")

        async def stage(self, files: list[str]) -> None:
            self.done.append(files)

        async def run_command(self, command: Any, **_: Any) -> CommandResult:
            self.done.append(command)
            return CommandResult(0, b"", b"")

    async def main() -> list[Any]:
        context: Any = SimpleNamespace(allowed_roots=[], read_only_roots=[], workdir=str(tmp_path))
        box = SessionBox(context, {}, ["a.csv"], 60.0)
        sandbox: Any = Sandbox()
        box._sandbox = sandbox
        glob = box._called(box.glob)
        with pytest.raises(ToolError, match="all slots are taken"):
            await glob(pattern="*")
        await asyncio.gather(glob(pattern="*"), glob(pattern="*"))
        done: list[Any] = sandbox.done
        return done

    done = asyncio.run(main())
    assert done[:4] == ["start", "start", ["a.csv"], "ln -sfn /skills skills"]
    assert len(done) == 6


def test_a_call_that_outlives_its_session_leaves_no_container(tmp_path: Path) -> None:
    class Sandbox:
        is_alive, sync = False, SimpleNamespace(skills=())

        def __init__(self) -> None:
            self.done, self.is_asked, self.may_go = list[str](), asyncio.Event(), asyncio.Event()

        async def start(self) -> None:
            self.done.append("start")

        async def close(self) -> None:
            self.done.append("close")

        async def run_command(self, command: Any, **_: Any) -> CommandResult:
            self.is_asked.set()
            await self.may_go.wait()
            self.done.append("start again")
            return CommandResult(0, b"", b"")

    async def main() -> None:
        context: Any = SimpleNamespace(allowed_roots=[], read_only_roots=[], workdir=str(tmp_path))
        box, sandbox = SessionBox(context, {}, [], 60.0), Sandbox()
        box._sandbox = sandbox  # type: ignore[assignment]
        calling = asyncio.ensure_future(box._called(box.glob)(pattern="*"))
        await sandbox.is_asked.wait()
        await box.close()
        sandbox.may_go.set()
        await calling
        assert sandbox.done == ["start", "close", "start again", "close"]

    asyncio.run(main())


def test_a_session_whose_time_ends_while_its_container_starts_runs_nothing(tmp_path: Path) -> None:
    class Sandbox:
        is_alive, sync = False, SimpleNamespace(skills=())

        def __init__(self) -> None:
            self.done, self.is_asked, self.may_go = list[str](), asyncio.Event(), asyncio.Event()

        async def start(self) -> None:
            self.is_asked.set()
            await self.may_go.wait()
            self.done.append("start")

        async def close(self) -> None:
            self.done.append("close")

    async def main() -> None:
        context: Any = SimpleNamespace(allowed_roots=[], read_only_roots=[], workdir=str(tmp_path))
        box, sandbox = SessionBox(context, {}, [], 60.0), Sandbox()
        box._sandbox = sandbox  # type: ignore[assignment]
        calling = asyncio.ensure_future(box._called(box.glob)(pattern="*"))
        await sandbox.is_asked.wait()
        await box.close()
        sandbox.may_go.set()
        with pytest.raises(ToolError, match="may use it for 60 seconds"):
            await calling
        assert sandbox.done == ["close", "start", "close"]

    asyncio.run(main())


def test_what_a_cancelled_call_has_changed_in_a_memory_is_kept_at_the_end(tmp_path: Path) -> None:
    class Sandbox:
        is_alive, sync = True, SimpleNamespace(skills=())

        def __init__(self) -> None:
            self.done, self.is_asked = list[str](), asyncio.Event()

        async def start(self) -> None:
            pass

        async def close(self) -> None:
            self.done.append("close")

        async def run_command(self, command: Any, **_: Any) -> None:
            self.is_asked.set()
            await asyncio.Event().wait()

        def inside(self, path: str) -> None:
            pass

        async def push(self, _: Any) -> None:
            self.done.append("push")

        async def pull(self) -> str:
            self.done.append("pull")
            return ""

    async def main() -> None:
        context: Any = SimpleNamespace(allowed_roots=[], read_only_roots=[], workdir=str(tmp_path))
        box, sandbox = SessionBox(context, {}, [], 60.0), Sandbox()
        box._sandbox, box._memories = sandbox, [sandbox]  # type: ignore[assignment, list-item]
        calling = asyncio.ensure_future(box._called(box.glob)(pattern="*"))
        await sandbox.is_asked.wait()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        assert calling.cancelled()
        await box.close()
        assert sandbox.done == ["push", "pull", "close"]

    asyncio.run(main())


def test_a_session_that_cannot_be_made_leaves_no_folder(tmp_path: Path) -> None:
    def folders() -> set[Path]:
        own = Path(tempfile.gettempdir()).glob(f"agent-tools-{Owner.current().token}-*")
        return {*private_base().iterdir(), *own}

    roots: list[Any] = [Path("/mnt/memory/notes"), tmp_path]
    before = folders()
    context: Any = SimpleNamespace(allowed_roots=roots, read_only_roots=[], workdir=str(tmp_path))
    with pytest.raises(AgentToolsError):
        SessionBox(context, {"no_such_option": 1}, [], 60.0)
    roots.append("no path")
    with pytest.raises(AttributeError):
        SessionBox(context, {}, [], 60.0)
    assert folders() == before


def test_a_container_that_cannot_be_removed_keeps_no_other(api: Api) -> None:
    class Box:
        def __init__(self, failure: Exception | None = None) -> None:
            self.failure = failure

        _is_over = False

        async def close(self) -> None:
            for _ in range(0 if self.failure else 10):
                await asyncio.sleep(0)
            self._is_over = True
            if self.failure:
                raise self.failure

    boxes: Any = {Box(OSError("the engine is gone")), Box()}
    with Working(api) as working:
        working.worker._boxes |= boxes
    assert working._task.cancelled()
    assert all(box._is_over for box in boxes)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_is_ended_leaves_no_container_and_no_folder(
    api: Api, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    from agent_tools.machine.machine import start_time
    from agent_tools.machine.owner import Owner
    from agent_tools.machine.private_folder import private_base, remove_stale_run_dirs
    from agent_tools.runtime.runtime import docker_runtime

    folder = Path(tempfile.mkdtemp(prefix="at-", dir="/tmp"))  # where each process looks for what a killed one has left
    monkeypatch.setenv("AGENT_TOOLS_RUN_DIR", str(folder))
    environment = {**os.environ, "ANTHROPIC_ENVIRONMENT_KEY": KEY, "ANTHROPIC_BASE_URL": api.url}
    command = [sys.executable, "-m", "agent_tools", "worker", "claude", "--environment-id", "env_1"]
    with subprocess.Popen(command, env=environment) as process:
        s = api.queue("sesn_1")
        assert s.call("bash", command="echo 1") == (False, "1")
        labels = Owner(Owner.current().host, process.pid, start_time(process.pid) or 0).labels
        assert len(docker_runtime().engine.strays(labels)) == 1
        process.send_signal(number)
        assert process.wait(60) == (0 if number is signal.SIGTERM else -number)
        deadline = time.monotonic() + 30
        while docker_runtime().engine.strays(labels):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    remove_stale_run_dirs()
    assert [path for path in private_base().iterdir() if path.is_dir()] == []
    shutil.rmtree(folder)
