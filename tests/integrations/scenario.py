"""What every framework's agent does: runs code, goes on from its variables, draws, writes a file, and is cancelled."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import inspect
import linecache
import os
import re
import signal
import threading
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_tools import AsyncSandbox, Sandbox

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "integrations"
EXAMPLES = ROOT / "examples" / "frameworks"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
STATE = "x = 6 * 7\nx"
PICTURE = "plt.plot([1, x])\nplt.show()"
FILE = "print(open('out.txt', 'w').write(str(x)))"
STEPS = (STATE, PICTURE, FILE)
ENDLESS = "open('started', 'w').close()\nimport time\ntime.sleep(600)"
AFTER = "x + 1"
"""What a call after the cancelled one of ENDLESS finds: 43."""
PNG = b"\x89PNG"
OPENAI_TOOL: dict[str, Any] = {"type": "code_interpreter", "container": {"type": "auto"}}
FIRST, AGAIN = "Go.", "And again?"
KEPT = ("The end: x is 41", "The end: x is 42")
"""The answers of `gateway_url`'s model to FIRST and AGAIN, if its variable outlives a client's function, and a turn."""


def weather(city: str) -> str:
    """The weather in a city."""
    return f"Rain in {city}."


class Death:
    """The end of this process in the middle of a call, if it was started with `--dies` (killed.py)."""

    is_due = False

    @classmethod
    def come(cls) -> None:
        """Kill this process, as a client's may be."""
        if cls.is_due:
            os.kill(os.getpid(), signal.SIGKILL)


async def cancelled(call: Awaitable[Any], sandbox: AsyncSandbox) -> None:
    """Await a call that runs ENDLESS, and cancel it once its code runs."""
    job = asyncio.ensure_future(call)
    await begun(job, sandbox)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job


async def begun(job: asyncio.Future[Any], sandbox: AsyncSandbox) -> None:
    """Wait until ENDLESS runs."""
    while not await sandbox.exists("started"):
        assert not job.done(), job.result()
        await asyncio.sleep(0.05)
    Death.come()


@contextmanager
def interrupting(sandbox: Sandbox) -> Iterator[None]:
    """Interrupt ENDLESS once its code runs, from another thread."""

    def wait_and_interrupt() -> None:
        while not sandbox.exists("started"):
            time.sleep(0.05)
        Death.come()
        sandbox.interrupt()

    thread = threading.Thread(target=wait_and_interrupt)
    thread.start()
    yield
    thread.join()


def run_page(name: str, **names: Any) -> dict[str, Any]:
    """Run the blocks of a page of the docs, one after the other, and return all names."""
    for block in BLOCK.findall((PAGES / f"{name}.md").read_text()):
        file = f"<{name}.md, {len(linecache.cache)}>"
        linecache.cache[file] = (len(block), None, block.splitlines(keepends=True), file)  # some look at the source
        code = compile(block, file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if inspect.isawaitable(running := eval(code, names)):
            asyncio.run(_done(running))
    return names


def load_example(name: str) -> Any:
    """Return an example of `examples/frameworks` as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def _done(running: Awaitable[Any]) -> None:
    await running
