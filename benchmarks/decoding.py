"""The cost of the worst messages of host calls to the host: time, memory, and the longest stand-still of other threads.

    .venv/bin/python benchmarks/decoding.py [--only WORD]

Each shape is read in a process of its own, as the host reads it: the frame, the value, and the check by an annotation.
All times are CPU time of the reading thread, so that a busy machine counts little: a stand-still is what that thread
computes between two turns of another one.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Union

import pyarrow as pa
import pydantic

from agent_tools.code_mode.argument_check import ArgumentCheck
from agent_tools.code_mode.attachments import rich_value
from agent_tools.guest.wire.budget import Budget
from agent_tools.guest.wire.calls import MESSAGE, CallReader
from agent_tools.guest.wire.framing import pack_parts
from agent_tools.guest.wire.values import decode

MIB = 2**20
LIMITS = (2.0, 0.1, 200.0)  # seconds, seconds without a turn, MiB
ONE_HASH = 2**61 - 1
PARTS = 32_000  # tagged values in one message; plain ones are three times as many


class Model(pydantic.BaseModel):
    a: int = 0
    names: set[str] = set()


def message(args: Any, parts: tuple[bytes, ...] = ()) -> bytes:
    head = {"op": "call", "id": 1, "name": "f", "args": args, "kwargs": {}}
    return pack_parts(MESSAGE, [json.dumps(head, separators=(",", ":")).encode(), *parts])


def raw(text: bytes) -> bytes:
    return pack_parts(MESSAGE, [message(["#"])[16:].replace(b'"#"', text)])


def arrow(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def frame(column: Callable[[], Any]) -> Callable[[], bytes]:
    return lambda: message([{"$": "frame", "n": 0}], (arrow(pa.table({"a": column()})),))


def tagged(kind: str, value: Callable[[int], Any]) -> Callable[[], bytes]:
    return lambda: message([[{"$": kind, "v": value(each)} for each in range(PARTS)]])


SHAPES: dict[str, tuple[Callable[[], bytes], Any]] = {
    "texts with escapes": (lambda: raw(b'"' + "\U0001f600".encode() + b"xxxxxxx\\n" * 900_000 + b'"'), str),
    "one attached text": (lambda: message([{"$": "text", "n": 0}], (("\U0001f600" * 4_000_000).encode(),)), str),
    "short texts": (lambda: message([[f"{each:080x}" for each in range(95_000)]]), list[str]),
    "ints": (lambda: message([[2**53 - each for each in range(95_000)]]), list[int]),
    "floats": (lambda: message([[5e-324 * each for each in range(95_000)]]), list[float]),
    "digits": (lambda: raw(b"[" + b",".join([b"9" * 4300] * 1800) + b"]"), list[int]),
    "lists": (lambda: message([[[]] * 49_000]), list[list[int]]),
    "nested lists": (lambda: raw(b"[" + b",".join([b"[" * 100 + b"]" * 100] * 950) + b"]"), list[Any]),
    "keys": (lambda: message([{f"{each:060x}": 0 for each in range(95_000)}]), dict[str, int]),
    "keys of one hash": (lambda: message([{str(each * ONE_HASH): 0 for each in range(95_000)}]), dict[int, int]),
    "set of one hash": (lambda: message([[each * ONE_HASH for each in range(95_000)]]), set[int]),
    "tagged set of one hash": (
        lambda: message([{"$": "set", "v": [each * ONE_HASH for each in range(95_000)]}]),
        set[int],
    ),
    "tagged dict of one hash": (
        lambda: message([{"$": "dict", "v": [[each * ONE_HASH, 0] for each in range(30_000)]}]),
        None,
    ),
    "tuples of one hash": (
        lambda: message([{"$": "set", "v": [{"$": "tuple", "v": [each * ONE_HASH]} for each in range(24_000)]}]),
        None,
    ),
    "sets": (tagged("set", lambda _: []), list[set[int]]),
    "decimals": (tagged("decimal", lambda _: "1E400"), list[int]),
    "long ints": (tagged("int", lambda each: hex(2**800 + each)), list[int]),
    "datetimes": (tagged("datetime", lambda _: "2024-01-01T00:00:00.000001+02:00"), list[Any]),
    "uuids": (tagged("uuid", lambda each: f"{each:032x}"), list[Any]),
    "wrong ints": (lambda: message([["x"] * 95_000]), list[int]),
    "wrong values": (lambda: message([{f"{each:x}": "x" for each in range(95_000)}]), dict[str, Union[int, float]]),
    "wrong unions": (lambda: message([[[]] * 49_000]), list[Union[int, float, Model, None]]),
    "models": (lambda: message([[{}] * 49_000]), list[Model]),
    "many small attachments": (
        lambda: message([[{"$": "text", "n": each} for each in range(22_000)]], (b"x" * 300,) * 22_000),
        list[str],
    ),
    "nulls": (frame(lambda: pa.nulls(60_000_000)), None),
    "most nulls": (frame(lambda: pa.nulls(500_000)), None),
    "texts of a frame": (frame(lambda: pa.array([str(each) for each in range(1_100_000)])), None),
    "bytes of a frame": (frame(lambda: pa.array([b"x"] * 1_100_000)), None),
    "dates": (frame(lambda: pa.array([0] * 1_200_000, pa.int32()).cast(pa.date32())), None),
    "times": (frame(lambda: pa.array([0] * 1_200_000, pa.int64()).cast(pa.time64("us"))), None),
    "money": (frame(lambda: pa.array([1] * 800_000).cast(pa.decimal128(20))), None),
    "lists of a frame": (frame(lambda: pa.array([[]] * 700_000, pa.list_(pa.int8()))), None),
    "structs": (
        frame(lambda: pa.array([{"a": 1, "b": 2}] * 300_000, pa.struct({"a": pa.int64(), "b": pa.int64()}))),
        None,
    ),
    "maps": (frame(lambda: pa.array([[(1, 1)]] * 250_000, pa.map_(pa.int64(), pa.int64()))), None),
    "columns": (
        lambda: message([{"$": "frame", "n": 0}], (arrow(pa.table({str(each): [1.5] for each in range(9_999)})),)),
        None,
    ),
}


def read(data: bytes, hint: Any) -> str:
    check = ArgumentCheck(pydantic.TypeAdapter(hint)) if hint else None
    try:
        for head, attachments, size in CallReader(screen=lambda *_: True).feed(data):
            (value,) = decode(head["args"], attachments, rich_value, Budget(size))
            del head, attachments
            if check:
                check.of(value)
    except (ValueError, TypeError) as exc:
        return str(exc).splitlines()[0][:70]
    return "read"


def measure(name: str) -> bool:
    """One line on a shape; true if it keeps to the limits."""
    make, hint = SHAPES[name]
    data = make()
    pa.ipc.open_stream(arrow(pa.table({"a": [b"x"]}))).read_all().to_pandas()  # pandas is imported by now
    longest, stop = 0.0, threading.Event()

    clock = time.pthread_getcpuclockid(threading.get_ident())

    def tick() -> None:
        nonlocal longest
        last = time.clock_gettime(clock)
        while not stop.is_set():
            time.sleep(0.0005)
            now = time.clock_gettime(clock)
            longest, last = max(longest, now - last), now

    before = resident()
    ticker = threading.Thread(target=tick)
    ticker.start()
    began = time.thread_time()
    what = read(data, hint)
    seconds = time.thread_time() - began
    stop.set()
    ticker.join()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before) / MIB
    is_kept = all(found <= limit for found, limit in zip((seconds, longest, grown), LIMITS))
    size = f"{len(data) / MIB:5.1f} MiB"
    print(f"  {name:24} {size}  {seconds:5.2f} s  {longest * 1000:6.1f} ms  +{grown:4.0f} MiB  {what}", flush=True)
    return is_kept


def resident() -> int:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins here
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def main(word: str) -> int:
    over = []
    for name in SHAPES:
        if word in name:
            child = os.fork()
            if not child:
                os._exit(not measure(name))
            if os.waitpid(child, 0)[1]:
                over.append(name)
    print(f"over {LIMITS[0]:g} s, {LIMITS[1] * 1000:g} ms or {LIMITS[2]:g} MiB: {', '.join(over) or 'nothing'}")
    return len(over)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    sys.exit(bool(main(parser.parse_args().only)))
