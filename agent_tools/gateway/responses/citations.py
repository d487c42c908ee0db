"""Links to files of the container in an answer's text, as annotations. Pure but for the look at what is there."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

_LINK = re.compile(r"(?:sandbox:)?/mnt/data/([^\s()<>\[\]\"'`]+)")

FindFile = Callable[[str], "str | None"]
"""The id of the container's file of a name, if there is one."""


def citations(text: str, container_id: str, find: FindFile) -> list[dict[str, Any]]:
    """One annotation for each link to a file that is there; the indexes are those of the link in the text."""
    found = []
    for link in _LINK.finditer(text):
        name = link[1].rstrip(".,;:!?*_")
        end = link.start(1) + len(name)
        file_id = find(name) or find(unquote(name))
        if file_id:
            found.append(
                {
                    "type": "container_file_citation",
                    "container_id": container_id,
                    "file_id": file_id,
                    "filename": unquote(name).rsplit("/", 1)[-1],
                    "start_index": link.start(),
                    "end_index": end,
                }
            )
    return found
