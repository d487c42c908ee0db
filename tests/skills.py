"""Folders of skills, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

MANIFEST = b"---\nname: m\ndescription: Does things.\n---\nBody\n"


def skill_folder(folder: Path, files: Mapping[str, str] | None = None, description: str = "Does things.") -> Path:
    """Make a skill of the folder's name, with these files beside its SKILL.md."""
    manifest = f"---\nname: {folder.name}\ndescription: {description}\n---\nRun `python scripts/total.py FILE`.\n"
    for path, text in {"SKILL.md": manifest, **(files or {})}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder
