"""Values as lines of ASCII: the word of their kind, and each field after one space. Standard library only.

Kinds are dataclasses, whose fields are whole numbers, truth values (0 or 1), seconds, texts (UTF-8 in base64) and
choices (Literal).
"""

import base64
import re
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, get_args

MAX_LINE = 4096  # bytes
MAX_TEXT = 3000  # bytes of a text in a line
MAX_NUMBER = 2**31  # of a generation, a code or a signal: more is not believed
T = TypeVar("T")
Writer = Callable[[Any], str]
Reader = Callable[[str], Any]  # raises ValueError


def words(*kinds: Any) -> "dict[str, Any]":
    """Return kinds by their words: EndBranch -> end_branch."""
    return {_form(kind)[0]: kind for kind in kinds}


def write(value: Any) -> bytes:
    """Return a value as a line."""
    kind: Any = type(value)
    word, fields_of = _form(kind)
    return " ".join((word, *(write_field(getattr(value, name)) for name, write_field, _ in fields_of))).encode()


def read(line: bytes, kinds: "dict[str, type[T]]") -> T:
    """Parse an untrusted line.

    Raises:
        ValueError: it is none of these kinds.
    """
    word, *texts = line[:MAX_LINE].decode("ascii", "replace").split(" ")
    kind: Any = kinds.get(word)
    if kind is None or len(texts) != len(_form(kind)[1]):
        raise ValueError("no such line")
    value: T = kind(*(read_field(text) for (_, _, read_field), text in zip(_form(kind)[1], texts)))
    return value


@cache
def _form(kind: Any) -> "tuple[str, list[tuple[str, Writer, Reader]]]":
    """Return the word of a kind, and the name, the writer and the reader of each field."""
    word = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()
    return word, [(each.name, *(_TYPES.get(each.type) or _choice(get_args(each.type)))) for each in fields(kind)]


def _choice(choices: "tuple[str, ...]") -> "tuple[Writer, Reader]":
    return str, lambda text: choices[choices.index(text)]


def _number(text: str) -> int:
    """Parse a whole number of reasonable length."""
    if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) >= MAX_NUMBER:
        raise ValueError("not such a number")
    return int(text)


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode("utf-8", "replace")[:MAX_TEXT]).decode()


def _text(word: str) -> str:
    return base64.b64decode(word, validate=True).decode("utf-8", "replace")


_TYPES: "dict[Any, tuple[Writer, Reader]]" = {
    int: (str, _number),
    bool: (lambda value: str(int(value)), lambda text: bool(("0", "1").index(text))),
    float: ("{:.3f}".format, float),
    str: (_encoded, _text),
}
