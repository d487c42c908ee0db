"""What the gateway adds to the code and to the model, as ratios: nothing here is worth more than its own machine.

    .venv/bin/python benchmarks/gateway.py [--rounds 50]

An upstream that answers at once is asked directly, through the gateway, and through the gateway with one call of
`1 + 1` on a warm container. The session's own time for the same code is the measure of it all.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from agent_tools.testing import ScriptedCall, ScriptedReply, ScriptedServer
from agent_tools.tools import CodeInterpreter

CODE = "1 + 1"


def upstream(request: dict[str, Any]) -> ScriptedReply:
    if request.get("tools") and request["messages"][-1]["role"] == "user":
        return ScriptedReply(calls=[ScriptedCall("python", {"code": CODE})])
    return ScriptedReply(text="Two.")


@contextlib.contextmanager
def serving(upstream_url: str, folder: str) -> Iterator[str]:
    """A gateway in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [sys.executable, "-m", "agent_tools", "serve", "--upstream", upstream_url, "--port", str(port)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*command, "--data-dir", f"{folder}/data"], **quiet) as process:
        url = f"http://127.0.0.1:{port}"
        while process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"{url}/health")
                break
            time.sleep(0.05)
        yield f"{url}/v1"
        process.terminate()


def measured(rounds: int, act: Callable[[], float | None]) -> list[float]:
    """Milliseconds: what the act says it took, or what it took."""
    act()
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        said = act()
        found.append(1000 * (time.perf_counter() - start if said is None else said))
    return found


def running_time(client: httpx.Client, body: dict[str, Any]) -> float:
    """Seconds between `interpreting` and `completed`, as the client sees them."""
    seen: dict[str, float] = {}
    with client.stream("POST", "responses", json={**body, "stream": True}) as answer:
        for line in answer.iter_lines():
            if line.startswith("event: "):
                seen.setdefault(line[7:], time.perf_counter())
    call = "response.code_interpreter_call"
    return seen[f"{call}.completed"] - seen[f"{call}.interpreting"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=50)
    rounds = parser.parse_args().rounds
    results: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(ScriptedServer({"m": upstream}))
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        tool = stack.enter_context(CodeInterpreter({"work_dir": f"{folder}/session"}))
        results["session: the code itself"] = measured(rounds, lambda: tool.run(CODE).duration)
        direct = stack.enter_context(httpx.Client(base_url=server.base_url))
        asked = {"model": "m", "messages": [{"role": "user", "content": "Go."}], "stream": True}
        results["upstream, asked directly"] = measured(
            rounds, lambda: direct.post("chat/completions", json=asked).close()
        )
        url = stack.enter_context(serving(server.base_url, folder))
        client = stack.enter_context(httpx.Client(base_url=url, timeout=60))
        container = client.post("containers", json={"name": "benchmark"}).json()["id"]
        plain = {"model": "m", "input": "Go."}
        body = {**plain, "tools": [{"type": "code_interpreter", "container": container}]}
        results["gateway: passed on"] = measured(rounds, lambda: client.post("chat/completions", json=asked).close())
        results["gateway: a response without code"] = measured(
            rounds, lambda: client.post("responses", json=plain).close()
        )
        results["gateway: a response with one call"] = measured(
            rounds, lambda: client.post("responses", json=body).close()
        )
        results["  of it, interpreting -> completed"] = measured(rounds, lambda: running_time(client, body))
    report(results)


def report(results: dict[str, list[float]]) -> None:
    base = statistics.median(results["session: the code itself"])
    print(f"{'':38}{'p50 ms':>10}{'p95 ms':>10}{'x session':>12}")
    for name, times in results.items():
        median, high = statistics.median(times), sorted(times)[int(0.95 * (len(times) - 1))]
        print(f"{name:38}{median:10.1f}{high:10.1f}{median / base:12.1f}")
    print(json.dumps({name.strip(): round(statistics.median(times), 2) for name, times in results.items()}))


if __name__ == "__main__":
    main()
