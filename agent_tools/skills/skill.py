"""A skill as a value, and the text that tells a model which skills there are."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent_tools.engines.engine import GUEST_SKILLS

MANIFEST = "SKILL.md"
MAX_DESCRIPTION, MAX_COMPATIBILITY = 1_024, 200  # characters of each that a model is shown
_UNSEEN = ("Cc", "Cf", "Cs")  # control, format and surrogate characters, such as those that turn the writing direction
_INTRODUCTION = (
    "Skills are folders of instructions and scripts for certain tasks. When a task fits one, read its SKILL.md first, "
    "whole, and follow it. Paths in it count from its own folder. Write results to the working directory, never into "
    "that folder. Skills here:"
)


@dataclass(frozen=True)
class Manifest:
    """The frontmatter of a SKILL.md, checked.

    Attributes:
        name: 1 to 64 of a-z, 0-9 and single hyphens.
        description: what it is for and when to use it, in one line.
        compatibility: what it says that it needs, in one line; nothing is installed or allowed for it.
        warnings: what breaks the format, and does not matter here.
        frontmatter: all of it, as it is written.
    """

    name: str
    description: str
    compatibility: str = ""
    warnings: tuple[str, ...] = ()
    frontmatter: Mapping[object, object] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Skill(Manifest):
    """A skill that is mounted read-only at `path` in the sandbox.

    Attributes:
        folder: the copy of it on the host, in a folder that is named by the digest; it never changes.
        lock: keeps the copy from being removed, as long as the skill is referred to.
    """

    folder: Path
    lock: object = field(default=None, compare=False, repr=False)

    @property
    def digest(self) -> str:
        """SHA-256 of all its files, with their paths and rights."""
        return self.folder.parent.name

    @property
    def path(self) -> str:
        """The folder of the skill in the sandbox."""
        return f"{GUEST_SKILLS}/{self.name}"

    def files(self) -> list[str]:
        """Return the paths of its files in its folder, in order."""
        return sorted(each.relative_to(self.folder).as_posix() for each in self.folder.rglob("*") if each.is_file())

    def __fspath__(self) -> str:
        return str(self.folder)


def one_line(text: str) -> str:
    """Return a text as one line without characters that are not seen."""
    return " ".join("".join(c for c in text if c.isspace() or unicodedata.category(c) not in _UNSEEN).split())


def with_catalogue(description: str, skills: Iterable[Skill]) -> str:
    """Return the description of a tool, with a line for each skill at its end, with its description and path."""
    return with_entries(
        description, [entry(each.name, each.description, each.path, each.compatibility) for each in skills]
    )


def with_entries(description: str, entries: Sequence[str]) -> str:
    """Return the description of a tool, with results of `entry` at its end."""
    return "\n".join([f"{description}\n\n{_INTRODUCTION}", *entries]) if entries else description


def without_catalogue(description: str, skills: Sequence[Skill]) -> str:
    """Return the description of a tool without the skills at its end."""
    return description.removesuffix(with_catalogue("", skills))


def entry(name: str, description: str, path: str, compatibility: str = "") -> str:
    """Return a model's line on a skill, whose texts are in one line; `path` is its folder."""
    needs = f" [{_cut(compatibility, MAX_COMPATIBILITY)}]" if compatibility else ""
    return f"- {name}: {_cut(description, MAX_DESCRIPTION)}{needs} ({path.rstrip('/')}/{MANIFEST})"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
