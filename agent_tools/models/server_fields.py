"""Fields of a reply that only its server knows, put together from its chunks, to be sent back as they are. Pure.

Gemini wants the `thought_signature` in `extra_content` of a call back with the call, OpenRouter its
`reasoning_details`, LiteLLM the signed `thinking_blocks` of Claude. Nothing here reads what they mean.

Theory of operation. Of a field that comes again the last value counts. A list of blocks comes in pieces: a piece
joins an earlier block with its `index` and type; without an index it joins the last block, if that has its type and
no signature yet. Texts of a block are joined, and of its other fields the last value counts. Pieces of one chunk are
blocks of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

SERVER_FIELDS_KNOWN = ("reasoning_details", "thinking_blocks", "extra_content", "provider_specific_fields")
"""Fields that servers of models want back with a message or a call."""
REASONING_ITEMS = "reasoning_items"
"""Among these fields: the items of reasoning, before a message or a call, that a server of responses has encrypted."""
MAX_CHARS = 512 * 1024  # of the JSON of all such fields of a reply, as they come; if there are more, none is sent back
_TEXTS = ("text", "thinking", "summary", "data")
_ENDS = ("signature", "data")
_Block = dict[str, Any]


class ServerFields:
    """Takes the fields of each chunk of a reply: of its message (None), and of its calls, by their indices."""

    def __init__(self) -> None:
        self._fields: dict[int | None, dict[str, Any]] = {}
        self._texts: dict[tuple[int, str], tuple[_Block, list[str]]] = {}  # of blocks in pieces
        self._by_index: dict[tuple[int | None, str, object, str], _Block] = {}
        self._left = MAX_CHARS

    def of(self, holder: int | None) -> dict[str, Any]:
        """Return all fields of a message or a call, at the reply's end; none if there is too much of them."""
        for (_, name), (block, pieces) in self._texts.items():
            block[name] = "".join(pieces)
        self._texts = {}
        return self._fields.get(holder, {})

    def add(self, holder: int | None, fields: Mapping[str, Any]) -> None:
        """Take the fields of a chunk."""
        for name, value in fields.items():
            if self._left >= 0:
                self._left -= len(name) + _size(value)
            if self._left < 0:
                self._fields, self._texts, self._by_index = {}, {}, {}
                return
            known = self._fields.setdefault(holder, {})
            if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
                self._add_blocks(holder, name, value)
            else:
                known[name] = value

    def _add_blocks(self, holder: int | None, name: str, pieces: list[_Block]) -> None:
        blocks = self._fields[holder].get(name)
        if not isinstance(blocks, list):
            blocks = self._fields[holder][name] = []
        last = blocks[-1] if blocks else None
        for piece in pieces:
            kind, index = str(piece.get("type")), piece.get("index")
            key = (holder, name, index, kind) if isinstance(index, (int, str)) else None
            block = self._by_index.get(key) if key else last if _goes_on(last, kind) else None
            if block is not None:
                self._join(block, piece)
                continue
            blocks.append(dict(piece))
            last = None
            if key:
                self._by_index[key] = blocks[-1]

    def _join(self, block: _Block, piece: _Block) -> None:
        for name, value in piece.items():
            if name in _TEXTS and isinstance(value, str) and isinstance(block.get(name), str):
                self._texts.setdefault((id(block), name), (block, [block[name]]))[1].append(value)
            elif value is not None:
                block[name] = value


def _goes_on(block: _Block | None, kind: str) -> bool:
    return block is not None and str(block.get("type")) == kind and not any(block.get(name) for name in _ENDS)


def _size(value: Any) -> int:
    try:
        return len(json.dumps(value))
    except (ValueError, RecursionError):
        return MAX_CHARS + 1
