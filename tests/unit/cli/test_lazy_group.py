import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from agent_tools.cli import Lazy, LazyGroup
from agent_tools.extras import pip_install

FINE = "import click\n\n@click.command()\ndef fine() -> None:\n    'Be fine.'\n    click.echo('fine')\n"


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LazyGroup:
    """A group of commands: one that works, one whose library is missing, one with a fault of ours."""
    package = tmp_path / "doors"
    package.mkdir()
    for name, source in {
        "__init__": "",
        "fine": FINE,
        "door": "import a_library_nobody_has\n",
        "faulty": "import agent_tools.no_such_module\n",
    }.items():
        (package / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.split(".")[0] == "doors"]:
        monkeypatch.delitem(sys.modules, name)
    lazy = {"fine": Lazy("Be fine."), "door": Lazy("Open.", "gateway"), "faulty": Lazy("Fail.", "gateway")}
    return LazyGroup("all", package="doors", lazy=lazy)


def test_only_the_command_that_is_wanted_is_imported(group: LazyGroup) -> None:
    assert CliRunner().invoke(group, ["fine"]).output == "fine\n"
    assert "doors.fine" in sys.modules
    assert "doors.door" not in sys.modules


@pytest.mark.parametrize("words", [[], ["--port", "1"], ["sub", "command"]])
def test_a_missing_extra_is_named_where_the_command_is_used(group: LazyGroup, words: list[str]) -> None:
    result = CliRunner().invoke(group, ["door", *words])
    assert result.exit_code == 1
    assert pip_install("gateway") in result.output


def test_help_says_what_each_command_does_and_imports_none(group: LazyGroup) -> None:
    said = CliRunner().invoke(group, ["--help"]).output
    assert "Be fine." in said
    assert "Open. (extra: gateway)" in said
    assert not {"doors.fine", "doors.door", "doors.faulty"} & sys.modules.keys()
    assert "Needs an extra" in CliRunner().invoke(group, ["door", "--help"]).output


def test_a_fault_of_ours_is_not_taken_for_a_missing_extra(group: LazyGroup) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        group.get_command(click.Context(group), "faulty")


def test_unknown_commands_are_errors(group: LazyGroup) -> None:
    assert "No such command 'nobody'" in CliRunner().invoke(group, ["nobody"]).output
