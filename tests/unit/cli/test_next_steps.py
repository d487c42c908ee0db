from __future__ import annotations

from unittest.mock import Mock

import pytest

from agent_tools.cli.next_steps import for_shell, next_step
from agent_tools.guest.kernel.next_steps import NO_NETWORK, NO_PROGRAMS, of_module, of_program

PIP = (
    "x cannot be installed here: use what `%pip list` shows, or ask the operator of this sandbox to add it with the "
    "option `packages`, or to allow the package index with network={'allow': ['pypi']}."
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (of_module("community"), "community is not in the image. --package python-louvain adds it."),
        (of_module("polars"), "polars is not in the image. --flavour full has it."),
        (
            of_program("nosuch"),
            "There is no program nosuch in this image. --debian-package NAME adds Debian's packages.",
        ),
        (of_program("pandoc-x"), "There is no program pandoc-x in this image. --debian-package NAME adds Debian's"),
        (NO_PROGRAMS, "Programs cannot be installed here: use what there is. --debian-package NAME adds Debian's"),
        (NO_NETWORK.format("a.org:80"), "This sandbox has no network. --allow a.org:80 lets the code reach it."),
        (PIP, "use what `%pip list` shows, or start it again with --package NAME, or with --allow pypi."),
    ],
)
def test_sentences_for_operators_are_in_the_words_of_the_command_line(text: str, shown: str) -> None:
    assert shown in for_shell(text)
    assert "operator" not in for_shell(text)
    assert for_shell("other text") == "other text"


def test_what_pip_says_in_a_script_is_in_the_words_of_the_command_line() -> None:
    ended = f"{PIP}\nTraceback (most recent call last):\nsubprocess.CalledProcessError: Command 'pip' returned 1"
    assert next_step(Mock(), ended).endswith("start it again with --package NAME, or with --allow pypi.")
