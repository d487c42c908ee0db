"""An hour of mixed use through each door: what grows in the process that serves it, and how fast.

    .venv/bin/python benchmarks/soak.py [--minutes 60] [--pause 1] [--doors library gateway mcp terminal e2b]

Each door has a process of its own, with one caller, who pauses between calls, prints much and little, draws, fails,
loads files up and down, hangs up, and begins a new session after RENEW_AFTER calls. Twelve spans of equal length follow
a warm-up of a fifth of the time. The table has the medians of the first and the last span, and the slope of all: what a
process has more after an hour, with its confidence interval (95 %). Descriptors, threads and memory must be flat within
noise, or their growth over the whole run below LEAST; rows and bytes of disk are kept for their owner, within limits.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
from machine import children, descriptors

from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.limits import MIB
from agent_tools.machine.machine import start_time
from agent_tools.machine.owner import Owner
from agent_tools.testing import ScriptedCall, ScriptedReply, ScriptedServer
from agent_tools.tools import CodeInterpreter

CODE = (
    "print('x' * 1000)",
    "1 / 0",
    "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show(); plt.close('all')",
    "for n in range(2000): print(n)",
    "print('y' * 2_000_000)",
    "open('made.bin', 'wb').write(bytes(300_000))",
    "seen = [*globals().get('seen', []), 1]; len(seen)",
    "from IPython.display import HTML; HTML('<b>z</b>' * 1000)",
)
RENEW_AFTER = 40  # calls
SPANS, WARM_UP = 12, 0.2
SAMPLE_SECONDS = 5.0
T_OF_SPANS = 2.23  # Student's t for 95 % and SPANS - 2 degrees of freedom
LEAST = {"descriptors": 3.0, "threads": 3.0, "memory, MiB": 8.0}
"""Growth over a whole run that is none: buffers that fill, and a pool that is full at one moment."""
UPLOAD = bytes(200_000)


class Door(Protocol):
    """One way in: the process that serves it and its folder."""

    pid: int
    folder: Path

    def call(self, code: str) -> None:
        """Run code in the present session."""

    def renew(self) -> None:
        """Begin a new session, and end the present one."""


# -- the doors --------------------------------------------------------------------------------------------------------


class Library:
    """`CodeInterpreter`, in a process of its own that reads code from its stdin."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, __file__, "--serve-library", str(folder)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._process = stack.enter_context(process)
        self.pid = self._process.pid
        stack.callback(lambda: self._process.stdin and self._process.stdin.close())

    def call(self, code: str) -> None:
        self._ask(repr(code))

    def renew(self) -> None:
        self._ask("")

    def _ask(self, line: str) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"


def serve_library(folder: Path) -> None:
    """Run what stdin says until its end; an empty line begins a new session."""
    import ast

    tool: CodeInterpreter | None = None
    for number, line in enumerate(sys.stdin):
        if tool and line == "\n":
            tool.close()
            tool = None
        elif line != "\n":
            tool = tool or CodeInterpreter({"work_dir": str(folder / str(number))})
            tool.call(ast.literal_eval(line))
        print("done", flush=True)
    if tool:
        tool.close()


class Served:
    """A server of ours in a process of its own, and an HTTP client of it."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path, path: str, *arguments: str) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self._address = f"127.0.0.1:{taken.getsockname()[1]}"
        words = [each.format(address=self._address, port=self._address.rpartition(":")[2]) for each in arguments]
        with (folder.parent / f"{folder.name}.log").open("wb") as log:
            process = subprocess.Popen([sys.executable, "-m", "agent_tools", *words], stdout=log, stderr=log)
        stack.enter_context(process)
        stack.callback(process.terminate)
        self.pid = process.pid
        self.http = stack.enter_context(httpx.Client(base_url=f"http://{self._address}{path}", timeout=300))
        while process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"http://{self._address}/")
                break
            time.sleep(0.05)

    def ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        return self.http.request(method, path, **given).raise_for_status()


class Gateway(Served):
    """Responses, plain, streamed and hung up on, chat completions and files of a container."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path) -> None:
        model = stack.enter_context(ScriptedServer({"m": _as_asked}))
        super().__init__(stack, folder, "/v1", *_serve(folder, model.base_url))
        self._ways = itertools.cycle((self._respond, self._stream, self._chat, self._use_files, self._hang_up))
        self._container = ""
        self.renew()

    def call(self, code: str) -> None:
        next(self._ways)(code)

    def renew(self) -> None:
        if self._container:
            self.ask("DELETE", f"containers/{self._container}")
        self._container = self.ask("POST", "containers", json={"name": "soak"}).json()["id"]

    def _body(self, code: str) -> dict[str, Any]:
        tool = {"type": "code_interpreter", "container": self._container}
        return {"model": "m", "input": code, "tools": [tool], "include": ["code_interpreter_call.outputs"]}

    def _respond(self, code: str) -> None:
        self.ask("POST", "responses", json=self._body(code))

    def _stream(self, code: str) -> None:
        self.ask("POST", "responses", json={**self._body(code), "stream": True})

    def _chat(self, code: str) -> None:
        messages = [{"role": "user", "content": code}]
        self.ask("POST", "chat/completions", json={"model": "m", "messages": messages})

    def _use_files(self, _: str) -> None:
        files = f"containers/{self._container}/files"
        made = self.ask("POST", files, files={"file": ("data.bin", UPLOAD)}).json()["id"]
        self.ask("GET", f"{files}/{made}/content")
        self.ask("DELETE", f"{files}/{made}")

    def _hang_up(self, code: str) -> None:
        with self.http.stream("POST", "responses", json={**self._body(code), "stream": True}) as answer:
            next(answer.iter_lines())


def _as_asked(request: dict[str, Any]) -> ScriptedReply:
    """One call with the code of the user's message, then an answer."""
    last = request["messages"][-1]
    if request.get("tools") and last["role"] == "user":
        return ScriptedReply(calls=[ScriptedCall(request["tools"][0]["function"]["name"], {"code": last["content"]})])
    return ScriptedReply(text="Done.")


def _serve(folder: Path, upstream: str, *more: str) -> tuple[str, ...]:
    return "serve", "--port", "{port}", "--data-dir", str(folder), "--upstream", upstream, *more


class Mcp(Served):
    """`run_python` over HTTP, without a client library."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path) -> None:
        super().__init__(
            stack, folder, "", "mcp", "--http", "{address}", "--set", f"data_dir={folder}", "--set", "pool=1"
        )
        self._container = ""

    def call(self, code: str) -> None:
        self._container = self._tool("run_python", code=code)["container"]

    def renew(self) -> None:
        self._tool("close")
        self._container = ""

    def _tool(self, name: str, **arguments: str) -> dict[str, Any]:
        from doors import META, VERSION

        given = {**arguments, **({"container": self._container} if self._container else {})}
        params = {"name": name, "arguments": given, "_meta": META}
        heads = {"accept": "application/json, text/event-stream", "mcp-protocol-version": VERSION}
        heads |= {"mcp-method": "tools/call", "mcp-name": name}
        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        answer = self.ask("POST", "/mcp", json=asked, headers=heads).text
        *_, last = (line.removeprefix("data: ") for line in answer.splitlines() if line[:6] in ("data: ", '{"json'))
        found: dict[str, Any] = json.loads(last)["result"].get("structuredContent", {})
        return found


class Terminal(Served):
    """Open WebUI's terminal server: commands, cells and files, for one chat after another."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path) -> None:
        super().__init__(stack, folder, "/terminal", *_serve(folder, "http://127.0.0.1:9/v1", "--wire", "terminal"))
        self._ways = itertools.cycle((self._run, self._command, self._use_files))
        self._chat = 0

    def call(self, code: str) -> None:
        next(self._ways)(code)

    def renew(self) -> None:
        self._chat += 1

    def _ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        chat = f"chat:{self._chat}"
        heads = {"X-User-Id": "ann", "X-Session-Id": str(self._chat), "X-Terminal-Context-Id": chat}
        return self.ask(method, path, headers=heads, **given)

    def _run(self, code: str) -> None:
        self._ask("POST", "/python", json={"code": code})

    def _command(self, _: str) -> None:
        self._ask("POST", "/execute", json={"command": "seq 1 20000; ls -l"}, params={"wait": 60})

    def _use_files(self, _: str) -> None:
        self._ask("POST", "/files/upload", files={"file": ("data.bin", UPLOAD)}, params={"directory": "/workspace"})
        self._ask("GET", "/files/view", params={"path": "/workspace/data.bin"})
        self._ask("DELETE", "/files/delete", params={"path": "/workspace/data.bin"})


class E2b(Served):
    """E2B's protocol: a sandbox, cells, files, and its end."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path) -> None:
        super().__init__(stack, folder, "/e2b", *_serve(folder, "http://127.0.0.1:9/v1", "--wire", "e2b"))
        self._sandbox = ""
        self._ways = itertools.cycle((self._run, self._run, self._use_files))
        self.renew()

    def call(self, code: str) -> None:
        next(self._ways)(code)

    def renew(self) -> None:
        if self._sandbox:
            self.ask("DELETE", f"/sandboxes/{self._sandbox}")
        made = self.ask("POST", "/v2/sandboxes", json={"templateID": "base", "timeout": 3600}).json()
        self._sandbox = made["sandboxID"]

    def _in_sandbox(self, method: str, path: str, **given: Any) -> httpx.Response:
        return self.ask(method, path, headers={"E2b-Sandbox-Id": self._sandbox}, **given)

    def _run(self, code: str) -> None:
        self._in_sandbox("POST", "/execute", json={"code": code})

    def _use_files(self, _: str) -> None:
        path = {"path": "/workspace/data.bin"}
        self._in_sandbox("POST", "/files", files={"file": ("data.bin", UPLOAD)}, params=path)
        self._in_sandbox("GET", "/files", params=path)
        self._in_sandbox("POST", "/filesystem.Filesystem/Remove", json=path)


DOORS: dict[str, Callable[[contextlib.ExitStack, Path], Door]] = {
    "library": Library,
    "gateway": Gateway,
    "mcp": Mcp,
    "terminal": Terminal,
    "e2b": E2b,
}


# -- what is measured -------------------------------------------------------------------------------------------------


def held(door: Door) -> dict[str, float]:
    """Return what the processes of a door hold now."""
    pids = [door.pid, *children(door.pid)]
    status = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    resident = sum(int(found.partition("VmRSS:")[2].split()[0]) * 1024 for found in status)
    threads = sum(int(found.partition("Threads:")[2].split()[0]) for found in status)
    files = [found for found in door.folder.rglob("*") if not found.is_symlink()]
    return {
        "memory, MiB": resident / MIB,
        "descriptors": sum(map(descriptors, pids)),
        "threads": threads,
        "disk, MiB": sum(_blocks(found) for found in files) / MIB,
        "rows": sum(rows(found) for found in files if found.suffix in (".db", ".sqlite", ".sqlite3")),
    }


def _blocks(file: Path) -> int:
    with contextlib.suppress(OSError):
        return file.lstat().st_blocks * 512
    return 0


def rows(database: Path) -> int:
    """Return the rows of all tables of a SQLite database."""
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db,
    ):
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return sum(db.execute(f'SELECT COUNT(*) FROM "{name}"').fetchone()[0] for name in names)
    return 0


@dataclass
class Use:
    """A caller of one door, and what was found there: (seconds since the start, what, how much)."""

    name: str
    door: Door
    found: list[tuple[float, str, float]] = field(default_factory=list)
    calls: int = 0
    failure: str = ""

    def go_on(self, began: float, until: float, pause: float) -> None:
        """Call until that moment."""
        sampled = 0.0
        try:
            while time.monotonic() < until:
                if self.calls and self.calls % RENEW_AFTER == 0:
                    self.door.renew()
                started = time.monotonic()
                self.door.call(CODE[self.calls % len(CODE)])
                self.found.append((started - began, "call, ms", 1000 * (time.monotonic() - started)))
                self.calls += 1
                if time.monotonic() > sampled + SAMPLE_SECONDS:
                    sampled = time.monotonic()
                    self.found += [(sampled - began, name, value) for name, value in held(self.door).items()]
                time.sleep(pause)
        except Exception as exc:  # noqa: BLE001  (of any client: it is shown, and the soak has failed)
            self.failure = f"{type(exc).__name__}: {exc}"


@dataclass(frozen=True)
class Slope:
    """What grew, an hour, with half of its confidence interval; the first and the last span."""

    an_hour: float
    noise: float
    first: float
    last: float


def slope(found: Sequence[tuple[float, float]], seconds: float) -> Slope | None:
    """Return the slope of (second, value) over the spans after the warm-up; None without a value in each."""
    width = seconds * (1 - WARM_UP) / SPANS
    spans: list[list[float]] = [[] for _ in range(SPANS)]
    for at, value in found:
        number = int((at - seconds * WARM_UP) // width)
        if 0 <= number < SPANS:
            spans[number].append(value)
    if not all(spans):
        return None
    times, means = [width * number / 3600 for number in range(SPANS)], [statistics.median(span) for span in spans]
    line = statistics.linear_regression(times, means)
    left = sum((mean - line.intercept - line.slope * at) ** 2 for at, mean in zip(times, means))
    spread = sum((at - statistics.fmean(times)) ** 2 for at in times)
    noise = T_OF_SPANS * (left / (SPANS - 2) / spread) ** 0.5
    return Slope(line.slope, noise, means[0], means[-1])


def report(uses: Sequence[Use], seconds: float) -> bool:
    """Print the table; return whether nothing grew that must not."""
    is_flat = True
    print(f"{seconds / 60:.0f} minutes, load at the end {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors\n")
    print("| door | calls | | first | last | an hour | |\n|---|---|---|---|---|---|---|")
    for use in uses:
        for name in dict.fromkeys(name for _, name, _ in use.found):
            found = slope([(at, value) for at, what, value in use.found if what == name], seconds)
            if found is None:
                continue
            grown = found.an_hour - found.noise > 0 and found.an_hour * seconds / 3600 > LEAST.get(name, float("inf"))
            is_flat &= not grown
            values = f"{found.first:,.1f} | {found.last:,.1f} | {found.an_hour:+,.1f} ± {found.noise:,.1f}"
            print(f"| {use.name} | {use.calls} | {name} | {values} | {'grows' if grown else ''} |")
        if use.failure:
            is_flat = False
            print(f"| {use.name} | {use.calls} | failed: {use.failure[:300]} | | | | |")
    return is_flat


@contextlib.contextmanager
def opened(names: Sequence[str], folder: Path) -> Iterator[list[Use]]:
    with contextlib.ExitStack() as stack:
        uses = []
        for name in names:
            (folder / name).mkdir()
            uses.append(Use(name, DOORS[name](stack, folder / name)))
        yield uses


def main(names: Sequence[str], minutes: float, pause: float) -> bool:
    """Use all doors at once; return whether nothing grew, failed or was left."""
    folder = Path(tempfile.mkdtemp(prefix="agent-tools-soak-"))
    try:
        with opened(names, folder) as uses:
            owners = [Owner(Owner.current().host, each.door.pid, start_time(each.door.pid) or 0) for each in uses]
            began = time.monotonic()
            until = began + 60 * minutes
            threads = [threading.Thread(target=use.go_on, args=(began, until, pause)) for use in uses]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            is_flat = report(uses, 60 * minutes)
        left = sum(len(DockerEngine().strays(owner.labels)) for owner in owners)
        print(f"\nsandboxes left: {left}")
        return is_flat and not left
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two calls of a caller (default 1)")
    parser.add_argument("--doors", nargs="+", choices=DOORS, default=list(DOORS))
    parser.add_argument("--serve-library", metavar="FOLDER", help="be the library's process, and nothing else")
    options = parser.parse_args()
    if options.serve_library:
        serve_library(Path(options.serve_library))
        sys.exit()
    sys.exit(0 if main(options.doors, options.minutes, options.pause) else 1)
