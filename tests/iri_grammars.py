"""The grammars of IRIs, put off until something is checked by them.

jsonschema imports `rfc3987_syntax` where that is installed, which makes parsers of the grammars at once: a second of
processor time. Kubernetes' client and others import jsonschema, and most tests check no IRI. Those that do check
addresses of plain characters, which fit the grammars and need no parser, for which one takes 20 ms.
"""

from __future__ import annotations

import importlib
import re
import sys
from types import ModuleType

NAME = "rfc3987_syntax"
_PLAIN = re.compile(r"https?://[a-z0-9.-]+(/[a-z0-9._~/-]*)?(#[a-z0-9._~-]*)?", re.IGNORECASE | re.ASCII)


def put_off() -> None:
    """Have the one function that jsonschema takes from the module, which imports it when it is called."""
    if NAME not in sys.modules:
        module = ModuleType(NAME)
        module.is_valid_syntax = is_valid_syntax  # type: ignore[attr-defined]
        sys.modules[NAME] = module


def is_valid_syntax(term: str, value: str) -> bool:
    """Return whether a text fits a grammar, as the module's own function does."""
    if term in ("iri", "iri_reference") and _PLAIN.fullmatch(value):
        return True
    if sys.modules[NAME].__spec__ is None:
        del sys.modules[NAME]
    return bool(importlib.import_module(NAME).is_valid_syntax(term, value))
