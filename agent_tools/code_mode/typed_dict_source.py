"""The source text of TypedDict classes, as the stubs in the guest show them."""

from __future__ import annotations

import keyword
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Field:
    """A key of a TypedDict; `type` is the text of its annotation, `note` becomes a comment."""

    name: str
    type: str
    is_required: bool = True
    note: str = ""

    @property
    def annotation(self) -> str:
        """Return the text of its annotation, with `NotRequired` if the key can be missing."""
        return self.type if self.is_required else f"NotRequired[{self.type}]"

    @property
    def comment(self) -> str:
        """Return its note as a comment; '' without one."""
        note = one_line(self.note)
        return f"  # {note}" if note else ""


def typed_dict_source(name: str, fields: Iterable[Field], doc: str = "") -> str:
    """Return the definition of a TypedDict; as a call where a key could not be written as a name."""
    fields = list(fields)
    if all(field.name.isidentifier() and not keyword.iskeyword(field.name) for field in fields):
        body = [f"    {docstring_source(one_line(doc))}"] if doc else []
        body += [f"    {field.name}: {field.annotation}{field.comment}" for field in fields]
        return "\n".join([f"class {name}(TypedDict):", *(body or ["    pass"])])
    lines = [f"    {field.name!r}: {field.annotation!r},{field.comment}" for field in fields]
    return "\n".join([f"{name} = TypedDict({name!r}, {{" + (f"  # {one_line(doc)}" if doc else ""), *lines, "})"])


def docstring_source(doc: str) -> str:
    """Return a docstring as a literal; the quotes after several lines are on a line of their own."""
    text = doc.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    text = f'{text[:-1]}\\"' if text.endswith('"') else text
    return f'"""{text}"""' if "\n" not in text else f'"""{text}\n"""'


def one_line(text: str) -> str:
    """Return a text with every run of white space as one space: a comment must stay on its line."""
    return " ".join(text.split())
