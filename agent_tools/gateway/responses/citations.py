"""Links to files of the container in an answer's text, as citations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from urllib.parse import unquote

from agent_tools.models.base import JsonObject

MAX_LINKS = 500  # links in one text that are looked at
MAX_ENDS = 24  # ends of one link that are tried
_START = re.compile(r"(?:sandbox:)?/mnt/data/")
_NAME = re.compile(r"[^\r\n]{1,400}")
_END = re.compile(r"(?=[.,:;!?*_]*(?:[\s()<>\[\]\"'`|。，；：！？、（）【】「」《》“”]|$))")
"""The places at which a name may end. They may also lie inside a name, so the longest existing file is meant."""

FindFile = Callable[[str], "str | None"]
"""The id of the container's file of a name, if there is one."""


def citations(text: str, container_id: str, find: FindFile) -> Iterator[JsonObject]:
    """Yield an annotation for each link to a file that is there; its indexes are those of the link in the text."""
    place = 0
    for _ in range(MAX_LINKS):
        link = _START.search(text, place)
        if link is None:
            return
        place = link.end()
        for name in _names(text, place):
            found = _found(name, find)
            if found:
                place += len(name)
                yield {
                    "type": "container_file_citation",
                    "container_id": container_id,
                    "file_id": found[0],
                    "filename": found[1],
                    "start_index": link.start(),
                    "end_index": place,
                }
                break


def _found(name: str, find: FindFile) -> tuple[str, str] | None:
    """Return the id and the name without folders of the file that a link names, as it stands or encoded as in a URL."""
    for meant in dict.fromkeys((name, unquote(name))):
        if file_id := find(meant):
            return file_id, meant.rsplit("/", 1)[-1]
    return None


def _names(text: str, place: int) -> Iterator[str]:
    """Yield the possible names at a place, the longest first."""
    line = _NAME.match(text, place)
    if line is None:
        return
    ends = []
    for end in _END.finditer(line[0]):
        if end.start():
            ends.append(end.start())
        if len(ends) == MAX_ENDS:
            break
    for last in reversed(ends):
        yield line[0][:last]
