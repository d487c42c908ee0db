"""The answer that a model gets, whatever framework carries it."""

from __future__ import annotations

from agent_tools.integrations.common import MAX_FILES, answer, ending_of, text_of
from agent_tools.results.commands import CommandResult
from agent_tools.results.execution import Changes, Execution, FileChange, Result, Stream
from agent_tools.results.outputs import Display, Picture, Text

PNG = Picture("image/png", b"\x89PNG\r\n\x1a\n")
DRAWN = Execution((Stream("stdout", "out\n"), Display({"image/png": PNG.data, "text/plain": "<Figure>"})))


def test_text_and_pictures_come_in_order() -> None:
    first, picture = answer(DRAWN)
    assert isinstance(first, Text)
    assert "out" in first.text
    assert picture == PNG


def test_a_model_that_cannot_see_is_told_of_a_figure() -> None:
    assert text_of(DRAWN).endswith("[a figure]")


def test_the_reason_of_a_command_that_was_ended_is_told_once() -> None:
    assert ending_of(CommandResult(137, b"out", b"err", reason="it filled work_dir")) == "\n[it filled work_dir]"
    assert ending_of(CommandResult(126, b"", b"bash: no such folder\n", reason="bash: no such folder")) == ""
    assert ending_of(CommandResult(1)) == ""


def test_files_that_the_code_wrote_are_named_on_one_line() -> None:
    execution = Execution((Result({"text/plain": "1"}),), changed=Changes([FileChange("a\nb.txt", 1234, True)]))
    assert text_of(execution).splitlines()[-1].startswith("files written: /workspace/a")
    assert text_of(execution).endswith("(1,234 bytes)")


def test_of_many_files_the_first_are_named_and_the_others_counted() -> None:
    execution = Execution(changed=Changes([FileChange(f"{at}", 1, True) for at in range(MAX_FILES + 5)]))
    assert text_of(execution).endswith(f"{MAX_FILES - 1} (1 bytes) and 5 more")


def test_an_answer_says_that_files_may_be_missing() -> None:
    text = "files written: Not all files of work_dir could be looked at: some may be missing here."
    assert text_of(Execution(changed=Changes(is_complete=False))).endswith(text)
