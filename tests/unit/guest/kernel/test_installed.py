"""What an installer is answered where packages cannot be changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_tools.guest.kernel.installed import tell_of_packages


@pytest.mark.parametrize("option", ["-r FILE", "-rFILE", "--requirement FILE", "--requirement=FILE"])
def test_the_lines_of_a_file_of_requirements_are_answered(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("# ours\n--index-url https://example.org\npytest>=1 # to test\n\nno-such-one==2\nno-such-two\n")
    told: list[str] = []
    assert not tell_of_packages(["install", "-q", *option.replace("FILE", str(file)).split()], told.append)
    assert told[0].startswith("no-such-one==2, no-such-two cannot be installed here")
    assert capsys.readouterr().out.startswith("Requirement already satisfied: pytest>=1 (")


def test_requirements_with_hashes_are_those_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(
        "pytest>=1 --hash=sha256:0\nruff>=0 \\\n    --hash=sha256:0 \\\n    --hash=sha256:1\n    # via ours\n"
    )
    assert tell_of_packages(["install", "-r", str(file)], lambda text: pytest.fail(text))
    assert [line.split(" (")[0] for line in capsys.readouterr().out.splitlines()] == [
        "Requirement already satisfied: pytest>=1",
        "Requirement already satisfied: ruff>=0",
    ]


def test_a_file_of_requirements_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    told: list[str] = []
    assert not tell_of_packages(["install", "-r", f"{tmp_path}/none.txt"], told.append)
    assert told[0].startswith(f"{tmp_path}/none.txt cannot be installed here")
