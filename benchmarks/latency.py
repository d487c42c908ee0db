"""Cold and warm latency of the tool, as ratios to the same work done by hand in the same run.

    .venv/bin/python benchmarks/latency.py [--rounds 7] [--calls 300]

The baseline is a container with the same settings and image that runs a stock ipykernel, spoken to with plain pyzmq and
`jupyter_client.session.Session`: no checks, no limits, no time limit, nothing saved. The tool is measured over both of
its transports, unix sockets and stdio. Qwen-Agent's tool is measured beside it when it is installed. Rounds alternate,
so that a machine that slows down slows everything down.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import zmq
from jupyter_client.session import Session as Wire

from agent_tools.runtime.docker import image
from agent_tools.runtime.docker.engine import DockerEngine
from agent_tools.runtime.docker.payload import container_config
from agent_tools.runtime.docker.shipped import shipped
from agent_tools.runtime.engine import Container, Guest, Isolation, SandboxSpec
from agent_tools.runtime.files.work_dir import prepare_work_dir
from agent_tools.runtime.owner import Owner
from agent_tools.tools import CodeInterpreter

PLAIN_KERNEL = ["/opt/kernel/bin/python", "-P", "-m", "ipykernel_launcher", "-f", "/run/kernel/kernel.json"]

SECONDS = 10.0  # for which many sessions call at once


class ByHand:
    """A stock kernel in a container, with raw sockets."""

    def __init__(self, engine: DockerEngine, work_dir: Path) -> None:
        guest = engine.guest(work_dir)
        self.engine, self.folder = engine, Path(tempfile.mkdtemp(prefix="agent-tools-bench-"))
        self.key = secrets.token_hex(32)
        self._write_connection_file(guest)
        spec = SandboxSpec(image.tag_for(), self.folder, work_dir, guest, Isolation(), Owner.current().labels)
        config = container_config(spec, shipped("docker/seccomp.json").read_text())
        config["Cmd"] = [*PLAIN_KERNEL, "--HistoryManager.enabled=False"]
        config["HostConfig"]["Mounts"][0]["ReadOnly"] = False  # a stock kernel makes its own sockets
        api = engine.connection.api()
        self.sandbox = Container(api.create_container_from_config(config)["Id"])
        api.start(self.sandbox.id)
        self._connect()

    def _write_connection_file(self, guest: Guest) -> None:
        ports = {"shell_port": 1, "iopub_port": 2, "stdin_port": 3, "control_port": 4, "hb_port": 5}
        info = {"transport": "ipc", "ip": "/run/kernel/k", "key": self.key, "signature_scheme": "hmac-sha256", **ports}
        file = self.folder / "kernel.json"
        file.write_text(json.dumps(info))
        if os.getuid() == 0:
            os.chown(self.folder, *guest.outside)
            os.chown(file, *guest.outside)

    def _connect(self) -> None:
        while not all((self.folder / f"k-{port}").exists() for port in (1, 2)):
            time.sleep(0.001)
        context = zmq.Context.instance()
        self.wire = Wire(key=self.key.encode())
        self.shell, self.iopub = context.socket(zmq.DEALER), context.socket(zmq.SUB)
        self.iopub.subscribe(b"")
        self.iopub.connect(f"ipc://{self.folder}/k-2")
        self.shell.connect(f"ipc://{self.folder}/k-1")
        self.poller = zmq.Poller()
        self.poller.register(self.iopub, zmq.POLLIN)
        self.poller.register(self.shell, zmq.POLLIN)

    def execute(self, code: str) -> str:
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        request = self.wire.send(self.shell, "execute_request", content)["header"]["msg_id"]
        text, replied, idle = "", False, False
        while not (replied and idle):
            ready = self.poller.poll(2000)
            if not ready and replied:
                break  # the first subscription can miss the idle message
            for socket, _ in ready:
                _, parts = self.wire.feed_identities(socket.recv_multipart())
                message = self.wire.deserialize(parts)
                if message["parent_header"].get("msg_id") != request:
                    continue
                replied = replied or message["msg_type"] == "execute_reply"
                idle = idle or message["content"].get("execution_state") == "idle"
                text += message["content"].get("text", "")
        return text

    def close(self) -> None:
        self.shell.close(0)
        self.iopub.close(0)
        self.engine.remove(self.sandbox)
        shutil.rmtree(self.folder, ignore_errors=True)


def by_hand(engine: DockerEngine, work_dir: Path) -> tuple[Callable[[], Any], Callable[[], Any]]:
    kernel = ByHand(engine, work_dir)
    kernel.execute("print(1)")
    return lambda: kernel.execute("print(1)"), kernel.close


def ours(transport: str, _: DockerEngine, work_dir: Path) -> tuple[Callable[[], Any], Callable[[], Any]]:
    tool = CodeInterpreter({"work_dir": str(work_dir), "transport": transport})
    assert tool.call("print(1)") == "stdout:\n\n```\n1\n\n```"
    return lambda: tool.call("print(1)"), tool.close


def qwen(_: DockerEngine, work_dir: Path) -> tuple[Callable[[], Any], Callable[[], Any]]:
    from qwen_agent.tools.code_interpreter import CodeInterpreter as Theirs  # type: ignore[import-not-found]

    tool = Theirs({"work_dir": str(work_dir)})
    tool.call({"code": "print(1)"})
    return lambda: tool.call('{"code": "print(1)"}'), lambda: None


@contextmanager
def scratch() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="agent-tools-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def measure(rounds: int, calls: int) -> None:
    engine = DockerEngine()
    image.ensure(engine, progress=print)
    kinds: dict[str, Callable[..., Any]] = {
        "by hand": by_hand,
        "over sockets": partial(ours, "sockets"),
        "over stdio": partial(ours, "stdio"),
    }
    try:
        import qwen_agent  # type: ignore[import-not-found]  # noqa: F401

        kinds["qwen-agent"] = qwen
    except ImportError:
        print("qwen-agent is not installed; it is left out")
    cold: dict[str, list[float]] = {name: [] for name in kinds}
    warm: dict[str, list[float]] = {name: [] for name in kinds}
    with ExitStack() as stack:
        folders = {name: stack.enter_context(scratch()) for name in kinds}
        folders = {name: prepare_work_dir(path, engine.guest(path)) for name, path in folders.items()}
        for number in range(rounds + 1):  # the first round warms the page cache and is not counted
            for name, start in kinds.items():
                began = time.perf_counter()
                call, close = start(engine, folders[name])
                if number:
                    cold[name].append(time.perf_counter() - began)
                    warm[name] += timed(call, calls // rounds)
                close()
    report("cold: new instance to first result", cold, "s", 1)
    report("warm: print(1)", warm, "ms", 1000)


def timed(call: Callable[[], Any], times: int) -> list[float]:
    for _ in range(10):
        call()
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return found


def throughput(sessions: int, seconds: float) -> None:
    """Print the calls per second of many sessions at once, each with a thread of its own."""
    with ExitStack() as stack:
        folders = [stack.enter_context(scratch()) for _ in range(sessions)]
        tools = [stack.enter_context(CodeInterpreter({"work_dir": str(folder)})) for folder in folders]
        with ThreadPoolExecutor(sessions) as pool:
            list(pool.map(lambda tool: tool.call("print(1)"), tools))
            end = time.perf_counter() + seconds
            counts = list(pool.map(partial(calls_until, end), tools))
    print(f"\n{sessions} sessions at once: {sum(counts) / seconds:.0f} calls per second")


def calls_until(end: float, tool: CodeInterpreter) -> int:
    count = 0
    while time.perf_counter() < end:
        tool.call("print(1)")
        count += 1
    return count


def report(title: str, figures: dict[str, list[float]], unit: str, scale: float) -> None:
    print(f"\n{title}\n  {'':12} {'median':>9} {'p95':>9}   ratio to by hand")
    baseline = statistics.median(figures["by hand"])
    for name, values in figures.items():
        median, p95 = statistics.median(values), statistics.quantiles(values, n=20)[-1]
        print(f"  {name:12} {median * scale:7.2f} {unit} {p95 * scale:7.2f} {unit}   {median / baseline:.2f}x")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="cold starts of each kind (default 7)")
    parser.add_argument("--calls", type=int, default=300, help="warm calls of each kind over all rounds (default 300)")
    parser.add_argument("--sessions", type=int, default=24, help="sessions that call at once (default 24; 0: none)")
    options = parser.parse_args()
    measure(options.rounds, options.calls)
    if options.sessions:
        throughput(options.sessions, SECONDS)
