"""Parts of a request that a server may refuse: it is asked again without them. Pure.

Servers check `include` against a list of values, and OpenAI refuses to encrypt reasoning of models that have none.
Reasoning as text is taken by servers of open models only, encrypted reasoning by the server that made it.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from agent_tools.models.base import JsonObject
from agent_tools.models.dialect.lesson import MAX_READ_CHARS
from agent_tools.models.wire import is_encrypted

ENCRYPTED = "reasoning.encrypted_content"
THOUGHTS = "reasoning_text"
FOREIGN = "foreign"
"""Encrypted reasoning that the server cannot read, in one conversation: it was made with another account or key."""
_OF_INCLUDE = re.compile(
    r"\binclude\b|reasoning\.encrypted_content|encrypted content is not support|not support.{0,40}encrypted"
)
_OF_FOREIGN = re.compile(r"encrypted.{0,200}could not be (?:verified|decrypted|parsed)", re.DOTALL)


def without_parts(request: JsonObject, parts: Collection[str]) -> JsonObject:
    """Return a request without these parts of it."""
    drops_encrypted, drops_thoughts = ENCRYPTED in parts or FOREIGN in parts, THOUGHTS in parts
    items = [
        item
        for item in request["input"]
        if item["type"] != "reasoning" or not (drops_encrypted if is_encrypted(item) else drops_thoughts)
    ]
    include = [each for each in request["include"] if each not in parts]
    rest = {name: value for name, value in request.items() if name != "include"}
    return {**rest, "input": items, **({"include": include} if include else {})}


def refused_part(request: JsonObject, refused: frozenset[str], words: str) -> str | None:
    """Return the part that a refusal may be about, by the server's words; None if nothing is left to leave out."""
    sent, said = without_parts(request, refused), words[:MAX_READ_CHARS].lower()
    left = [part for part in (THOUGHTS, ENCRYPTED, FOREIGN) if without_parts(request, refused | {part}) != sent]
    for part, pattern in ((FOREIGN, _OF_FOREIGN), (ENCRYPTED, _OF_INCLUDE)):
        if part in left and pattern.search(said):
            return part
    return next((part for part in left if part != FOREIGN), None)
