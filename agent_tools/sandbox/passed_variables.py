"""Variables that the host passes to user code: JSON values, set by a line of Python that the code does not see."""

from __future__ import annotations

import json
import keyword
from collections.abc import Mapping
from typing import Any

from agent_tools.errors import InvalidParams


def assignments(variables: Mapping[str, Any]) -> str:
    """Return the code that sets variables.

    Raises:
        InvalidParams: a name is not a Python identifier, or a value is not a JSON value.
    """
    for name, value in variables.items():
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise InvalidParams(f"variables has {name!r:.80}, which is not a Python identifier: rename it.")
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError) as exc:
            raise InvalidParams(
                f"The variable {name} is not a JSON value ({exc}). Write it to a file with write_file; read it there."
            ) from exc
    own_globals = "(lambda: 0).__globals__"  # the code may have redefined `globals`
    return f"{own_globals}.update(__import__('json').loads({json.dumps(dict(variables))!r}))"
