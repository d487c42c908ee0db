"""Every limit on host calls, by its name, and approvals; and that a guest that breaks the protocol changes nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_tools.code_mode import CallRequest, Policy, Toolset
from agent_tools.code_mode.script import EndEvent, Script
from agent_tools.errors import GuestError
from agent_tools.results.execution import Execution, Omitted
from agent_tools.runtime.host_calls.run import MAX_PREVIEW_CHARS, MAX_REFUSALS
from tests.code_mode import sandbox


def add(a: int, b: int = 1) -> int:
    """A sum."""
    return a + b


def call(script: Script, body: str, **kwargs: Any) -> Any:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    script.load_script(f"import asyncio, sandbox\nasync def it():\n{lines}")
    return script.run("it", **kwargs)


def last(script: Script) -> Execution:
    assert script.last is not None
    return script.last


def statuses(script: Script) -> list[str]:
    return [each.status for each in last(script).host_calls]


ERRORS_OF_FIVE = "return [type(x).__name__ for x in await asyncio.gather(*map(add, range(5)), return_exceptions=True)]"


def test_max_calls_lets_three_of_five_calls_through_and_each_run_has_its_own() -> None:
    with sandbox([add], max_calls=3) as script:
        for _ in range(2):
            assert call(script, ERRORS_OF_FIVE) == ["int"] * 3 + ["HostCallBudgetExceeded"] * 2
            assert sorted(statuses(script)) == ["ok"] * 3 + ["refused"] * 2


def test_a_policy_s_max_calls_is_of_one_function() -> None:
    tools = Toolset([add])
    tools.add(add, name="other", policy=Policy(max_calls=1))
    with sandbox(tools) as script:
        with pytest.raises(GuestError, match="other may be called 1 times in a run"):
            call(script, "await add(1)\nawait other(1)\nawait add(1)\nawait other(1)")
        assert statuses(script) == ["ok", "ok", "ok", "refused"]


class Crowd:
    """Counts how many calls run at the same time."""

    def __init__(self) -> None:
        self.inside = self.most = 0

    async def enter(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0.01)
        self.inside -= 1


@pytest.mark.parametrize(("limits", "policy", "most"), [({"max_concurrent": 3}, 9, 3), ({}, 2, 2)])
def test_max_concurrent_and_a_policy_s_concurrency_make_calls_wait(limits: Any, policy: int, most: int) -> None:
    crowd, tools = Crowd(), Toolset()
    tools.add(crowd.enter, policy=Policy(concurrency=policy))
    with sandbox(tools, **limits) as script:
        call(script, "await asyncio.gather(*[enter() for _ in range(12)])")
        assert crowd.most == most
        assert statuses(script) == ["ok"] * 12


def test_max_pending_refuses_what_is_more() -> None:
    naps = iter((1.0, 0.0, 0.0))  # the first takes longer than the five need to arrive

    async def slow() -> None:
        await asyncio.sleep(next(naps))

    with sandbox([slow], max_concurrent=1, max_pending=2) as script:
        body = "return [str(x) for x in await asyncio.gather(*[slow() for _ in range(5)], return_exceptions=True)]"
        assert call(script, body) == ["None"] * 3 + ["More than 2 host calls are waiting."] * 2


@pytest.mark.parametrize("limits", [{"call_timeout": 0.2}, {"max_host_seconds": 0.2}])
def test_a_call_that_takes_too_long_is_a_timeout_in_the_guest_and_cancelled_here(limits: Any) -> None:
    cancelled = threading.Event()

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    with sandbox([slow], **limits) as script:
        assert "took longer than 0.2" in call(
            script, "try:\n    await slow()\nexcept TimeoutError as e:\n    return str(e)"
        )
        assert cancelled.is_set()
        assert statuses(script) == ["timeout"]


def test_a_policy_s_timeout_is_of_one_function() -> None:
    tools = Toolset()
    tools.add(asyncio_sleep, name="nap", policy=Policy(timeout=0.05))
    with sandbox(tools) as script, pytest.raises(GuestError, match=r"nap took longer than 0\.05 s"):
        call(script, "await nap(60)")


async def asyncio_sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


def test_max_host_seconds_is_of_all_calls_of_a_run_together() -> None:
    with sandbox([asyncio_sleep], max_host_seconds=0.1) as script:
        with pytest.raises(GuestError, match=r"of host time are used up|took longer than"):
            call(script, "for _ in range(50):\n    await asyncio_sleep(0.02)")
        assert call(script, "await asyncio_sleep(0.01)\nreturn 'a fresh run'") == "a fresh run"


def test_max_message_bytes_refuses_20_mib_either_way() -> None:
    size = 20 * 2**20

    def big() -> bytes:
        return bytes(size)

    def take(data: bytes) -> None:
        raise AssertionError

    with sandbox([big, take]) as script:
        names = []
        for body in ("await big()", f"await take(bytes({size}))", f"return bytes({size})"):
            with pytest.raises(GuestError) as caught:
                call(script, body)
            names.append((caught.value.name, caught.value.value.split(":")[0]))
        assert names == [
            ("HostCallTooLarge", "The result of big is too large"),
            ("HostCallTooLarge", "The arguments of take are too large"),
            ("HostCallTooLarge", "The result is too large"),
        ]
        assert call(script, "return 'still here'") == "still here"


def test_a_larger_max_message_bytes_lets_20_mib_through_either_way() -> None:
    size = 20 * 2**20

    def twice(data: bytes) -> bytes:
        return data + data

    with sandbox([twice], max_message_bytes=64 * 2**20) as script:
        assert call(script, f"return len(await twice(bytes({size})))") == 2 * size


def test_values_of_too_many_parts_are_refused_and_long_texts_are_not() -> None:
    def echo(value: Any) -> Any:
        return value

    with sandbox([echo]) as script:
        with pytest.raises(GuestError, match="more than 100,000 parts"):
            call(script, "await echo([0] * 200_001)")
        assert call(script, "return len(await echo('a,b,[{' * 500_000))") == 3_000_000


def test_the_record_of_a_call_has_a_preview_of_its_arguments() -> None:
    def echo(value: str) -> None: ...

    with sandbox([echo]) as script:
        call(script, "await echo('x' * 1000 + '\\x1b[31m')")
        (record,) = last(script).host_calls
        assert len(record.arguments) <= MAX_PREVIEW_CHARS


# -- approvals ---------------------------------------------------------------------------------------------------------


def approved(approve: Any) -> Toolset:
    tools = Toolset()
    tools.add(add, policy=Policy(approve=approve))
    return tools


async def approve_async(request: CallRequest) -> bool:
    return request.kwargs["a"] > 0


def approve_sync(request: CallRequest) -> bool:
    return bool(request.name == "add" and request.kwargs["a"] > 0)


@pytest.mark.parametrize("approve", [approve_async, approve_sync])
def test_an_approval_sees_the_call_and_decides(approve: Any) -> None:
    with sandbox(approved(approve)) as script:
        body = "r = await add(1)\ntry:\n    await add(-1)\nexcept PermissionError as e:\n    return r, str(e)"
        assert call(script, body) == (2, "The call of add was not approved.")
        assert statuses(script) == ["ok", "denied"]


@pytest.mark.parametrize("answer", ["no", "yes", 1, None, {"approved": True}])
def test_an_approval_is_true_and_nothing_else(answer: Any) -> None:
    with sandbox(approved(lambda request: answer)) as script:
        text = call(script, "try:\n    await add(1)\nexcept Exception as e:\n    return str(e)")
        assert f"its approval is {answer!r}, and must be True or False" in str(text)
        assert statuses(script) == ["error"]


def test_the_countdown_in_the_guest_stands_still_until_the_last_approval_and_goes_on_then() -> None:
    answers = [threading.Event(), threading.Event()]

    def waits(request: CallRequest) -> bool:
        return answers[request.kwargs["a"]].wait(60)

    def approve(number: int) -> None:
        answers[number].set()

    tools = approved(waits)
    tools.add(approve)
    with sandbox(tools, timeout=60) as script:
        assert call(script, COUNTDOWN) == [1, 0, 2, True]


COUNTDOWN = """
from signal import ITIMER_REAL, getitimer
first, second = asyncio.ensure_future(add(0)), asyncio.ensure_future(add(1))
while getitimer(ITIMER_REAL)[0]:
    await asyncio.sleep(0.01)
await approve(0)
answer, left = await first, getitimer(ITIMER_REAL)[0]
await approve(1)
return [answer, left, await second, 0 < getitimer(ITIMER_REAL)[0] < 60]
"""


def test_the_time_limit_holds_after_an_approval() -> None:
    asked = threading.Event()

    def at_once(request: CallRequest) -> bool:
        asked.set()
        return True

    with sandbox(approved(at_once)) as script:
        with pytest.raises(Exception, match="exceeded the time limit") as caught:
            call(script, "await add(1)\nawait asyncio.sleep(60)", timeout=1.5)
        assert "variables are kept" in str(caught.value)
    assert asked.is_set()


def test_approval_timeout_denies() -> None:
    async def never(request: CallRequest) -> bool:
        await asyncio.sleep(60)
        return True

    with sandbox(approved(never), approval_timeout=0.1) as script, pytest.raises(GuestError, match="was not approved"):
        call(script, "await add(1)")


def test_an_approval_that_fails_is_an_error_and_the_function_does_not_run() -> None:
    def broken(request: CallRequest) -> bool:
        raise RuntimeError("no terminal")

    with sandbox(approved(broken)) as script, pytest.raises(GuestError, match="no terminal"):
        call(script, "await add(1)")


# -- after the run -----------------------------------------------------------------------------------------------------

LATER = """
import asyncio
answers = []
async def later():
    await asyncio.sleep(wait)
    try:
        answers.append(await add(1))
    except Exception as error:
        answers.append(type(error).__name__)
    open("later", "w").close()
async def begin(seconds):
    globals().update(wait=seconds, task=asyncio.create_task(later()))
async def end():
    await task
    return answers
"""


@pytest.mark.parametrize(("allowed", "answer"), [(False, "HostCallDenied"), (True, 2)])
def test_allow_outside_run_decides_on_calls_after_the_run(allowed: bool, answer: object, tmp_path: Path) -> None:
    with sandbox([add], allow_outside_run=allowed) as script:
        script.load_script(LATER.replace('"later"', repr(str(tmp_path / "later"))))
        script.run("begin", 0.3)
        while not (tmp_path / "later").exists():
            time.sleep(0.01)
        assert script.run("end") == [answer]


def test_a_call_that_outlives_its_run_is_cancelled_and_answered() -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def slow() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    def await_slow() -> bool:
        return begun.wait(60)

    with sandbox([slow, await_slow]) as script:
        script.load_script(LATER.replace("add(1)", "slow()"))
        assert call(script, "await begin(0)\nreturn await await_slow()")
        assert cancelled.is_set()
        assert statuses(script) == ["ok", "cancelled"]
        assert script.run("end") == ["HostCallError"]


# -- a guest that lies -------------------------------------------------------------------------------------------------

RAW = """
import gc, json, os, socket, struct
from sandbox import hostcall
def own_socket():
    return next(each for each in gc.get_objects() if type(each).__name__ == "Host")._socket
def send(data):
    own_socket().sendall(data)
def frame(head, *attachments):
    return packed(json.dumps(head).encode(), *attachments)
def packed(*parts, more=0):
    sizes = [*map(len, parts)]
    length = 4 * (1 + len(sizes)) + sum(sizes)
    return struct.pack(f">{3 + len(sizes)}I", 1, length + more, len(sizes), *sizes) + b"".join(parts)
def one(**head):
    send(frame({"op": "call", "id": 0, "name": "add", "args": [], "kwargs": {}, **head}))
"""


def hostile(script: Script, body: str) -> Any:
    script.load_script(RAW)
    return call(script, body)


@pytest.fixture(scope="module")
def adder() -> Iterator[Script]:
    """A sandbox for attacks that change nothing, or only a kernel that is replaced."""
    with sandbox([add]) as script:
        yield script


def still_serves(script: Script) -> None:
    assert call(script, "return await add(41)") == 42


@pytest.mark.parametrize(
    "head",
    [
        {"op": "nonsense"},
        {"op": "call", "id": "1", "name": "add", "args": [], "kwargs": {}},
        {"op": "call", "id": 1, "name": ["add"], "args": [], "kwargs": {}},
        {"op": "call", "id": 1, "name": "add", "args": {}, "kwargs": []},
        {"op": "call", "id": 1, "name": "add"},
        {"op": "cancel", "id": 10**9},
        {"op": "cancel", "id": None},
        {"op": "result", "id": 1, "value": 1},
        {"op": "go"},
        {"op": "call", "id": 10**6, "name": "$nothing", "args": [], "kwargs": {}},
    ],
)
def test_messages_that_mean_nothing_are_passed_over(adder: Script, head: dict[str, Any]) -> None:
    hostile(adder, f"send(frame({head!r}))")
    still_serves(adder)


@pytest.mark.parametrize(
    "arguments",
    [
        "args=[{'$': 'int', 'v': 'ff' * 10**6}]",
        "args=[{'$': 'timedelta', 'v': [1]}]",
        "args=[{'$': 'uuid', 'v': [1]}]",
        "args=[{'$': [], 'v': 1}]",
        "args=[{'$': 'bytes', 'n': 7}]",
        "args=[{'$': 'frame', 'n': -1}]",
        "args=[{'$': 'set', 'v': [[1]]}]",
        "kwargs={'$': 'tuple', 'v': []}",
        "kwargs={'$': 'dict', 'v': [[1, 2]]}",
        "args=[{'$': 'dict', 'v': 5}]",
        "args=__import__('functools').reduce(lambda inner, _: [inner], range(200), [])",
    ],
)
def test_arguments_that_cannot_be_read_are_refused_before_the_function(adder: Script, arguments: str) -> None:
    hostile(adder, f"one(id=10**6, {arguments})\nawait add(1)")
    assert statuses(adder) == ["error", "ok"]
    still_serves(adder)


@pytest.mark.parametrize(
    "data",
    [
        "struct.pack('>II', 1, 2**31)",
        "struct.pack('>II', 2, 0)",
        "packed()",
        "packed(b'null')",
        "packed(b'\\xff\\xff\\xff\\xff')",
        "packed(b'{}', b'abc', more=1) + b'd'",
        "struct.pack('>III', 1, 4, 2**32 - 1)",
        "packed(b'[' * 100_000)",
        "packed(b'[' + b'0,' * 1_500_000 + b']')",
        "packed(b'{}', *[b''] * 100_000)",
    ],
)
def test_a_guest_that_breaks_the_protocol_is_hung_up_on_and_only_harms_itself(adder: Script, data: str) -> None:
    try:
        with pytest.raises(GuestError) as caught:
            hostile(adder, f"send({data})\nawait add(1)")
    finally:
        adder._session.restart()
    assert caught.value.name == "HostGone"
    still_serves(adder)


def test_a_message_inside_another_ends_in_hanging_up() -> None:
    with sandbox([add]) as script:
        with pytest.raises(GuestError) as caught:
            hostile(script, "send(frame({'op': 'call'})[:20])\nawait add(1)\nawait add(2)\nawait asyncio.sleep(5)")
        assert caught.value.name == "HostGone"


def test_a_forked_process_cannot_call(adder: Script) -> None:
    body = (
        "import os\nreader, writer = os.pipe()\n"
        "if not os.fork():\n"
        "    try:\n        sandbox.hostcall('add', 1)\n"
        "    except BaseException as error:\n        os.write(writer, type(error).__name__.encode())\n"
        "    os._exit(0)\n"
        "os.wait()\nreturn os.read(reader, 100).decode()"
    )
    assert call(adder, body) == "HostGone"


def test_a_number_used_twice_does_not_run_twice_at_once() -> None:
    crowd = Crowd()
    with sandbox([crowd.enter, add]) as script:
        hostile(script, "for _ in range(5):\n    one(id=77, name='enter')\nawait add(1)")
        assert crowd.most == 1


def test_values_forged_after_the_run_reach_no_later_run() -> None:
    with sandbox([add]) as script:
        script.load_script(RAW)
        script.load_script("""
import threading, time
def forge():
    for number in range(100):
        one(id=10**6 + number, name="$return", args=["forged"])
        one(id=10**7 + number, name="$yield", args=["forged"])
        time.sleep(0.001)
""")
        call(script, "globals()['forger'] = threading.Thread(target=forge)\nforger.start()")
        time.sleep(0.3)
        call(script, "forger.join()")
        assert call(script, "return 2") == 2
        assert list(script.run_stream("it")) == [EndEvent(2)]


def test_a_flood_of_refused_calls_is_counted_and_not_kept() -> None:
    with sandbox([add], max_calls=1) as script:
        script.load_script(RAW)
        heads = "{'op': 'call', 'name': 'add', 'args': [], 'kwargs': {'a': 1}, 'id': number + 1000}"
        with pytest.raises(GuestError, match="used up"):
            call(script, f"send(b''.join(frame({heads}) for number in range(3000)))\nawait add(1)")
        refused = [each for each in last(script).host_calls if each.status == "refused"]
        assert len(refused) == MAX_REFUSALS
        assert Omitted("2,900 host calls that were refused") in last(script).outputs


def test_names_in_the_record_are_neutralised(adder: Script) -> None:
    hostile(adder, "one(id=5000, name='\\x1b[31mred\\u202e', kwargs={'\\x1b[2J': 1})\nawait add(1)")
    record, _ = last(adder).host_calls
    assert "\x1b" not in record.text
    assert "\u202e" not in record.text


def test_a_guest_that_leaves_answers_unread_is_not_hung_up_on() -> None:
    def big() -> bytes:
        return bytes(8 * 2**20)

    with sandbox([big, add], max_calls=30) as script:
        script.load_script(RAW)
        body = "for number in range(20):\n    one(id=number + 1000, name='big')\ntime.sleep(0.5)\nreturn await add(1)"
        assert call(script, f"import time\n{body}") == 2
        assert set(statuses(script)) <= {"ok", "cancelled"}, "the end of a run cancels what nobody waits for"
        assert call(script, "return await add(2)") == 3
