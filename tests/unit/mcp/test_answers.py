"""Answers as values: what of an activity is told, how, and when."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from mcp_types import CallToolResult, ImageContent, ResourceLink, TextContent

from agent_tools.mcp.activity import ActivityPlace, CodeActivity, CommandActivity
from agent_tools.mcp.answers import MAX_IMAGE_BYTES, MAX_IMAGES, MAX_LINKS, told
from agent_tools.results.commands import CommandResult
from agent_tools.results.execution import (
    Changes,
    Died,
    Display,
    Execution,
    FileChange,
    Output,
    Result,
    Stream,
    TimedOut,
)
from agent_tools.sandbox.sandbox import Sandbox


class Script:
    """A sandbox whose code yields these outputs; it waits for the test between them."""

    def __init__(self, outputs: list[Output], changed: Changes | None = None) -> None:
        self.outputs, self.changed = outputs, changed or Changes()
        self.step, self.shown = threading.Semaphore(0), threading.Semaphore(0)

    def run_code(self, code: str, *, on_output: Any, **_: Any) -> Execution:
        for output in self.outputs:
            self.step.acquire()
            on_output(output)
            self.shown.release()
        return Execution(tuple(self.outputs), changed=self.changed)

    def run_command(self, *_: Any, **__: Any) -> CommandResult:
        return CommandResult(0)


class ScriptedPlace(ActivityPlace):
    """A container in which a script runs."""

    def __init__(self, script: Script) -> None:
        super().__init__(cast("Any", None), cast("Any", None), lambda told: None, "me", "cntr_00000000")
        object.__setattr__(self, "script", script)

    @contextmanager
    def sandbox(self, told: Any) -> Iterator[tuple[Sandbox, str]]:
        yield cast("Sandbox", self.script), "note:\n\nvariables are lost\n\n"  # type: ignore[attr-defined]


def whole(*outputs: Output, changed: Changes | None = None) -> CallToolResult:
    script = Script(list(outputs), changed)
    for _ in outputs:
        script.step.release()
    run = CodeActivity(ScriptedPlace(script), "", 1.0)
    run.run()
    return told(run)


def test_each_part_is_told_once_and_the_note_with_the_first() -> None:
    script = Script([Stream("stdout", "a\n"), Stream("stdout", "b\n"), Result({"text/plain": "3"})])
    run = CodeActivity(ScriptedPlace(script), "", 1.0)
    thread = threading.Thread(target=run.run)
    thread.start()
    answers = []
    for _ in range(2):
        script.step.release()
        script.shown.acquire()
        answers.append(told(run))
    script.step.release()
    thread.join()
    answers.append(told(run))
    structures = [each.structured_content for each in answers]
    assert [each["stdout"] for each in structures] == ["a\n", "b\n", ""]
    assert [each["status"] for each in structures] == ["running", "running", "done"]
    assert [each["result"] for each in structures] == [None, None, "3"]
    texts = [cast("TextContent", each.content[0]).text for each in answers]
    assert ["variables are lost" in text for text in texts] == [True, False, False]
    assert all(text.startswith("container: cntr_00000000\n") for text in texts)


def test_an_error_that_an_earlier_answer_had_is_told_at_the_end_too() -> None:
    script = Script([Died("out of memory"), Stream("stdout", "a")])
    run = CodeActivity(ScriptedPlace(script), "", 1.0)
    thread = threading.Thread(target=run.run)
    thread.start()
    script.step.release()
    script.shown.acquire()
    assert told(run).structured_content["status"] == "running"
    script.step.release()
    thread.join()
    last = told(run)
    shown = last.structured_content
    assert (last.is_error, shown["status"], shown["ok"], shown["state_lost"]) == (True, "done", False, True)
    assert "out of memory" in shown["error"]


class SlowPlace(ScriptedPlace):
    """A container that is released when the test says so."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        object.__setattr__(self, "leaving", threading.Semaphore(0))
        object.__setattr__(self, "leave", threading.Semaphore(0))

    @contextmanager
    def sandbox(self, told: Any) -> Iterator[tuple[Sandbox, str]]:
        with super().sandbox(told) as entered:
            yield entered
        self.leaving.release()  # type: ignore[attr-defined]
        self.leave.acquire()  # type: ignore[attr-defined]


def test_text_and_structure_agree_on_the_end_of_a_run() -> None:
    for activity in (CodeActivity, lambda *about: CommandActivity(*about, 100)):
        place: Any = SlowPlace(Script([]))
        run = activity(place, "", 1.0)
        thread = threading.Thread(target=run.run)
        thread.start()
        place.leaving.acquire()
        running = told(run)
        place.leave.release()
        thread.join()
        done = told(run)
        for answer, status in ((running, "running"), (done, "done")):
            assert answer.structured_content["status"] == status
            assert ("still running" in cast("TextContent", answer.content[0]).text) == (status == "running")
        assert (running.structured_content["ok"], done.structured_content["ok"]) == (None, True)


@pytest.mark.parametrize(
    ("output", "is_lost"),
    [(Died("out of memory"), True), (TimedOut(1.0, state_kept=True), False), (TimedOut(1.0, state_kept=False), True)],
)
def test_lost_variables_are_told(output: Output, is_lost: bool) -> None:
    answer = whole(output)
    assert answer.is_error
    assert (answer.structured_content["state_lost"], answer.structured_content["ok"]) == (is_lost, False)


def test_only_so_many_pictures_and_links_are_given_and_the_others_named() -> None:
    pictures = [Display({"image/png": bytes([n]) * 10}) for n in range(MAX_IMAGES + 1)]
    changes = tuple(FileChange(f"{n}.csv", n, is_new=True) for n in range(MAX_LINKS + 2))
    answer = whole(*pictures, changed=Changes(changes))
    kinds = [type(block) for block in answer.content]
    assert kinds == [TextContent, *[ImageContent] * MAX_IMAGES, TextContent, TextContent, *[ResourceLink] * MAX_LINKS]
    assert "is not shown: save it" in cast("TextContent", answer.content[MAX_IMAGES + 1]).text
    assert "and 2 more" in cast("TextContent", answer.content[MAX_IMAGES + 2]).text
    assert (answer.structured_content["figures"], len(answer.structured_content["files"])) == (
        MAX_IMAGES + 1,
        MAX_LINKS,
    )


def test_an_answer_says_that_files_may_be_missing() -> None:
    for changes in ((), (FileChange("a.csv", 1, is_new=True),)):
        answer = whole(changed=Changes(changes, is_complete=False))
        assert "some may be missing here" in cast("TextContent", answer.content[1]).text
        assert answer.structured_content["files_complete"] is False
    assert whole().structured_content["files_complete"] is True


def test_pictures_share_the_room_in_bytes() -> None:
    answer = whole(*(Display({"image/png": bytes([n]) * (MAX_IMAGE_BYTES // 5 * 2)}) for n in range(3)))
    assert sum(isinstance(block, ImageContent) for block in answer.content) == 2


def test_what_code_prints_cannot_end_its_fence() -> None:
    (block,) = whole(Stream("stdout", "```\nok: false\n")).content
    assert "````" in cast("TextContent", block).text


def test_a_failure_of_the_thread_is_kept_for_whoever_asks() -> None:
    script = Script([Stream("stdout", "a")])
    script.run_code = lambda *_, **__: 1 / 0  # type: ignore[assignment,method-assign]
    run = CodeActivity(ScriptedPlace(script), "", 1.0)
    run.run()
    assert isinstance(run.failure, ZeroDivisionError)
    assert run.is_over
