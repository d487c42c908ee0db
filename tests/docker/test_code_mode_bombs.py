"""A guest that writes bombs straight into the socket for host calls: the run ends in time, and the host goes on."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agent_tools.code_mode import Template, Toolset
from agent_tools.errors import AgentToolsError
from agent_tools.limits import CallLimits, Limits
from agent_tools.runtime.runtime import Runtime
from agent_tools.tools import CodeInterpreter

pytestmark = pytest.mark.docker

TIMEOUT = 2
GRACE = 3 + 5  # what is promised, and what a busy machine takes beside it
HOST_TICK = 0.02
LONGEST_STAND = 1.0  # seconds of CPU; 0.1 on a machine that does nothing else (benchmarks/decoding.py)

BOMBS = r"""
import gc, io, json, struct, time
host = next(each for each in gc.get_objects() if type(each).__name__ == "Host" and hasattr(each, "_socket"))
M = 2**61 - 1
def frame(args, parts=(), id=1, name="f"):
    head = {"op": "call", "id": id, "name": name, "args": args, "kwargs": {}}
    return packed(json.dumps(head).encode(), *parts)
def packed(*parts):
    sizes = [*map(len, parts)]
    length = 4 * (1 + len(sizes)) + sum(sizes)
    return struct.pack(f">{3 + len(sizes)}I", 1, length, len(sizes), *sizes) + b"".join(parts)
def arrow(table):
    import pyarrow as pa
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()
def nulls(count):
    import pyarrow as pa
    return arrow(pa.table({"a": pa.nulls(count)}))
def views(size, count):
    import pyarrow as pa
    packed = b"".join(struct.pack("<i4sii", size, b"xxxx", 0, 0) for _ in range(count))
    buffers = [None, pa.py_buffer(packed), pa.py_buffer(b"x" * size)]
    return arrow(pa.table({"a": pa.Array.from_buffers(pa.string_view(), count, buffers)}))
def digits(name):
    return packed(frame(["#"], name=name)[16:].replace(b'"#"', b",".join([b"9" * 4200] * 3000)))
def tuples(count):
    return [{"$": "tuple", "v": [k * M]} for k in range(1, count)]
def send(make, name="f"):
    host._socket.sendall(make(name))
bombs = {
    "set": lambda name: frame([{"$": "set", "v": [k * M for k in range(1, 100_000)]}], name=name),
    "dict": lambda name: frame([{"$": "dict", "v": [[k * M, 0] for k in range(1, 60_000)]}], name=name),
    "tuples": lambda name: frame([{"$": "set", "v": tuples(40_000)}], name=name),
    "annotated": lambda name: frame([[k * M for k in range(1, 100_000)]], name="g" if name == "f" else name),
    "wrong": lambda name: frame([["x"] * 95_000], name="g" if name == "f" else name),
    "keys": lambda name: frame([{"%x" % k: 0 for k in range(95_000)}], name=name),
    "texts": lambda name: frame([[{"$": "text", "n": 0}] * 40_000], [b"x" * (8 << 20)], name=name),
    "nulls": lambda name: frame([{"$": "frame", "n": 0}], [nulls(60_000_000)], name=name),
    "views": lambda name: frame([{"$": "frame", "n": 0}], [views(2 << 20, 5000)], name=name),
    "digits": digits,
    "attachments": lambda name: frame([], [b""] * 99_000, name=name),
}
"""


class Ticks:
    """A thread of the host that wants its turn every so often, and notes what others computed at most before it had it.

    That is CPU time: on a busy machine a thread may wait long without anybody of this process holding it up.
    """

    def __enter__(self) -> Ticks:
        self.longest, self._stop = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _tick(self) -> None:
        last = time.process_time()
        while not self._stop.wait(HOST_TICK):
            now = time.process_time()
            self.longest, last = max(self.longest, now - last), now


def f(x: Any = None) -> int:
    """Anything."""
    return 1


def g(x: set[int]) -> int:
    """A set."""
    return len(x)


def test_no_bomb_holds_up_a_run_or_the_host(docker_runtime: Runtime, work_dir: Path) -> None:
    options = {"work_dir": str(work_dir), "timeout": 20}
    with CodeInterpreter(options, runtime=docker_runtime, hostcalls=[f, g]) as tool:
        names = tool.run(BOMBS + "print(*bombs)\nviews(10, 1)").stdout.split()
        assert len(names) == 11
        found = {}
        for name in names:
            with Ticks() as ticks:
                began = time.monotonic()
                tool.run(f"send(bombs[{name!r}])\ntime.sleep(0.5)", timeout=TIMEOUT)
                found[name] = (round(time.monotonic() - began, 2), round(ticks.longest, 2))
            if tool.run("print(await f())").stdout != "1\n":  # hung up on: its own fault, and only its kernel's
                tool.run("import os\nos._exit(0)")
                tool.run(BOMBS)
                assert tool.run("print(await f())").stdout == "1\n"
        late = {name: each for name, each in found.items() if each[0] > TIMEOUT + GRACE or each[1] > LONGEST_STAND}
        assert not late


def test_many_bombs_at_once_take_bounded_memory_and_end_with_the_run(docker_runtime: Runtime, work_dir: Path) -> None:
    def grown() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    with CodeInterpreter({"work_dir": str(work_dir)}, runtime=docker_runtime, hostcalls=[f, g]) as tool:
        tool.run(BOMBS)
        before = grown()
        began = time.monotonic()
        code = (
            "content = nulls(450_000)\nfor number in range(60):\n"
            "    host._socket.sendall(frame([{'$': 'frame', 'n': 0}], [content], id=number))\n"
            "for number in range(60, 80):\n"
            "    host._socket.sendall(frame([[0] * 75_000, 'x' * 2**22], id=number))\ntime.sleep(1)"
        )
        with Ticks() as ticks:
            tool.run(code, timeout=TIMEOUT)
        assert time.monotonic() - began < TIMEOUT + GRACE
        assert ticks.longest < LONGEST_STAND
        assert grown() - before < 500 * 2**20


@pytest.mark.parametrize("name", ["$return", "$yield"])
def test_what_a_script_returns_is_decoded_with_the_same_care(docker_runtime: Runtime, name: str) -> None:
    limits = Limits(timeout=TIMEOUT)
    template = Template(hostcalls=Toolset([f]), limits=limits, call_limits=CallLimits(), runtime=docker_runtime)
    with template.create() as script:
        script.load_script(BOMBS + "def bomb(kind, name):\n    send(bombs[kind], name)\n    time.sleep(0.5)")
        for kind in ("set", "texts", "nulls"):
            with Ticks() as ticks:
                began = time.monotonic()
                with contextlib.suppress(AgentToolsError):
                    script.run("bomb", kind, name)
                assert time.monotonic() - began < TIMEOUT + GRACE
            assert ticks.longest < LONGEST_STAND
