"""The order of a call: its right to be made, then its arguments, in a bounded thread, given up with the run."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from agent_tools.code_mode.functions import TypedFunction
from agent_tools.guest.wire.budget import Budget
from agent_tools.guest.wire.calls import MESSAGE, SHORT_HEAD, CallReader, pack
from agent_tools.guest.wire.framing import pack_parts
from agent_tools.guest.wire.values import encode
from agent_tools.limits import CallLimits
from agent_tools.results.execution import HostCall
from agent_tools.runtime.host_calls.admission import REFUSAL_BYTES, Admission
from agent_tools.runtime.host_calls.function import CallRefused
from agent_tools.runtime.host_calls.host_calls import HostCalls
from agent_tools.runtime.host_calls.reading import SMALL_BYTES, CallReading, IncomingCall
from agent_tools.runtime.host_calls.script_call import ScriptCall
from agent_tools.runtime.host_calls.wire import CallWire


class Clock:
    def hold(self) -> None: ...

    def go(self) -> None: ...


def message(number: int, name: str, *args: Any, **more: Any) -> bytes:
    encoded, attachments = encode([list(args), {}])
    head = {"op": "call", "id": number, "name": name, "args": encoded[0], "kwargs": {}, **more}
    return pack(head, attachments)


class Guest:
    """The other end of a wire: sends what it likes, and reads answers."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(20)
        self._socket = connected
        self._reader = CallReader(2**25)
        self.answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def flood(self, count: int) -> threading.Thread:
        """Send calls from a thread; they are more than a socket and one reading of it hold."""
        work = [message(number, "size", "x" * 15_000) for number in range(count)]
        thread = threading.Thread(target=lambda: [self.send(each) for each in work], daemon=True)
        thread.start()
        return thread

    def answer(self) -> dict[str, Any]:
        return self.answers.get(timeout=20)

    def _read(self) -> None:
        try:
            while data := self._socket.recv(2**18):
                for head, _, _ in self._reader.feed(data):
                    self.answers.put(head)
        except OSError:
            return


@contextmanager
def serving(*functions: Any, rich: Any = None, **limits: Any) -> Iterator[tuple[Guest, HostCalls]]:
    ours, theirs = socket.socketpair()
    calls = HostCalls({each.__name__: TypedFunction(each) for each in functions}, CallLimits(**limits), rich)
    calls.serve(CallWire(ours, calls.limits.max_message_bytes))
    try:
        yield Guest(theirs), calls
    finally:
        calls.close()
        theirs.close()


def size(value: Any) -> int:
    """Return how much it is."""
    return len(value)


def test_a_refused_call_is_answered_without_its_arguments_being_read() -> None:
    with serving(size, max_calls=1) as (guest, calls), calls.run(Clock()) as over:
        guest.send(message(1, "size", "x"))
        assert guest.answer()["value"] == 1
        for name, kind in (("size", "HostCallBudgetExceeded"), ("nothing", "HostCallNotFound")):
            head = message(2, name, "y" * SHORT_HEAD)[16:].replace(b'"kwargs"', b"this is no JSON")
            guest.send(pack_parts(MESSAGE, [head]))
            answer = guest.answer()
            assert (answer["id"], answer["kind"]) == (2, kind)
        guest.send(message(3, "size", "x"))
        assert guest.answer()["id"] == 3, "hung up"
        records = [each for each in over() if isinstance(each, HostCall)]
        assert [(each.status, each.arguments) for each in records] == [("ok", "'x'"), *[("refused", "")] * 3]
        assert records[1].bytes_in > 1000


def test_between_runs_calls_are_answered_unread_and_a_flood_of_them_waits_for_the_next_run() -> None:
    with serving(size, max_refusals=5) as (guest, calls):
        sender = guest.flood(60)
        answers = [guest.answer() for _ in range(6)]
        assert {each["kind"] for each in answers} == {"HostCallDenied"}
        sender.join(0.3)
        assert sender.is_alive(), "the flood was read on"
        with calls.run(Clock()):
            while guest.answer()["id"] < 59:
                ...
        sender.join(10)


def test_a_run_that_floods_with_refused_calls_is_read_no_more_and_the_next_one_is() -> None:
    with serving(size, max_calls=0, max_refusals=10) as (guest, calls):
        with calls.run(Clock()) as over:
            sender = guest.flood(60)
            for _ in range(11):
                guest.answer()
            sender.join(0.3)
            assert sender.is_alive(), "the flood was read on"
            assert len(over()) < 30
        for _ in range(6):
            with calls.run(Clock()):
                sender.join(0.5)
        assert not sender.is_alive()


def test_a_long_refused_call_counts_as_many() -> None:
    admission = Admission({}, CallLimits(max_refusals=10))
    admission.refuse(9 * REFUSAL_BYTES)
    assert not admission.is_full
    admission.refuse(0)
    assert admission.is_full


def test_no_more_is_read_while_too_many_bytes_are_open() -> None:
    go = threading.Event()

    def wait(value: str) -> int:
        go.wait(20)
        return len(value)

    with serving(wait, max_open_bytes=100_000) as (guest, calls), calls.run(Clock()):
        sender = threading.Thread(target=lambda: [guest.send(message(n, "wait", "x" * 60_000)) for n in range(40)])
        sender.start()
        sender.join(0.3)
        assert sender.is_alive(), "the guest did not wait"
        assert calls._run is not None
        assert calls._run._admission.open_bytes < 500_000
        go.set()
        assert sorted(guest.answer()["id"] for _ in range(40)) == list(range(40))


def test_large_arguments_are_read_in_a_thread_of_their_own_and_small_ones_are_not() -> None:
    threads = []

    def rich(kind: str, content: bytes, budget: Budget) -> str:
        threads.append(threading.current_thread().name)
        return kind

    with serving(size, rich=rich) as (guest, calls), calls.run(Clock()):
        frame = {"$": "frame", "n": 0}
        head = {"op": "call", "id": 1, "name": "size", "args": [frame], "kwargs": {}}
        guest.send(pack(head, [b""]))
        assert guest.answer()["value"] == 5
        guest.send(message(2, "size", "x" * SMALL_BYTES))
        assert guest.answer()["value"] == SMALL_BYTES
    assert threads == ["agent-tools-arguments_0"]


def test_a_run_s_end_gives_up_what_is_being_read() -> None:
    begun, ended = threading.Event(), threading.Event()

    def endless(kind: str, content: bytes, budget: Budget) -> None:
        begun.set()
        try:
            while True:
                budget.look_up()
                time.sleep(0.001)
        finally:
            ended.set()

    with serving(size, rich=endless) as (guest, calls):
        for name in ("size", "$return"):
            begun.clear()
            ended.clear()
            with calls.run(Clock()) as over, calls.script_call(ScriptCall((None, []), print)):
                head = {"op": "call", "id": 1, "name": name, "args": [{"$": "frame", "n": 0}], "kwargs": {}}
                guest.send(pack(head, [bytes(2 * SMALL_BYTES)]))
                assert begun.wait(20)
            assert ended.wait(20)
        assert over() == []


def test_an_argument_that_is_given_up_is_a_cancelled_call() -> None:
    begun = threading.Event()

    def endless(kind: str, content: bytes, budget: Budget) -> None:
        begun.set()
        while True:
            budget.look_up()

    with serving(size, rich=endless) as (guest, calls):
        with calls.run(Clock()) as over:
            head = {"op": "call", "id": 1, "name": "size", "args": [{"$": "frame", "n": 0}], "kwargs": {}}
            guest.send(pack(head, [b""]))
            assert begun.wait(20)
        assert [each.status for each in over() if isinstance(each, HostCall)] == ["cancelled"]


def test_large_arguments_wait_until_there_is_room_for_them() -> None:
    limit = Budget(2 * SMALL_BYTES).limit

    async def use(reading: CallReading, taken: list[int], number: int) -> None:
        call = IncomingCall(number, "f", ["x"], {}, [], 2 * SMALL_BYTES)
        asyncio.get_running_loop().call_soon(lambda: taken.append(reading._taken))
        async with reading.arguments(call) as (args, _):
            taken.append(reading._taken)
            assert args == ["x"]
            await asyncio.sleep(0.001)

    async def main(most: int) -> tuple[int, int]:
        with ThreadPoolExecutor(1) as threads:
            reading = CallReading(None, threads, most)
            taken: list[int] = []
            await asyncio.gather(*[use(reading, taken, number) for number in range(20)])
            return max(taken), reading._taken

    assert asyncio.run(main(0)) == (limit, 0), "the first may always"
    assert asyncio.run(main(3 * limit + 1)) == (3 * limit, 0)


def test_arguments_that_cannot_be_read_leave_their_room_to_others() -> None:
    async def main() -> None:
        with ThreadPoolExecutor(1) as threads:
            reading = CallReading(None, threads, 0)
            for _ in range(3):
                call = IncomingCall(1, "f", [{"$": "nothing", "v": 0}], {}, [], 2 * SMALL_BYTES)
                with pytest.raises(CallRefused, match="cannot be read"):
                    async with reading.arguments(call):
                        ...
            assert reading._taken == 0

    asyncio.run(main())


def test_a_preview_looks_at_the_beginning_of_a_dict_only() -> None:
    with serving(size) as (guest, calls), calls.run(Clock()) as over:
        began = time.process_time()
        guest.send(message(1, "size", {f"{number:06}": 0 for number in range(75_000)}))
        assert guest.answer()["value"] == 75_000
        assert time.process_time() - began < 10
        (record,) = over()
        assert isinstance(record, HostCall)
        assert record.arguments.startswith("{'000000': 0, '000001': 0")
