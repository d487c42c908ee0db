"""The gateway's addition to the code and to the model, as ratios: nothing here is worth more than its own machine.

    .venv/bin/python benchmarks/gateway.py [--rounds 50] [--load 50] [--clients 30] [--port 0 --beside NAME=URL ...]
    .venv/bin/python benchmarks/gateway.py --conversations 30 --places 8 [--turns 10] [--kept 30]

An upstream that answers at once is asked directly, through the gateway, and through the gateway with one call of
`1 + 1`. The session's own time for the same code is the measure of it all. Calls come once without a pause, which no
model does, and once after the pause of a quick model: after each of the first calls of a burst the kernel copies itself
for `undo`, and the next call waits for that. With `--load`, so many streams at once make
three calls each, and each must find only its own name. With `--clients`, so many clients run code without a pause, each
in a conversation of its own, while answers without code are timed, as they were before in quiet; the bare upstream is
timed beside them, so that what the machine costs is told from what the gateway costs.

At the end stand the goals of GOALS, each with what was measured, and the load of the machine: where that is above one
for each processor, a goal that is missed says little.

`--beside` puts other gateways beside ours: start each with this upstream, http://127.0.0.1:PORT/v1 with the PORT given
as `--port`, and name it by the URL that ends in /v1. Then all are asked in turn, round by round, with a container of
their own choice; a cold one is part of what a gateway's users wait for, so ours is shown with and without.

`--conversations` has so many people talk at once, each with variables of their own, while `--places` sandboxes may run
code: once where all are kept, and once where no more are kept than run, or with as many as `--kept`. A turn is one call
between two answers of the model; the note that a sandbox was replaced, and variables that are not what they should be,
are counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.to_thread
import httpx

from agent_tools.testing import ScriptedCall, ScriptedReply, ScriptedServer
from agent_tools.tools import CodeInterpreter

CODE = "1 + 1"
CALLS = 3
AUTO = {"type": "auto"}
WARM_UP = 10.0  # seconds in which the busy clients get their first sandboxes
THINKING = 0.1  # seconds that a quick model takes between two calls
PAUSE = 0.25  # seconds between two plain answers, so that they meet all that the busy clients do
BESIDE = "beside {} clients"
WRITTEN = "response.code_interpreter_call_code.done"
RUNNING, RAN = "response.code_interpreter_call.interpreting", "response.code_interpreter_call.completed"
PLAIN = {"model": "m", "input": "Go."}
GOALS = {
    "interpreting -> completed after a model's pause": 4.0,  # milliseconds
    "interpreting -> completed without a pause": 4.0,  # milliseconds
    "a response's overhead": 8.0,  # milliseconds over the bare upstream
    "an answer beside busy clients": 3.0,  # times what it takes in quiet
}
Results = dict[str, list[float]]
"""Milliseconds by what was done."""


def once(request: dict[str, Any]) -> ScriptedReply:
    """One call, by whatever name the gateway gives the tool, then an answer."""
    if request.get("tools") and request["messages"][-1]["role"] == "user":
        return ScriptedReply(calls=[ScriptedCall(request["tools"][0]["function"]["name"], {"code": CODE})])
    return ScriptedReply(text="Two.")


def often(request: dict[str, Any]) -> ScriptedReply:
    """Some calls with the name that the user gave, then an answer with it."""
    name = next(message["content"] for message in request["messages"] if message["role"] == "user")
    if sum(message["role"] == "tool" for message in request["messages"]) == CALLS:
        return ScriptedReply(text=name)
    code = f"seen = [*globals().get('seen', []), {name!r}]; print(*seen)"
    return ScriptedReply(calls=[ScriptedCall(request["tools"][0]["function"]["name"], {"code": code})])


@contextlib.contextmanager
def upstream(port: int = 0) -> Iterator[str]:
    """The upstream in a process of its own, as in life: here it would compete with whoever measures."""
    command = [sys.executable, __file__, "--serve", "--port", str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        yield process.stdout.readline().strip()
        process.stdin.close()


def be_upstream(port: int) -> None:
    """Be it until stdin is at its end."""
    with ScriptedServer({"m": once, "load": often, "count": counting}, port=port) as server:
        print(server.base_url, flush=True)
        sys.stdin.read()


@contextlib.contextmanager
def serving(upstream_url: str, folder: str, **settings: int) -> Iterator[str]:
    """A gateway in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [sys.executable, "-m", "agent_tools", "serve", "--upstream", upstream_url, "--port", str(port)]
    command += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
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


def body(container: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "input": "Go.", "tools": [{"type": "code_interpreter", "container": container}], **more}


def timed(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return 1000 * (time.perf_counter() - start)


def in_turn(rounds: int, acts: dict[str, Callable[[], float]]) -> Results:
    """Everything once without being counted, then all of it, round by round."""
    results: Results = {name: [] for name in acts}
    for number in range(rounds + 1):
        for name, act in acts.items():
            found = act()
            if number:
                results[name].append(found)
    return results


def asked(client: httpx.Client, path: str, sent: dict[str, Any]) -> None:
    client.post(path, json=sent).raise_for_status()


def running_time(client: httpx.Client, sent: dict[str, Any], since: str = RUNNING, pause: float = 0.0) -> float:
    """Between an event and `completed`, as the client sees them; the request is made after a pause."""
    seen: dict[str, float] = {}
    time.sleep(pause)
    with client.stream("POST", "responses", json={**sent, "stream": True}) as answer:
        for line in answer.iter_lines():
            if line.startswith("event: "):
                seen.setdefault(line[7:], time.perf_counter())
    return 1000 * (seen[RAN] - seen[since])


def acts_of(name: str, client: httpx.Client, container: Any) -> dict[str, Callable[[], float]]:
    """Return the measurements of a gateway, by name."""
    sent = body(container)
    return {
        f"{name}: JSON": lambda: timed(lambda: asked(client, "responses", sent)),
        f"{name}: stream": lambda: timed(lambda: asked(client, "responses", {**sent, "stream": True})),
        f"{name}: interpreting -> completed": lambda: running_time(client, sent),
        f"{name}: the same after {1000 * THINKING:.0f} ms": lambda: running_time(client, sent, pause=THINKING),
        # A gateway that is busy before it sends `interpreting` hides that from the line above, but not from this one.
        f"{name}: code done -> completed": lambda: running_time(client, sent, WRITTEN),
    }


def without_code(name: str, client: httpx.Client) -> dict[str, Callable[[], float]]:
    """Return measurements of what a gateway costs when nothing is to be run."""
    return {f"{name}: a response without code": lambda: timed(lambda: asked(client, "responses", PLAIN))}


async def loaded(url: str, streams: int) -> Results:
    """Streams at once; of each call, and of each whole, the time."""
    results: Results = {"under load: a whole response": [], "under load: interpreting -> completed": []}

    async def one(client: httpx.AsyncClient, name: str) -> None:
        start, begun, last = time.perf_counter(), 0.0, ""
        sent = {**body(AUTO, stream=True), "model": "load", "input": name, "include": ["code_interpreter_call.outputs"]}
        async with client.stream("POST", "responses", json=sent) as answer:
            async for line in answer.aiter_lines():
                if line == f"event: {RUNNING}":
                    begun = time.perf_counter()
                elif line == f"event: {RAN}":
                    results["under load: interpreting -> completed"].append(1000 * (time.perf_counter() - begun))
                last = line if line.startswith("data: {") else last
        results["under load: a whole response"].append(1000 * (time.perf_counter() - start))
        check_alone(json.loads(last[6:])["response"], name)

    async with httpx.AsyncClient(base_url=url, timeout=300) as client, anyio.create_task_group() as group:
        for number in range(streams):
            group.start_soon(one, client, f"name-{number}")
    return results


async def crowded(url: str, upstream: str, clients: int, rounds: int) -> Results:
    """Plain answers, and the bare upstream's, in quiet and beside clients that run code."""
    results: Results = {}
    chat = {"model": "m", "messages": [{"role": "user", "content": "Go."}], "stream": True}
    async with httpx.AsyncClient(timeout=300) as client:

        async def measure(where: str) -> None:
            for name, path, sent in (
                ("a response", f"{url}/responses", PLAIN),
                ("upstream", f"{upstream}/chat/completions", chat),
            ):
                times = results.setdefault(f"{where}: {name}", [])
                for _ in range(rounds):
                    start = time.perf_counter()
                    (await client.post(path, json=sent)).raise_for_status()
                    times.append(1000 * (time.perf_counter() - start))
                    await anyio.sleep(PAUSE)

        await measure("in quiet")
        command = [sys.executable, __file__, "--busy", url, "--clients", str(clients)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as others:  # noqa: ASYNC220  (begun before it is measured)
            await anyio.sleep(WARM_UP)
            await measure(BESIDE.format(clients))
            assert others.stdin
            others.stdin.close()
    return results


async def busy(url: str, clients: int) -> None:
    """Run code without a pause, as so many clients, until stdin is at its end: in a process of their own."""
    ran, begun = 0, time.monotonic()

    async def one(client: httpx.AsyncClient) -> None:
        nonlocal ran
        more: dict[str, Any] = {}
        while True:
            answer = (await client.post(f"{url}/responses", json=body(AUTO, **more))).raise_for_status()
            more, ran = {"previous_response_id": answer.json()["id"]}, ran + 1

    async with httpx.AsyncClient(timeout=300) as client, anyio.create_task_group() as group:
        for _ in range(clients):
            group.start_soon(one, client)
        await anyio.to_thread.run_sync(sys.stdin.read)
        print(f"{clients} busy clients had {ran} responses with code in {time.monotonic() - begun:.0f} s", flush=True)
        group.cancel_scope.cancel()


def check_alone(response: dict[str, Any], name: str) -> None:
    """Check that a stream found its own names only."""
    *calls, message = response["output"]
    logs = [call["outputs"][0]["logs"].split() for call in calls]
    assert logs == [[name] * (number + 1) for number in range(CALLS)], logs
    assert message["content"][0]["text"] == name


def counting(request: dict[str, Any]) -> ScriptedReply:
    """One call that counts on, as a variable that only this conversation has, then an answer with what it was told."""
    *_, last = request["messages"]
    if last["role"] == "tool":
        return ScriptedReply(text=last["content"])
    code = f"count = globals().get('count', 0) + 1; print('count', count, {last['content']!r})"
    return ScriptedReply(calls=[ScriptedCall(request["tools"][0]["function"]["name"], {"code": code})])


async def talks(url: str, people: int, turns: int) -> tuple[list[float], int, int]:
    """Let people talk at once; return the milliseconds of each turn but their first, and the turns with a replaced
    sandbox and with lost variables."""
    times: list[float] = []
    replaced = lost = 0

    async def talk(client: httpx.AsyncClient, name: str) -> None:
        nonlocal replaced, lost
        sent: dict[str, Any] = {**body(AUTO), "model": "count", "input": name}
        for number in range(turns):
            start = time.perf_counter()
            answer = (await client.post("responses", json=sent)).raise_for_status().json()
            if number:
                times.append(1000 * (time.perf_counter() - start))
            text = answer["output"][-1]["content"][0]["text"]
            replaced += "The sandbox was replaced" in text
            lost += f"count {number + 1} {name}" not in text
            sent["previous_response_id"] = answer["id"]

    async with httpx.AsyncClient(base_url=url, timeout=300) as client, anyio.create_task_group() as group:
        for number in range(people):
            group.start_soon(talk, client, f"name-{number}")
    return times, replaced, lost


def conversations(people: int, places: int, turns: int, kept: int) -> None:
    for most in [kept] if kept else [max(people, places), places]:
        with upstream() as base_url, tempfile.TemporaryDirectory() as folder:
            settings = {"max_sandboxes": places, "max_kept_sandboxes": most, "queue_timeout": 300}
            with serving(base_url, folder, **settings) as url:
                times, replaced, lost = anyio.run(talks, url, people, turns)
        low, high = statistics.median(times), sorted(times)[int(0.95 * (len(times) - 1))]
        print(
            f"{people} conversations, {places} places, {most} kept: a turn p50 {low:.0f} ms, p95 {high:.0f} ms; of "
            f"{people * turns} turns {replaced} with a replaced sandbox, {lost} with lost variables"
        )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--load", type=int, default=50, help="streams at once; 0 for none")
    parser.add_argument("--clients", type=int, default=30, help="that run code beside plain answers; 0 for none")
    parser.add_argument("--port", type=int, default=0, help="of the upstream, for the gateways beside ours")
    parser.add_argument("--beside", action="append", default=[], metavar="NAME=URL")
    parser.add_argument(
        "--serve", action="store_true", help="be the upstream, and nothing else, until stdin is at its end"
    )
    parser.add_argument("--busy", metavar="URL", help="be those clients, and nothing else, until stdin is at its end")
    parser.add_argument("--conversations", type=int, default=0, help="people who talk at once, and nothing else")
    parser.add_argument("--places", type=int, default=8, help="sandboxes that run code at once, for them")
    parser.add_argument("--kept", type=int, default=0, help="sandboxes that are kept, for them")
    parser.add_argument("--turns", type=int, default=10, help="of each of them")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    if given.busy:
        anyio.run(busy, given.busy, given.clients)
        return
    if given.serve:
        be_upstream(given.port)
        return
    if given.conversations:
        conversations(given.conversations, given.places, given.turns, given.kept)
        return
    with contextlib.ExitStack() as stack:
        base_url = stack.enter_context(upstream(given.port))
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        tool = stack.enter_context(CodeInterpreter({"work_dir": f"{folder}/session"}))
        direct = stack.enter_context(httpx.Client(base_url=base_url))
        url = stack.enter_context(serving(base_url, folder))
        client = stack.enter_context(httpx.Client(base_url=url, timeout=60))
        container = client.post("containers", json={"name": "benchmark"}).json()["id"]
        chat = {"model": "m", "messages": [{"role": "user", "content": "Go."}], "stream": True}
        acts: dict[str, Callable[[], float]] = {
            "session: the code itself": lambda: 1000 * tool.run(CODE).duration,
            "upstream, asked directly": lambda: timed(lambda: asked(direct, "chat/completions", chat)),
            "gateway: passed on": lambda: timed(lambda: asked(client, "chat/completions", chat)),
            **without_code("gateway", client),
            **acts_of("gateway, warm container", client, container),
        }
        if given.beside:
            acts |= acts_of("gateway, new container", client, AUTO)
        for name, _, other in (each.partition("=") for each in given.beside):
            theirs = stack.enter_context(httpx.Client(base_url=other, timeout=60))
            acts |= without_code(name, theirs) | acts_of(name, theirs, AUTO)
        results = in_turn(given.rounds, acts)
        if given.load:
            results |= anyio.run(loaded, url, given.load)
        if given.clients:
            results |= anyio.run(crowded, url, base_url, given.clients, given.rounds)
    report(results, [each.partition("=")[0] for each in given.beside])
    p50 = {name: statistics.median(times) for name, times in results.items()}
    sys.exit(0 if judge(p50, BESIDE.format(given.clients)) else 1)


def report(results: Results, beside: list[str]) -> None:
    p50 = {name: statistics.median(times) for name, times in results.items()}
    base, upstream = p50["session: the code itself"], p50["upstream, asked directly"]
    width = max(map(len, results)) + 2
    print(f"{'':{width}}{'p50 ms':>10}{'p95 ms':>10}{'x session':>12}")
    for name, times in results.items():
        high = sorted(times)[int(0.95 * (len(times) - 1))]
        print(f"{name:{width}}{p50[name]:10.1f}{high:10.1f}{p50[name] / base:12.1f}")
    for kind in ("JSON", "stream"):
        over = p50[f"gateway, warm container: {kind}"] - 2 * upstream - base
        print(f"a request with one call, {kind}: {over:.1f} ms over two answers of the upstream and the code (p50)")
    for name in beside:
        kind = "a response without code"
        print(f"{name} : gateway, {kind}: x {p50[f'{name}: {kind}'] / p50[f'gateway: {kind}']:.2f}")
        for kind in ("JSON", "stream", "interpreting -> completed", "code done -> completed"):
            ratios = [p50[f"{name}: {kind}"] / p50[f"gateway, {ours} container: {kind}"] for ours in ("warm", "new")]
            print(f"{name} : gateway, {kind}: x {ratios[0]:.2f} beside a warm container, x {ratios[1]:.2f} a new one")
    print(json.dumps({name: round(found, 2) for name, found in p50.items()}))


def judge(p50: dict[str, float], crowd: str) -> bool:
    """Print the goals, and what was measured; return False where one is missed on a machine that was not busy."""
    found = {
        "interpreting -> completed after a model's pause": p50[
            f"gateway, warm container: the same after {1000 * THINKING:.0f} ms"
        ],
        "interpreting -> completed without a pause": p50["gateway, warm container: interpreting -> completed"],
        "a response's overhead": p50["gateway: a response without code"] - p50["upstream, asked directly"],
    }
    if f"{crowd}: a response" in p50:
        found["an answer beside busy clients"] = p50[f"{crowd}: a response"] / p50["in quiet: a response"]
        machine = p50[f"{crowd}: upstream"] / p50["in quiet: upstream"]
        print(f"the bare upstream takes x {machine:.2f} {crowd}: that is the machine's part")
    for name, value in found.items():
        print(f"goal: {name}: {value:.1f}, at most {GOALS[name]:.0f}: {'met' if value <= GOALS[name] else 'MISSED'}")
    load, processors = os.getloadavg()[0], os.cpu_count() or 1
    print(f"load of the machine: {load:.1f} on {processors} processors")
    return load > processors or all(value <= GOALS[name] for name, value in found.items())


if __name__ == "__main__":
    main()
