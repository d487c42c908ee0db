"""An agent's own phrases are in the language of its user."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from agent_tools.messages import SYSTEM, USER, Message

Language = Literal["en", "zh"]

_CHINESE = re.compile("[\u4e00-\u9fff]")
_KANA = re.compile("[\u3040-\u30ff]")


def language_of(messages: Iterable[Message]) -> Language:
    """Return 'zh' if the user's last text is Chinese, else 'en'.

    Without a user's text, the system's last text decides.
    """
    written = [(message.role, message.text) for message in messages if message.role in (USER, SYSTEM)]
    texts = [text for role, text in written if role == USER and text.strip()] or [text for _, text in written]
    last = texts[-1] if texts else ""
    return "zh" if _CHINESE.search(last) and not _KANA.search(last) else "en"
