"""The shelf of skills: one copy of each, which outlives no user and is never half there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_tools.errors import InvalidParams
from agent_tools.skills.shelf import MAX_SKILLS, UNUSED_SECONDS, shelved
from tests.skills import skill_folder

OLD = 1_000_000_000


def test_a_folder_is_a_skill_or_holds_some(tmp_path: Path) -> None:
    for name in ("pdf", "docx"):
        skill_folder(tmp_path / "skills" / name)
    (tmp_path / "skills" / "notes").mkdir()
    root = tmp_path / "shelf"
    assert [each.name for each in shelved([tmp_path / "skills"], root)] == ["docx", "pdf"]
    (pdf,) = shelved([str(tmp_path / "skills" / "pdf")], root)
    assert (pdf.path, pdf.warnings) == ("/skills/pdf", ())
    assert shelved([pdf], root) == (pdf,)


def test_a_copy_never_changes_and_has_plain_rights(tmp_path: Path) -> None:
    folder = skill_folder(tmp_path / "m", {"scripts/a.sh": "#!/bin/sh\n", "data": "1"})
    (folder / "data").chmod(0o600)
    former = os.umask(0o077)
    try:
        (before,) = shelved([folder], tmp_path / "shelf")
        (folder / "data").write_text("2")
        (after,) = shelved([folder], tmp_path / "shelf")
    finally:
        os.umask(former)
    assert before.digest != after.digest
    assert [(each.folder / "data").read_text() for each in (before, after)] == ["1", "2"]
    rights = {path: (before.folder / path).stat().st_mode & 0o7777 for path in (".", "scripts", "scripts/a.sh", "data")}
    assert rights == {".": 0o755, "scripts": 0o755, "scripts/a.sh": 0o755, "data": 0o644}
    assert (tmp_path / "shelf").stat().st_mode & 0o777 == 0o700


def test_a_skill_under_another_folder_name_is_a_warning(tmp_path: Path) -> None:
    folder = skill_folder(tmp_path / "m").rename(tmp_path / "other")
    (skill,) = shelved([folder], tmp_path / "shelf")
    assert skill.path == "/skills/m"
    assert "named 'other'" in skill.warnings[0]


def test_folders_that_cannot_be_used_are_errors(tmp_path: Path) -> None:
    root = tmp_path / "shelf"
    one, two = skill_folder(tmp_path / "a" / "m"), skill_folder(tmp_path / "b" / "m", {"x": ""})
    with pytest.raises(InvalidParams, match="Two skills are named 'm'"):
        shelved([one, two], root)
    with pytest.raises(InvalidParams, match="No such file"):
        shelved([tmp_path / "none"], root)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidParams, match=r"has no SKILL\.md"):
        shelved([tmp_path / "empty"], root)
    (one / "SKILL.md").write_text("")
    with pytest.raises(InvalidParams, match=r"/a/m' is not usable. SKILL\.md does not begin"):
        shelved([one], root)
    for number in range(MAX_SKILLS + 1):
        skill_folder(tmp_path / "many" / f"s{number}")
    with pytest.raises(InvalidParams, match="There are 51 skills"):
        shelved([tmp_path / "many"], root)


def test_one_bad_skill_of_a_folder_is_left_out_with_its_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    skill_folder(tmp_path / "all" / "good")
    bad = skill_folder(tmp_path / "all" / "bad")
    (bad / "SKILL.md").write_text("---\nname: bad\ndescription: 'never closed\n---\n")
    assert [each.name for each in shelved([tmp_path / "all"], tmp_path / "shelf")] == ["good"]
    (line,) = caplog.messages
    assert str(bad) in line
    assert "SKILL.md, line 3" in line
    assert "left out" in line
    with pytest.raises(InvalidParams, match="line 3"):
        shelved([bad], tmp_path / "shelf")


def test_a_shelf_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidParams, match="Skills cannot be copied"):
        shelved([skill_folder(tmp_path / "m")], tmp_path / "file" / "shelf")


def test_a_copy_that_was_removed_is_made_again(tmp_path: Path) -> None:
    folder = skill_folder(tmp_path / "m")
    (skill,) = shelved([folder], tmp_path / "shelf")
    (tmp_path / "shelf" / skill.digest).rename(tmp_path / "gone")
    shelved([folder], tmp_path / "shelf")
    assert (skill.folder / "SKILL.md").is_file()


def test_old_copies_go_once_no_process_uses_them(tmp_path: Path) -> None:
    root, mine = tmp_path / "shelf", skill_folder(tmp_path / "mine")
    use = "import sys; from agent_tools.skills.shelf import shelved; from pathlib import Path\n"
    use += "skills = shelved([sys.argv[1]], Path(sys.argv[2]))\n"
    use += "print(skills[0].digest, flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", use, str(skill_folder(tmp_path / "theirs")), str(root)]
    (root / ".part-x").mkdir(parents=True)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        theirs = root / other.stdout.readline().strip()
        for entry in (theirs, root / ".part-x"):
            os.utime(entry, (OLD, OLD))
        (own,) = shelved([mine], root)
        assert theirs.is_dir()
        assert not (root / ".part-x").exists()
        os.utime(own.folder.parent, (OLD, OLD))
        other.kill()
    (mine / "more").touch()
    (newer,) = shelved([mine], root)
    assert {each.name for each in root.iterdir()} == {own.digest, newer.digest}
    assert UNUSED_SECONDS > 3_600


def test_a_shelf_in_the_current_folder_is_mounted_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skill_folder(tmp_path / "m")
    monkeypatch.chdir(tmp_path)
    (skill,) = shelved(["m"], Path("data", "skills"))
    assert skill.folder == tmp_path / "data" / "skills" / skill.digest / "m"
