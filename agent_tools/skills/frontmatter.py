"""The frontmatter of a SKILL.md, as https://agentskills.io/specification has it, from bytes that may be hostile.

A skill is an instruction to the model, so all of it is data here: it grants no rights (`allowed-tools` is not read),
and its texts become one line without invisible characters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import yaml

from agent_tools.errors import InvalidParams
from agent_tools.skills.skill import MANIFEST, MAX_DESCRIPTION, Manifest, one_line

MAX_FRONTMATTER = 16 * 1024  # bytes
_NAME = re.compile(r"(?!-)(?!.*--)[a-z0-9-]{1,64}(?<!-)")
_FRONTMATTER = re.compile(rb"(?:\xef\xbb\xbf)?---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_BAD_YAML = (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class _Loader(yaml.SafeLoader):
    """Reads plain values. An alias is an error: a few of them can stand for billions of nodes.

    It is found while nodes are composed, which ends at Python's recursion limit: to parse 16 KiB of brackets takes a
    minute.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias")
        return super().compose_node(parent, index)


def read_manifest(data: bytes, folder: str = "") -> Manifest:
    """Return the frontmatter of a SKILL.md; another name than that of its `folder` is a warning.

    Raises:
        InvalidParams: there is none, or it lacks a usable name or description.
    """
    match = _FRONTMATTER.match(data[: MAX_FRONTMATTER + 64])
    if not match:
        raise InvalidParams(
            f"{MANIFEST} does not begin with frontmatter: give YAML of at most {MAX_FRONTMATTER // 1024} KiB between "
            "two lines of ---."
        )
    try:
        found = yaml.load(match[1].decode(), _Loader)  # noqa: S506  (a SafeLoader)
    except _BAD_YAML as exc:
        reason = " ".join(str(exc).split())
        raise InvalidParams(f"The frontmatter of {MANIFEST} is no plain YAML in UTF-8: {reason:.200}") from None
    if not isinstance(found, Mapping):
        raise InvalidParams(f"The frontmatter of {MANIFEST} is no mapping: give lines such as `name: pdf`.")
    return _checked(found, folder)


def _checked(found: Mapping[object, object], folder: str) -> Manifest:
    name, description, compatibility = (found.get(each) for each in ("name", "description", "compatibility"))
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidParams(f"name={name!r:.80} is not usable: give 1 to 64 of a-z, 0-9 and single hyphens.")
    line = one_line(description) if isinstance(description, str) else ""
    if not line:
        raise InvalidParams(f"The skill {name!r} has no description: give 1 to {MAX_DESCRIPTION:,} characters.")
    needs = one_line(compatibility) if isinstance(compatibility, str) else ""
    warnings = []
    if folder not in ("", name):
        warnings.append(f"the folder is named {folder!r}, and not as the skill")
    if len(line) > MAX_DESCRIPTION:
        warnings.append(f"the description has {len(line):,} characters: a model is shown the first {MAX_DESCRIPTION:,}")
    return Manifest(name, line, needs, tuple(warnings), found)
