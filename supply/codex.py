"""Tries the newest @openai/codex with a scripted model, its commands in sandboxes: `scripts/try codex`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from agent_tools.machine.machine import start_time
from agent_tools.machine.owner import Owner
from agent_tools.runtime.runtime import docker_runtime
from supply.wires import gateway, node_folder
from tests.wires.exec_client import ExecClient

MODEL = "gpt-5.5"  # the name of a model to which Codex gives apply_patch
OURS = [sys.executable, "-m", "agent_tools", "codex"]
Step = str | dict[str, Any] | Callable[[str], dict[str, Any]]
PATCH = """*** Begin Patch
*** Add File: new.txt
+hello
*** Update File: old.txt
@@
-one
+two
*** End Patch
"""


def main() -> int:
    """Try all; return 0 if all is right."""
    codex = codex_program()
    version = subprocess.run([codex, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="agent-tools-try-") as folder:
        for attempt in (compare, converse, two_at_once, kill_the_client, kill_the_server, forward, measure):
            top = Path(folder) / attempt.__name__
            top.mkdir()
            attempt(codex, top)
            print(f"{version}: {(attempt.__doc__ or '').splitlines()[0]}", flush=True)
    return 0


def codex_program() -> Path:
    """Return the program in the newest package."""
    return next(node_folder("codex", "@openai/codex").glob("node_modules/@openai/codex-*/vendor/*/bin/codex"))


def compare(codex: Path, top: Path) -> None:
    """Requests to Codex's own exec-server and to ours have the same answers, but for what is expected."""
    answers = [asked(command, top) for command in ([str(codex), "exec-server", "--listen", "stdio"], OURS)]
    differing = [(name, theirs, ours) for (name, theirs), (_, ours) in zip(*answers, strict=True) if theirs != ours]
    for name, theirs, ours in differing:
        print(f"   {name}\n      theirs {theirs!r:.300}\n      ours   {ours!r:.300}")
    assert not differing


def asked(command: Sequence[str], top: Path) -> list[tuple[str, Any]]:
    """Return the answers of a server to the same requests, each with its request; of an error the code."""
    project = top / "project"
    shutil.rmtree(project, ignore_errors=True)
    (project / "d" / "e").mkdir(parents=True)
    (project / "a.txt").write_text("hello")
    (project / "link").symlink_to("a.txt")
    (project / "dangling").symlink_to("nowhere")
    at, limits = project.as_uri(), {"maxDepth": 5, "maxDirectories": 50, "maxEntries": 50}
    limits["followDirectorySymlinks"] = False
    requests: list[tuple[str, dict[str, Any]]] = [
        *(("fs/getMetadata", {"path": f"{at}{name}"}) for name in ("", "/a.txt", "/link", "/dangling", "/a.txt/x")),
        *(("fs/readFile", {"path": f"{at}{name}"}) for name in ("/a.txt", "/d", "/none", "/a%2etxt")),
        ("fs/writeFile", {"path": f"{at}/none/a", "dataBase64": ""}),
        ("fs/writeFile", {"path": f"{at}/d/new", "dataBase64": "YQ=="}),
        *(("fs/createDirectory", {"path": f"{at}{name}", "recursive": False}) for name in ("/d", "/x", "/y/z")),
        ("fs/createDirectory", {"path": f"{at}/y/z"}),
        *(("fs/canonicalize", {"path": f"{at}{name}"}) for name in ("/link", "/none")),
        *(("fs/readDirectory", {"path": f"{at}{name}"}) for name in ("", "/a.txt", "/none")),
        ("fs/walk", {"path": at, "options": limits}),
        ("fs/walk", {"path": at, "options": {**limits, "maxEntries": 2}}),
        ("fs/copy", {"sourcePath": f"{at}/d", "destinationPath": f"{at}/f", "recursive": False}),
        ("fs/copy", {"sourcePath": f"{at}/d", "destinationPath": f"{at}/f", "recursive": True}),
        ("fs/copy", {"sourcePath": f"{at}/link", "destinationPath": f"{at}/link2", "recursive": False}),
        *(("fs/open", {"handleId": "1", "path": f"{at}/a.txt"}) for _ in range(2)),
        *(("fs/readBlock", {"handleId": "1", "offset": offset, "len": 3}) for offset in (0, 3, 9)),
        ("fs/close", {"handleId": "1"}),
        ("fs/readBlock", {"handleId": "1", "offset": 0, "len": 3}),
        ("fs/open", {"handleId": "2", "path": f"{at}/block", "mode": "replace"}),
        ("fs/writeBlock", {"handleId": "2", "offset": 0, "chunk": "YWJj"}),
        ("fs/close", {"handleId": "2"}),
        ("fs/readFile", {"path": f"{at}/block"}),
        *(("fs/remove", {"path": f"{at}{name}", "force": False}) for name in ("/none", "/f", "/link2")),
        ("process/read", {"processId": "none"}),
        ("process/write", {"processId": "none", "chunk": "", "writeId": "1"}),
        ("process/terminate", {"processId": "none"}),
        ("process/signal", {"processId": "none", "signal": "interrupt"}),
        ("environment/status", {}),
        ("no/such", {}),
    ]
    with served(command, project) as client:
        found = [(f"{name} {given}", told(client.call(name, **given))) for name, given in requests]
        for id_, argv in (("1", ["sh", "-c", "echo a; exit 3"]), ("2", ["head", "-c", "300000", "/dev/zero"])):
            client.start(id_, *argv, cwd=str(project), env={"PATH": "/usr/bin:/bin"})
            found.append((f"process {argv}", client.output(id_)))
        found.append(("no program", told(client.start("3", "no-such-program", cwd=str(project)))))
    return found


def told(answer: Any) -> Any:
    """Return an answer without what differs between machines: times, the order of entries, the words of errors."""
    if isinstance(answer, tuple):
        return answer[0]
    kept = {name: value for name, value in answer.items() if not name.endswith("AtMs")}
    return {name: sorted(value, key=str) if name == "entries" else value for name, value in kept.items()}


@contextlib.contextmanager
def served(command: Sequence[str], project: Path) -> Iterator[ExecClient]:
    """Start a server on stdio; give its client."""
    with subprocess.Popen(command, cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        into, out = process.stdin, process.stdout

        def send(message: str) -> None:
            into.write(f"{message}\n")
            into.flush()

        client = ExecClient(send, out.readline)
        client.initialize()
        yield client
        into.close()
        process.wait(60)


class Model(ThreadingHTTPServer):
    """A Responses API whose answers are steps; a step may be a function of the output before it."""

    daemon_threads = True

    def __init__(self, steps: Sequence[Step]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.steps = steps
        self.outputs: list[str] = []
        self.began = 0.0
        self.times: list[float] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the next item."""
        self.outputs = [str(each.get("output")) for each in body["input"] if each["type"].endswith("call_output")]
        self.times.append(time.monotonic())
        done = len(self.outputs)
        step: Step = self.steps[done] if done < len(self.steps) else "done"
        item = step(self.outputs[-1]) if callable(step) else step
        if isinstance(item, str):
            content = [{"type": "output_text", "text": item}]
            return {"type": "message", "id": "m", "role": "assistant", "content": content}
        return {**item, "id": f"i_{done}", "call_id": f"call_{done}"}


class _Handler(BaseHTTPRequestHandler):
    server: Model
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def _send(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self._send(b'{"data": [], "models": []}', "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        usage = dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), 1)
        events = [
            ("response.created", {"response": {"id": "r"}}),
            ("response.output_item.done", {"item": self.server.answer(body)}),
            ("response.completed", {"response": {"id": "r", "usage": usage}}),
        ]
        lines = "".join(f"event: {kind}\ndata: {json.dumps({'type': kind, **more})}\n\n" for kind, more in events)
        self._send(lines.encode(), "text/event-stream")


def command(cmd: str, **more: Any) -> dict[str, Any]:
    """Return a call of Codex's tool for commands."""
    return call("exec_command", cmd=cmd, **{"yield_time_ms": 10_000, "max_output_tokens": 100_000, **more})


def typed(chars: str) -> Callable[[str], dict[str, Any]]:
    """Return a step that types into the process that runs."""

    def step(output: str) -> dict[str, Any]:
        found = re.search(r"session ID (\d+)", output)
        assert found, output
        typed.last = int(found[1])  # type: ignore[attr-defined]
        return call("write_stdin", session_id=int(found[1]), chars=chars, yield_time_ms=2_000)

    return step


def call(name: str, **given: Any) -> dict[str, Any]:
    """Return a call of a function."""
    return {"type": "function_call", "name": name, "arguments": json.dumps(given)}


@contextlib.contextmanager
def codex_run(
    codex: Path,
    top: Path,
    steps: Sequence[Step],
    *,
    is_local: bool = False,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[tuple[Model, Any]]:
    """Start `codex exec` in a project with a scripted model; give the model and the process.

    Its commands run in a sandbox, or for `is_local` on this machine, or where `variables` of the environment say.
    """
    home, project = top / "home", top / "project"
    home.mkdir(parents=True, exist_ok=True)
    project.mkdir(exist_ok=True)
    (project / "old.txt").write_text("one\n")
    model = Model(steps)
    if not is_local and not variables:
        config = subprocess.run([*OURS, "config"], capture_output=True, text=True, check=True).stdout
        (home / "environments.toml").write_text(config)
    (home / "config.toml").write_text(
        f'model = "{MODEL}"\nmodel_provider = "p"\nsandbox_mode = "danger-full-access"\n[model_providers.p]\n'
        f'name = "p"\nbase_url = "http://127.0.0.1:{model.server_address[1]}/v1"\nwire_api = "responses"\n'
    )
    environment = {**os.environ, "CODEX_HOME": str(home), "OPENAI_API_KEY": "sk-secret-of-the-host", **variables}
    arguments = [str(codex), "exec", "--skip-git-repo-check", "Go."]
    model.began = time.monotonic()
    with (top / "log").open("wb") as log:
        process = subprocess.Popen(
            arguments, cwd=project, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            yield model, process
        finally:
            process.kill()
            process.wait()
            model.shutdown()
            model.server_close()


def finished(process: Any, top: Path) -> None:
    """Wait for the end of Codex, after which no container of its is left; print its log if it failed."""
    until(lambda: servers_of(process.pid) or process.poll() is not None)
    labels = [labels_of(server) for server in servers_of(process.pid)]
    if process.wait(180):
        print((top / "log").read_text()[-3_000:])
        raise AssertionError("codex failed")
    until(lambda: not any(map(docker_runtime().engine.strays, labels)))


def converse(codex: Path, top: Path) -> None:
    """Commands, long output, a terminal with input and Ctrl-C, apply_patch and edits work; nothing is left."""
    look = "env | grep -c secret; tail -n +3 /proc/net/dev | cut -d: -f1 | xargs; pwd; id -u | grep -vqx 0"
    steps: list[Step] = [
        command(look),
        command("seq 100000; echo end"),
        {"type": "custom_tool_call", "name": "apply_patch", "input": PATCH},
        command("cat new.txt old.txt; echo edited >> old.txt; false"),
        command("python3 -i -q", tty=True, yield_time_ms=2_000),
        typed("print(6*7)\n"),
        lambda _: call("write_stdin", session_id=typed.last, chars="while True: pass\n\n", yield_time_ms=500),  # type: ignore[attr-defined]
        lambda _: call("write_stdin", session_id=typed.last, chars="\x03", yield_time_ms=2_000),  # type: ignore[attr-defined]
        lambda _: call("write_stdin", session_id=typed.last, chars="exit()\n", yield_time_ms=2_000),  # type: ignore[attr-defined]
        command("sleep 1000 & echo started"),
    ]
    with codex_run(codex, top, steps) as (model, process):
        finished(process, top)
        outputs = model.outputs
    project = top / "project"
    expected = (
        "0\nlo\n/workspace",
        "end",
        "A new.txt",
        "hello\ntwo",
        ">>>",
        "42",
        "",
        "KeyboardInterrupt",
        "code 0",
        "started",
    )
    for wanted, output in zip(expected, outputs, strict=True):
        assert wanted in output, (wanted, output[-2_000:])
    assert ((project / "new.txt").read_text(), (project / "old.txt").read_text()) == ("hello\n", "two\nedited\n")


def two_at_once(codex: Path, top: Path) -> None:
    """Two sessions at once have containers of their own."""
    with contextlib.ExitStack() as stack:
        runs = []
        for name in ("1", "2"):
            step = command(f"echo {name} > /tmp/x; sleep 1; cat /tmp/x; ls")
            runs.append((*stack.enter_context(codex_run(codex, top / name, [step])), name))
        for model, process, name in runs:
            finished(process, top / name)
            assert f"{name}\nold.txt" in model.outputs[0], model.outputs


def kill_the_client(codex: Path, top: Path) -> None:
    """A killed client leaves nothing."""
    with codex_run(codex, top, [command("echo x > begun; sleep 1000", yield_time_ms=60_000)]) as (_, process):
        until((top / "project" / "begun").exists)
        (server,) = servers_of(process.pid)
        labels = labels_of(server)
        assert docker_runtime().engine.strays(labels)
        process.kill()
        until(lambda: not Path(f"/proc/{server}").exists() and not docker_runtime().engine.strays(labels))


def kill_the_server(codex: Path, top: Path) -> None:
    """A killed process of ours leaves no container, and Codex says that its environment is gone."""
    with codex_run(codex, top, [command("echo x > begun; sleep 1000", yield_time_ms=20_000)]) as (model, process):
        until((top / "project" / "begun").exists)
        (server,) = servers_of(process.pid)
        labels = labels_of(server)
        os.kill(server, signal.SIGKILL)
        until(lambda: not docker_runtime().engine.strays(labels))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        print(f"   Codex: {model.outputs[-1][:200] if model.outputs else (top / 'log').read_text()[-200:]!r}")


class Registry(ThreadingHTTPServer):
    """A stand-in of the registration service and its relay, which passes on what the two ends encrypt for each other.

    From codex-rs/exec-server/src/environment_registry.rs of https://github.com/openai/codex.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Registration)
        self.relay = serve(self._passed_on, "127.0.0.1", 0, max_size=None)
        self.ends: dict[str, ServerConnection] = {}
        self.are_there = threading.Event()
        self.seen: list[tuple[str, str, Any]] = []
        self.frames: list[str | bytes] = []
        for server in (self, self.relay):
            threading.Thread(target=server.serve_forever, daemon=True).start()

    def _passed_on(self, end: ServerConnection) -> None:
        assert end.request
        name = end.request.path.strip("/")
        self.ends[name] = end
        if len(self.ends) == 2:
            self.are_there.set()
        self.are_there.wait()
        other = next(each for key, each in self.ends.items() if key != name)
        with contextlib.suppress(ConnectionClosed):
            for frame in end:
                self.frames.append(frame)
                other.send(frame)

    def answer(self, step: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to an end's registration, or to the question whether the other may use it."""
        if step == "validate":
            return {"valid": body["harness_key_authorization"] == "authorized"}
        key = next(given["executor_public_key"] for _, _, given in self.seen if "executor_public_key" in given)
        return {
            "environment_id": "env_1",
            "url": f"ws://127.0.0.1:{self.relay.socket.getsockname()[1]}/{step}",
            "security_profile": "noise_hybrid_ik_v1",
            "executor_registration_id": "registration_1",
            "executor_public_key": key,
            "harness_key_authorization": "authorized",
        }


class _Registration(_Handler):
    server: Registry  # type: ignore[assignment]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.seen.append((self.path, self.headers["authorization"], body))
        self._send(json.dumps(self.server.answer(self.path.split("/")[-1], body)).encode(), "application/json")


def forward(codex: Path, top: Path) -> None:
    """Codex runs a command through `codex exec-server forward`, a stand-in of the service, and the gateway."""
    home = top / "forward"
    home.mkdir()
    with contextlib.ExitStack() as stack:
        registry = stack.enter_context(Registry())
        url, key = stack.enter_context(gateway(top, ["--wire", "codex"]))
        address = f"http://127.0.0.1:{registry.server_address[1]}"
        place = ["--connect", f"{url.replace('http', 'ws', 1)}/codex/box/{key}"]
        run = [str(codex), "exec-server", "forward", "--remote", address, "--environment-id", "env_1", *place]
        environment = {**os.environ, "CODEX_HOME": str(home), "CODEX_API_KEY": "sk-of-the-executor"}
        forwarding = stack.enter_context(
            subprocess.Popen(run, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
        stack.callback(forwarding.kill)
        until(lambda: registry.ends)
        look = "id -u | grep -vqx 0; pwd; tail -n +3 /proc/net/dev | cut -d: -f1 | xargs; env | grep -c sk-"
        where = {
            "CODEX_EXEC_SERVER_NOISE_REGISTRY_URL": address,
            "CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID": "env_1",
            "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN": "sk-of-the-client",
        }
        steps = [command(look, workdir="/workspace"), command("head -c 300000 /dev/zero | wc -c", workdir="/workspace")]
        with codex_run(codex, top / "client", steps, variables=where) as (model, process):
            assert process.wait(180) == 0, (top / "client" / "log").read_text()[-3_000:]
        registry.shutdown()
        registry.relay.shutdown()
    assert "/workspace\nlo\n0\n" in model.outputs[0], model.outputs
    assert "300000\n" in model.outputs[1], model.outputs
    assert [(path.split("/")[-1], given) for path, given, _ in registry.seen] == [
        ("register", "Bearer sk-of-the-executor"),
        ("connect", "Bearer sk-of-the-client"),
        ("validate", "Bearer sk-of-the-executor"),
    ]
    assert not any(b"/workspace" in frame for frame in registry.frames if isinstance(frame, bytes))


def measure(codex: Path, top: Path) -> None:
    """The first and later commands, beside Codex's own execution on this machine."""
    steps = [command("true") for _ in range(12)]
    found = {}
    for name in ("local", "sandbox"):
        with codex_run(codex, top / name, steps, is_local=name == "local") as (model, process):
            finished(process, top / name)
            later = [after - before for before, after in zip(model.times[1:], model.times[2:], strict=False)]
            found[name] = (model.times[1] - model.began, median(later))
    load = os.getloadavg()[0]
    for what, local, ours in zip(("to the end of the first command", "a later command"), *found.values(), strict=True):
        print(f"   {what}: local {local:.3f} s, sandbox {ours:.3f} s, ratio {ours / local:.2f} (load {load:.1f})")


def servers_of(pid: int) -> list[int]:
    """Return the processes of ours that a process has started, in any of its threads."""
    found = list[int]()
    with contextlib.suppress(OSError):
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            found += map(int, children.read_text().split())
        return [each for each in found if b"agent_tools" in Path(f"/proc/{each}/cmdline").read_bytes()]
    return []


def labels_of(pid: int) -> dict[str, str]:
    """Return the labels of the containers of a process."""
    return Owner(Owner.current().host, pid, start_time(pid) or 0).labels


def until(check: Callable[[], object]) -> None:
    """Wait until a check is true, at most a minute."""
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
