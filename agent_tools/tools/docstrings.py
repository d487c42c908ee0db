"""A docstring's summary and its descriptions of arguments, in Google's, NumPy's or Sphinx's style."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from docstring_parser import ParseError, common, google, numpydoc, rest

_MORE_ARGUMENTS = ("Keyword Args", "Keyword Arguments", "参数")
_MORE_SECTIONS = ("Note", "Notes", "References", "See Also", "Todo", "Warning", "Warnings", "返回", "示例")
_WIDE_COLON = re.compile("^(参数|返回|示例)：$", re.MULTILINE)


@dataclass(frozen=True)
class Docstring:
    """The parts of a docstring that describe a tool. `arguments` maps a name to its description on one line."""

    summary: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)


def read_docstring(text: str | None) -> Docstring:
    """Read a docstring in the style that matches most sections; the text before the first one is the summary."""
    text = _WIDE_COLON.sub(r"\1:", inspect.cleandoc(text or ""))
    found = max(_readings(text), key=lambda reading: len(reading.meta))
    arguments = {each.arg_name.lstrip("*"): " ".join((each.description or "").split()) for each in found.params}
    return Docstring((found.description or "").strip(), arguments)


def _readings(text: str) -> Iterator[common.Docstring]:
    sections = [
        *google.DEFAULT_SECTIONS,
        *(google.Section(name, "param", google.SectionType.MULTIPLE) for name in _MORE_ARGUMENTS),
        *(google.Section(name, name, google.SectionType.SINGULAR) for name in _MORE_SECTIONS),
    ]
    for parse in (google.GoogleParser(sections).parse, numpydoc.parse, rest.parse):
        with suppress(ParseError):  # not this style
            yield parse(text)
