"""Import packages that belong to an extra of agent_tools, with an error that says how to install a missing one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "agent-tools-sandbox"


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import a module that an extra of agent_tools installs.

    Raises:
        ModuleNotFoundError: a package is not installed; the message says how to install it.
    """
    try:
        yield
    except ModuleNotFoundError as exc:
        raise ModuleNotFoundError(f"{exc.msg}. It needs an extra: {pip_install(name)}", name=exc.name) from exc


def pip_install(name: str) -> str:
    """Return the command that adds an extra to this installation."""
    editable = "-e " if _record().get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}'{requirement(name)}'"


def requirement(name: str) -> str:
    """Return the requirement of agent_tools with extras, divided by commas, from the source of this installation.

    pip and uv take it. The source is a folder, a repository, or the package index if this installation came from there.
    """
    return requirement_from(_record(), name)


def requirement_from(record: Mapping[str, Any], name: str) -> str:
    """Return the requirement for a parsed `direct_url.json` (PEP 610), which is empty for an index."""
    extras = f"[{name}]" if name else ""
    url, path = record.get("url", ""), unquote(urlsplit(record.get("url", "")).path)
    if vcs := record.get("vcs_info"):
        return f"{DISTRIBUTION}{extras} @ {vcs['vcs']}+{url}@{vcs['commit_id']}"
    if url.startswith("file:") and os.path.exists(path):
        return f"{path}{extras}"
    return f"{DISTRIBUTION}{extras}"


def _record() -> Mapping[str, Any]:
    try:
        record: Mapping[str, Any] = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:  # a folder on the path
        return {}
    return record
