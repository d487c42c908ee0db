"""Variables that the host passes to user code: JSON values, set by a line of Python that the code does not see."""

from __future__ import annotations

import json
import keyword
import unicodedata
from collections.abc import Mapping
from typing import Any

from agent_tools.errors import InvalidParams
from agent_tools.limits import MIB

MAX_BYTES = 16 * MIB  # a request to the kernel has at most 64 MiB


def assignments(variables: Mapping[str, Any]) -> str:
    """Return the code that sets variables.

    Raises:
        InvalidParams: a name is not a Python identifier, a value is not a JSON value, or all have more than MAX_BYTES.
    """
    found: dict[str, Any] = {}
    for given, value in variables.items():
        name = unicodedata.normalize("NFKC", given) if isinstance(given, str) else ""  # as Python reads names
        if not name.isidentifier() or keyword.iskeyword(name):
            raise InvalidParams(f"variables has {given!r:.80}, which is not a Python identifier: rename it.")
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError) as exc:
            raise InvalidParams(
                f"The variable {name} is not a JSON value ({exc}). Write it to a file with write_file; read it there."
            ) from exc
        found[name] = value
    text = repr(json.dumps(found))
    if len(text) > MAX_BYTES:
        raise InvalidParams(
            f"The variables have {len(text):,} bytes as text, more than {MAX_BYTES:,}. Write them to a file with "
            "write_file; read it there."
        )
    own_globals = "(lambda: 0).__globals__"  # the code may have redefined `globals`
    return f"{own_globals}.update(__import__('json').loads({text}))"
