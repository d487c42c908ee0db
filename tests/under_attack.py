"""The host's side of an attack by a fake kernel: tools to be attacked, and what must hold of them whatever comes."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_tools.limits import MIB
from agent_tools.results.blocks import NOTHING
from agent_tools.results.execution import Execution, Notice, Output, Restarted, Stream, TimedOut
from agent_tools.runtime.runtime import Runtime
from agent_tools.tools import CodeInterpreter
from agent_tools.tools.markdown import markdown
from tests.fake_kernel import ATTACK, FakeEngine, Script, Turn

LIMITS = {"interrupt_grace": 0.1, "restart_timeout": 0.5, "start_timeout": 2.0}
LONG_ENOUGH = 20.0  # a time limit that nothing here meets
PATIENCE = 3.0  # seconds a call may take beyond its time limit
GROWTH = 128 * MIB  # of this process, with what the fake kernel itself holds: 75 at most where no other thread runs
HEADINGS = {f"{name}:" for name in ("stdout", "stderr", "execute_result", "display_data", "error", "note")}
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

NewTool = Callable[[FakeEngine], CodeInterpreter]


@contextlib.contextmanager
def tools_to_attack(limits: dict[str, float] = LIMITS) -> Iterator[NewTool]:
    """Makes tools on fake sandboxes; when they are closed, nothing of them may be left."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="at-", dir="/tmp") as folder:
        patch.setenv("AGENT_TOOLS_RUN_DIR", folder)
        before = held(folder)
        with contextlib.ExitStack() as opened:

            def make(engine: FakeEngine) -> CodeInterpreter:
                runtime = Runtime(engine, lambda packages: "none")
                atexit.unregister(runtime.close_all)
                opened.callback(runtime.close_all)  # waits for what is done beside
                cfg = {"work_dir": f"{folder}/work", "limits": limits}
                return opened.enter_context(CodeInterpreter(cfg, runtime=runtime))

            yield make
        deadline = time.monotonic() + PATIENCE
        while (left := beyond(before, held(folder))) and time.monotonic() < deadline:
            time.sleep(0.02)  # a thread that all sandboxes share ends a little later than the last of them
        assert not left


def held(folder: str) -> tuple[int, list[str], list[str]]:
    """Descriptors, threads, and what is in the run directory."""
    threads = [thread.name for thread in threading.enumerate()]
    left = [str(path) for path in Path(folder).glob("agent_tools-*/*")]
    return len(os.listdir("/proc/self/fd")), threads, left


def beyond(before: tuple[int, list[str], list[str]], now: tuple[int, list[str], list[str]]) -> list[str]:
    """What is held now, and was not before."""
    descriptors = [f"{now[0] - before[0]} descriptors"] if now[0] > before[0] else []
    threads = list((Counter(now[1]) - Counter(before[1])).elements())
    return descriptors + threads + [path for path in now[2] if path not in before[2]]


def attacked(tool: CodeInterpreter, timeout: float = LONG_ENOUGH) -> Execution:
    """The run that is answered with hostility, within its time and memory, and fit to be shown."""
    assert tool.run("first").outputs == (Stream("stdout", "run 1\n"),)
    before, started = resident(), time.monotonic()
    execution = tool.run(ATTACK, timeout=timeout)
    assert time.monotonic() - started < timeout + PATIENCE
    assert resident("VmHWM") - before < GROWTH
    assert_is_safe(markdown(execution))
    return execution


def resident(field: str = "VmRSS") -> int:
    """Bytes in memory now; or, with VmHWM, the most since the last time that now was asked for."""
    if field == "VmRSS":
        Path("/proc/self/clear_refs").write_text("5")
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def assert_is_safe(shown: str) -> None:
    """It can be encoded, holds nothing that a terminal obeys, and all the guest said stays inside a fence."""
    shown.encode("utf-8")
    assert not CONTROLS.search(shown)
    for line in outside_of_fences(shown):
        assert line in ("", NOTHING, *HEADINGS) or re.fullmatch(r"!\[fig-\d{3}\]\(/tmp/at-[\w/.-]+\)", line), line


def outside_of_fences(shown: str) -> Iterator[str]:
    """The lines of a Markdown text that are in no code fence (CommonMark 0.31, 4.5)."""
    opened = ""
    for line in shown.split("\n"):
        ticks = re.match(r" {0,3}(`{3,})([^`]*)$", line)
        if not opened and ticks:
            opened = ticks[1]
        elif opened and ticks and len(ticks[1]) >= len(opened) and not ticks[2].strip():
            opened = ""
        elif not opened:
            yield line
    assert not opened


def background(text: str) -> Notice:
    """The note of text that belongs to no run, or to an earlier one."""
    return Notice(f"Printed by background code since the previous call:\n{text}")


def assert_goes_on(tool: CodeInterpreter, lost: str, late: str = "") -> None:
    """The next run works: in the same kernel, or in a fresh one, and then it says so; it notes text that came late."""
    outputs = tool.run("next").outputs
    if lost:
        assert outputs == (Restarted(lost), Stream("stdout", "run 1\n"))
    else:
        assert outputs == (Stream("stdout", "run 3\n"), *([background(late)] if late else []))


@dataclass(frozen=True)
class Row:
    """What the kernel does, the outputs of that run, and why its variables were lost ('' if they were not).

    `late` is the text that the next run notes.
    """

    does: Script
    shows: tuple[Output, ...] = ()
    lost: str = ""
    timeout: float = LONG_ENOUGH
    late: str = ""


def rows(table: dict[str, Row]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", table.values(), ids=table.keys())


def check(new_tool: NewTool, row: Row) -> None:
    tool = new_tool(FakeEngine(row.does))
    assert attacked(tool, row.timeout).outputs == row.shows
    assert_goes_on(tool, row.lost, row.late)


def in_turn(*steps: Script) -> Script:
    """A script of several steps."""

    def run(turn: Turn) -> None:
        for step in steps:
            step(turn)

    return run


def says(kind: str, content: object, **parts: Any) -> Script:
    return lambda turn: turn.publish(kind, content, **parts)


def prints(text: object, **parts: Any) -> Script:
    return says("stream", {"name": "stdout", "text": text}, **parts)


def shows(data: object, kind: str = "display_data", **content: Any) -> Script:
    return says(kind, {"data": data, **content})


def finishes(turn: Turn) -> None:
    turn.finish()


def replies(turn: Turn) -> None:
    turn.reply()


def idles(turn: Turn) -> None:
    turn.idle()


def does_nothing(turn: Turn) -> None:
    """Not even reply."""


def awaits_the_next_run(turn: Turn) -> None:
    """Have what is sent after this come in the middle of it."""
    turn.wire.await_input()


A = Stream("stdout", "a")
B = Stream("stdout", "b")
AB = Stream("stdout", "ab")
STUBBORN = "its code did not stop at the time limit"
LOST = TimedOut(0.2, state_kept=False)
