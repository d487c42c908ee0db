"""The worst bodies of one client at routes of every door, and what they cost: another client's wait, and memory.

    .venv/bin/python benchmarks/bodies.py [--only e2b]

A gateway with all wires gets each body in turn, as large as its route accepts. Beside it a process asks for GET /health
without a pause. A row shows the longest wait of that process, the gateway's memory at its peak beyond what it had
before, and that growth as a multiple of the body as a text of Python's: one character such as an emoji makes that four
times as large as the body. The goals stand in GOALS; a wait that misses its goal on a busy
machine, whose load is shown, says little.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

MIB = 2**20
WAIT, READ, MADE = "seconds of another client", "times the text, read", "times the text, of a response made and stored"
GOALS = {WAIT: 0.5, READ: 4.0, MADE: 10.0}
SMALL = 96 * MIB  # bytes that any request may take, however small its body
PARTS = 199_000  # of a body, just below the limit
MAX_ESCAPES = 6_000_000  # of a body
KEY = "benchmark-key"
HEADERS = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
WIRES = ("terminal", "vllm", "sandboxfusion", "librechat", "e2b")


def lists(size: int) -> bytes:
    return b"[" + (b"[]," * (PARTS // 2))[: size // 2 // 3 * 3] + b"0]"


def objects(size: int) -> bytes:
    return b"{" + b",".join(b'"%d":0' % n for n in range(min(PARTS, size // 20))) + b"}"


def numbers(size: int) -> bytes:
    return b"[" + b"1," * min(PARTS, size // 4) + b"1]"


def text(size: int) -> bytes:
    return b'"' + b"x" * (size - 600) + b'"'


def wide(size: int) -> bytes:
    return b'"\xf0\x9f\x98\x80' + b"x" * (size - 600) + b'"'


def escapes(size: int) -> bytes:
    return b'"' + b"\\u0041" * (size // 6 - 100) + b'"'


def commas(size: int) -> bytes:
    return b'"' + b'\\",' * min(MAX_ESCAPES, size // 3 - 200) + b'"'


def many_texts(size: int) -> bytes:
    return b"[" + b'"",' * PARTS + b'"' + b"," * (size // 2 - 4 * PARTS) + b'"]' if size > 8 * PARTS else b"[]"


def too_many(size: int) -> bytes:
    return b"[" + b"[]," * (size // 3 - 200) + b"0]"


def open_texts(size: int) -> bytes:
    return b'["' + b'",' * (size // 2 - 200)


def few_lists(_: int) -> bytes:
    return b"[" + b"[]," * 24_000 + b"0]"  # within the limit of messages of MCP


BODIES = (lists, objects, numbers, text, wide, escapes, commas, many_texts, too_many, open_texts, few_lists)
ROUTES = (  # path, most bytes, and JSON with VALUE in the place of the body
    ("/sandboxfusion/run_code", 32 * MIB, b'{"language":"none","code":"","args":VALUE}'),
    ("/sandboxfusion/run_code", 32 * MIB, b'{"language":"none","code":VALUE}'),
    ("/sandboxfusion/run_code", 32 * MIB, b'{"language":"none","code":"","files":VALUE}'),
    ("/e2b/sandboxes", 16 * MIB, b'{"templateID":"none","metadata":VALUE}'),
    ("/e2b/sandboxes", 16 * MIB, b'{"templateID":"none","network":VALUE}'),
    ("/librechat/exec", 16 * MIB, b'{"lang":"none","code":VALUE}'),
    ("/librechat/exec", 16 * MIB, b'{"lang":"none","code":"","files":VALUE}'),
    ("/terminal/execute", 16 * MIB, b'{"command":1,"env":VALUE}'),
    ("/terminal/files/replace", 16 * MIB, b'{"path":"none","replacements":VALUE}'),
    ("/v1/responses", 32 * MIB, b'{"model":"none","input":VALUE}'),
    ("/v1/responses", 32 * MIB, b'{"model":"none","input":"x","tools":VALUE}'),
    ("/v1/chat/completions", 32 * MIB, b'{"model":"none","messages":VALUE}'),
    ("/v1/conversations", 32 * MIB, b'{"items":VALUE}'),
    ("/v1/containers", 32 * MIB, b'{"name":1,"skills":VALUE}'),
    ("/page/run", 32 * MIB, b'{"code":1,"x":VALUE}'),
    (
        "/mcp",
        32 * MIB,
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"none","arguments":{"a":VALUE}}}',
    ),
    (
        "VLLM",
        4 * MIB,
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"none","arguments":{"a":VALUE}}}',
    ),
)


def watch(port: int) -> None:
    """Ask without a pause until stdin ends; print the longest wait."""
    worst = 0.0
    while not select.select([0], [], [], 0)[0]:
        began = time.perf_counter()
        asked(port, "GET", "/health", b"", {})
        worst = max(worst, time.perf_counter() - began)
        time.sleep(0.005)
    print(worst)


def asked(port: int, method: str, path: str, body: bytes, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    with contextlib.closing(connection), contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.request(method, path, body, headers)
        return connection.getresponse().status
    return 413  # it was closed while the body was sent


@contextlib.contextmanager
def serving() -> Iterator[tuple[int, int]]:
    """Yield the port and the process of a gateway with all wires."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [
            sys.executable,
            "-m",
            "agent_tools",
            "serve",
            "--upstream",
            "http://127.0.0.1:9",
            "--port",
            str(port),
        ]
        command += ["--data-dir", folder, "--api-key", KEY, "--set", "pool=0", "--set", "log_level=error"]
        with subprocess.Popen(command + [part for name in WIRES for part in ("--wire", name)]) as process:
            try:
                while True:
                    with contextlib.suppress(OSError):
                        if asked(port, "GET", "/health", b"", {}) == 200:
                            break
                    assert process.poll() is None
                    time.sleep(0.1)
                yield port, process.pid
            finally:
                process.terminate()


@contextlib.contextmanager
def session(port: int) -> Iterator[str]:
    """Yield the path of the messages of a session of vLLM."""
    with socket.create_connection(("127.0.0.1", port)) as stream:
        stream.sendall(f"GET /vllm/sse HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
        head = b""
        while not (found := re.search(rb"data: (\S+)\r?\n", head)):
            head += stream.recv(4096)
        yield found[1].decode()


def memory(pid: int, name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


def measured(port: int, pid: int, path: str, body: bytes) -> tuple[int, float, float, int]:
    """Send a body; return the status, the seconds, the longest wait of another client, and the growth in bytes."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    before = memory(pid, "VmRSS")
    command = [sys.executable, __file__, "--watch", str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        time.sleep(0.3)
        began = time.perf_counter()
        status = asked(port, "POST", path, body, {**HEADERS, "Accept": "application/json, text/event-stream"})
        taken = time.perf_counter() - began
        time.sleep(0.1)
        worst = float(other.communicate()[0])
    return status, taken, worst, memory(pid, "VmHWM") - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="routes whose path contains this")
    parser.add_argument("--watch", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.watch:
        watch(given.watch)
        return
    found = dict.fromkeys(GOALS, 0.0)
    with serving() as (port, pid), session(port) as messages:
        print(f"{'':<64}{'MiB':>6}{'status':>8}{'s':>7}{'other s':>9}{'+MiB':>7}{'x':>6}")
        for path, most, form in ROUTES:
            for kind in BODIES if given.only in path else ():
                body = form.replace(b"VALUE", kind(most - len(form)))
                status, taken, worst, growth = measured(port, pid, messages if path == "VLLM" else path, body)
                ratio = growth / sys.getsizeof(body.decode())
                field = re.findall(rb'"(\w+)":VALUE', form)[0].decode()
                name = f"{path} {field}: {kind.__name__}"
                row = f"{name:<64}{len(body) / MIB:>6.1f}{status:>8}{taken:>7.2f}{worst:>9.2f}"
                print(f"{row}{growth / MIB:>7.0f}{ratio:>6.1f}", flush=True)
                kept = MADE if status == 502 else READ  # the upstream, which is none, was asked
                found[WAIT] = max(found[WAIT], worst)
                found[kept] = max(found[kept], ratio if growth > SMALL else 0.0)
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    for name, value in found.items():
        print(f"goal: {name}: {value:.2f}, at most {GOALS[name]}: {'met' if value <= GOALS[name] else 'MISSED'}")
    print(json.dumps({"load for each processor": round(load, 1)}))
    is_met = all(value <= GOALS[name] or (name == WAIT and load > 1) for name, value in found.items())
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
