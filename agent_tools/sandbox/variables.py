"""Variables from the host to the code: JSON values, set by a line of Python that the code does not see."""

from __future__ import annotations

import json
import keyword
from collections.abc import Mapping
from typing import Any

from agent_tools.errors import InvalidParams


def assignments(variables: Mapping[str, Any]) -> str:
    """Return the code that sets variables.

    Raises:
        InvalidParams: a name is no name of Python's, or a value is no JSON value.
    """
    for name, value in variables.items():
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise InvalidParams(f"variables has {name!r:.80}, which is no name that code could use.")
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError) as exc:
            raise InvalidParams(
                f"The variable {name} is no JSON value ({exc}). Write it to a file with write_file, and read it there."
            ) from exc
    own_globals = "(lambda: 0).__globals__"  # whatever the code calls `globals`
    return f"{own_globals}.update(__import__('json').loads({json.dumps(dict(variables))!r}))"
