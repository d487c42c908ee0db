"""An execution as Markdown, with the headings that prompts and front ends of Qwen-Agent's tool expect."""

from __future__ import annotations

import re
from collections.abc import Callable

from agent_tools.results.blocks import NOTHING, block, blocks_of, file_notes
from agent_tools.results.execution import Execution, Picture


def markdown(execution: Execution, url_of: Callable[[str], str] = str) -> str:
    """Return an execution as Markdown. `url_of` turns a saved picture's path into its link.

    The blocks are those of outputs.py; a figure is `![fig-001](url)`, numbered from 1 in each call. A picture that is
    not saved is noted.
    """

    def link(number: int, picture: Picture) -> str:
        if picture.path:
            return f"![fig-{number:03d}]({_link_target(url_of(picture.path))})"
        return block("note", f"fig-{number:03d} could not be saved.")

    blocks = blocks_of(execution.outputs, execution.pictures_in, link)
    shown = "\n\n".join(str(each) for each in blocks) or NOTHING
    notes = file_notes(execution.files)
    return f"{notes}\n\n{shown}" if notes else shown


def _link_target(url: str) -> str:
    """Return a path or URL with characters escaped that could end the Markdown link."""
    return re.sub(r"[\x00-\x20()<>\\\x7f]", lambda found: f"%{ord(found[0]):02X}", url)
