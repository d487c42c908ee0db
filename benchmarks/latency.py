"""Latency of the tool, cold, warm and in between, as ratios to the same work done by hand in the same run.

    .venv/bin/python benchmarks/latency.py [--rounds 7] [--calls 300]

The baseline is a container with the same settings and image that runs a stock ipykernel, spoken to with plain pyzmq and
`jupyter_client.session.Session`: no checks, no limits, no time limit, nothing saved. The tool is measured over both of
its transports, unix sockets and stdio. Qwen-Agent's tool is measured beside it when it is installed. Rounds alternate,
so that a machine that slows down slows everything down. A fresh kernel by hand is a second one in the same container.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import zmq
from jupyter_client.session import Session as Wire

from agent_tools.engines import context
from agent_tools.engines.docker import image
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.docker.payload import container_config
from agent_tools.engines.engine import EngineContainer, SandboxSpec
from agent_tools.engines.isolation import Isolation
from agent_tools.engines.package_data import shipped
from agent_tools.machine.owner import Owner
from agent_tools.runtime.files.work_dir import prepare_work_dir
from agent_tools.tools import CodeInterpreter

PLAIN_KERNEL = ["/opt/kernel/bin/python", "-P", "-m", "ipykernel_launcher", "-f", "/run/kernel/kernel1.json"]

SECONDS = 10.0  # for which many sessions call at once
EARLY = 30  # calls; the second waits for the checkpoint after the first
QUIET = 0.5  # seconds before each start, in which the engine is done with what was closed before
PRINT = "print(1)"
FIGURE = "import matplotlib.pyplot as plt; plt.plot([1, 2, 3]); plt.title('title'); plt.show()"


class Interpreter(Protocol):
    """Something that runs code, started and with its first result behind it."""

    def execute(self, code: str) -> str: ...
    def restart(self) -> None: ...
    def close(self) -> None: ...


class ByHand:
    """A stock kernel in a container, with raw sockets."""

    def __init__(self, engine: DockerEngine, work_dir: Path) -> None:
        guest = engine.guest(work_dir)
        self.engine, self.folder = engine, Path(tempfile.mkdtemp(prefix="agent-tools-bench-"))
        self.key = secrets.token_hex(32)
        self.guest, self.number = guest, 1
        self._write_connection_file()
        spec = SandboxSpec(context.tag_for(), self.folder, work_dir, guest, Isolation(), Owner.current().labels)
        config = container_config(spec, shipped("docker/seccomp.json").read_text())
        config["Cmd"] = [*PLAIN_KERNEL, "--HistoryManager.enabled=False"]
        config["HostConfig"]["Mounts"][0]["ReadOnly"] = False  # a stock kernel makes its own sockets
        api = engine.connection.api()
        self.sandbox = EngineContainer(api.create_container_from_config(config)["Id"])
        api.start(self.sandbox.id)
        self._connect()
        self.execute(PRINT)

    def restart(self) -> None:
        """Start one more kernel beside the first, and speak to that."""
        self.number += 1
        self._write_connection_file()
        self._hang_up()
        api = self.engine.connection.api()
        command = [*PLAIN_KERNEL[:-1], f"/run/kernel/kernel{self.number}.json", "--HistoryManager.enabled=False"]
        uid, gid = self.guest.container_ids
        process = api.exec_create(self.sandbox.id, command, user=f"{uid}:{gid}")["Id"]
        api.exec_start(process, detach=True)
        self._connect()

    def _write_connection_file(self) -> None:
        guest = self.guest
        ports = {"shell_port": 1, "iopub_port": 2, "stdin_port": 3, "control_port": 4, "hb_port": 5}
        info = {
            "transport": "ipc",
            "ip": f"/run/kernel/k{self.number}",
            "key": self.key,
            "signature_scheme": "hmac-sha256",
            **ports,
        }
        file = self.folder / f"kernel{self.number}.json"
        file.write_text(json.dumps(info))
        if os.getuid() == 0:
            os.chown(self.folder, *guest.host_ids)
            os.chown(file, *guest.host_ids)

    def _connect(self) -> None:
        while not all((self.folder / f"k{self.number}-{port}").exists() for port in (1, 2)):
            time.sleep(0.001)
        context = zmq.Context.instance()
        self.wire = Wire(key=self.key.encode())
        self.shell, self.iopub = context.socket(zmq.DEALER), context.socket(zmq.SUB)
        self.iopub.subscribe(b"")
        self.iopub.connect(f"ipc://{self.folder}/k{self.number}-2")
        self.shell.connect(f"ipc://{self.folder}/k{self.number}-1")
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

    def _hang_up(self) -> None:
        self.shell.close(0)
        self.iopub.close(0)

    def close(self) -> None:
        self._hang_up()
        self.engine.remove(self.sandbox)
        shutil.rmtree(self.folder, ignore_errors=True)


class Ours:
    """The tool, over one of its transports."""

    def __init__(self, transport: str, _: DockerEngine, work_dir: Path) -> None:
        self.tool = CodeInterpreter({"work_dir": str(work_dir), "transport": transport})
        assert self.execute(PRINT) == "stdout:\n\n```\n1\n\n```"
        self.restart, self.close = self.tool.restart, self.tool.close

    def execute(self, code: str) -> str:
        return self.tool.call(code)


class Qwen:
    """Qwen-Agent's tool, which has no way to restart or to close."""

    def __init__(self, _: DockerEngine, work_dir: Path) -> None:
        from qwen_agent.tools.code_interpreter import CodeInterpreter as Theirs  # type: ignore[import-not-found]

        self.tool = Theirs({"work_dir": str(work_dir)})
        self.execute(PRINT)

    def execute(self, code: str) -> str:
        return str(self.tool.call(json.dumps({"code": code})))

    def restart(self) -> None:
        pass

    def close(self) -> None:
        pass


def kinds() -> dict[str, Callable[[DockerEngine, Path], Interpreter]]:
    """Return the kinds of interpreters that are measured, by name."""
    found: dict[str, Callable[[DockerEngine, Path], Interpreter]] = {
        "by hand": ByHand,
        "over sockets": partial(Ours, "sockets"),
        "over stdio": partial(Ours, "stdio"),
    }
    if importlib.util.find_spec("qwen_agent"):
        found["qwen-agent"] = Qwen
    return found


@contextmanager
def scratch() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="agent-tools-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


ROWS = {
    "process": "cold: a fresh Python process to its first result",
    "whole": "cold: a fresh Python process to its end",
    "cold": "cold: new instance to first result",
    "kernel": "a fresh kernel to its first result",
    "early": f"warm: {PRINT}, of the first calls, the second of which waits for the copy of the kernel after the first",
    "warm": f"warm: {PRINT}",
    "figure": "one more figure",
    "close": "close",
}


def measure(rounds: int, calls: int) -> None:
    engine = DockerEngine()
    image.ensure(engine, progress=print)
    figures: dict[str, dict[str, list[float]]] = {row: {name: [] for name in kinds()} for row in ROWS}
    with ExitStack() as stack:
        folders = {name: stack.enter_context(scratch()) for name in kinds()}
        folders = {name: prepare_work_dir(path, engine.guest(path)) for name, path in folders.items()}
        for number in range(rounds + 1):  # the first round warms the page cache and is not counted
            for name, start in kinds().items():
                found = one_round(lambda start=start, name=name: start(engine, folders[name]), calls // rounds)
                found["process"], found["whole"] = process(name, folders[name])
                for row, values in found.items() if number else ():
                    figures[row][name] += values
    for row, title in ROWS.items():
        report(title, figures[row])


def one_round(start: Callable[[], Interpreter], calls: int) -> dict[str, list[float]]:
    """Seconds of all rows but those of a fresh process."""
    time.sleep(QUIET)
    began = time.perf_counter()
    it = start()
    found = {"cold": [time.perf_counter() - began]}
    found["early"] = timed(lambda: it.execute(PRINT), EARLY)
    timed(lambda: it.execute(PRINT), EARLY)
    found["warm"] = timed(lambda: it.execute(PRINT), calls)
    it.execute("%matplotlib inline\n" + FIGURE)
    found["figure"] = timed(lambda: it.execute(FIGURE), 3)
    found["kernel"] = timed(lambda: (it.restart(), it.execute(PRINT)), 3)
    found["close"] = timed(it.close, 1)
    return found


def process(name: str, folder: Path) -> tuple[list[float], list[float]]:
    """Have a fresh process start one kind, get its first result, which it tells in a line, and end: seconds to both."""
    if name.startswith("over "):
        cfg = {"work_dir": str(folder), "transport": name.removeprefix("over ")}
        use = f"with CodeInterpreter({cfg}) as tool: print([tool.call({PRINT!r})], flush=True)"
        command = ["-c", f"from agent_tools import CodeInterpreter\n{use}"]
    else:
        command = [__file__, "--once", name, str(folder)]
    time.sleep(QUIET)
    began = time.perf_counter()
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE) as child:
        assert child.stdout
        assert child.stdout.readline()
        first = time.perf_counter() - began
    assert child.returncode == 0
    return [first], [time.perf_counter() - began]


def once(name: str, folder: Path) -> None:
    interpreter = kinds()[name](DockerEngine(), folder)
    print("ready", flush=True)
    interpreter.close()


def timed(call: Callable[[], Any], times: int) -> list[float]:
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


def report(title: str, figures: dict[str, list[float]]) -> None:
    print(f"\n{title}\n  {'':12} {'median':>9} {'p95':>9}   ratio to by hand")
    baseline = statistics.median(figures["by hand"])
    for name, values in figures.items():
        median, p95 = statistics.median(values), statistics.quantiles([*values, *values], n=20)[-1]
        print(f"  {name:12} {median * 1000:7.2f} ms {p95 * 1000:7.2f} ms   {median / baseline:.2f}x")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="cold starts of each kind (default 7)")
    parser.add_argument("--calls", type=int, default=300, help="warm calls of each kind over all rounds (default 300)")
    parser.add_argument("--sessions", type=int, default=24, help="sessions that call at once (default 24; 0: none)")
    parser.add_argument("--once", nargs=2, metavar=("KIND", "FOLDER"), help="only get one first result, of a kind")
    options = parser.parse_args()
    if options.once:
        once(options.once[0], Path(options.once[1]))
        sys.exit()
    measure(options.rounds, options.calls)
    if options.sessions:
        throughput(options.sessions, SECONDS)
