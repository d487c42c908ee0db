import os
from pathlib import Path

import pytest

from agent_tools.guest.pid1.login_names import NAME, write_names


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders as the image has them: `base` with the tables, `etc` with links into a home that is empty."""
    for folder in ("base", "etc"):
        (tmp_path / folder).mkdir()
    for table in ("passwd", "group"):
        (tmp_path / "base" / table).write_text("root:x:0:0:root:/root:/bin/bash\n")
        (tmp_path / "etc" / table).symlink_to(tmp_path / "home" / ".names" / table)
    for variable in ("USER", "LOGNAME"):
        monkeypatch.setenv(variable, "given")
    return tmp_path


def _lay(image: Path) -> None:
    write_names(str(image / "etc"), str(image / "base"))


def test_a_line_is_added_for_ids_that_have_none(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 54_321)
    monkeypatch.setattr(os, "getgid", lambda: 54_322)
    monkeypatch.setenv("HOME", "/home/sandbox")
    _lay(image)
    root = "root:x:0:0:root:/root:/bin/bash\n"
    assert (image / "etc/passwd").read_text() == root + f"{NAME}:x:54321:54322:{NAME}:/home/sandbox:/bin/bash\n"
    assert (image / "etc/group").read_text() == root + f"{NAME}:x:54322:\n"


def test_ids_that_have_a_name_keep_it(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a rootless engine the sandbox is uid 0."""
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(os, "getgid", lambda: 0)
    _lay(image)
    assert (image / "etc/passwd").read_text() == (image / "base/passwd").read_text()


def test_tables_that_are_no_links_are_left_alone(image: Path) -> None:
    (image / "etc/passwd").unlink()
    (image / "etc/passwd").write_text("an image of one's own")
    _lay(image)
    assert (image / "etc/passwd").read_text() == "an image of one's own"


def test_an_image_without_tables_of_its_own_starts(image: Path) -> None:
    (image / "base/passwd").unlink()
    _lay(image)
    assert not (image / "etc/passwd").exists()
    assert (image / "etc/group").exists()


def test_the_environment_names_the_user_unless_it_was_given(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGNAME")
    monkeypatch.setattr(os, "getuid", lambda: 0)
    _lay(image)
    assert (os.environ["USER"], os.environ["LOGNAME"]) == ("given", "root")
