"""The files in a conversation: their list for the tools, and their names in the text for the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import unquote, urlsplit

from agent_tools.machine.folder import safe_name
from agent_tools.messages import USER, ContentItem, Message
from agent_tools.phrases import Language

_PHRASES = {
    ("en", "file"): "(Uploaded [file]({}))",
    ("en", "image"): "(Uploaded [image]({}))",
    ("zh", "file"): "（上传了 [文件]({})）",
    ("zh", "image"): "（上传了 [图片]({})）",
}


def files_of(messages: Iterable[Message]) -> tuple[str, ...]:
    """Return the files and pictures that users gave by path or URL, each once, in order."""
    found = (item for message in messages if message.role == USER for item in message.items if _is_file(item))
    return tuple(dict.fromkeys(str(item.value) for item in found))


def named(message: Message, language: Language) -> Message:
    """Return a user's message with its files named in the text; pictures stay in it for models that read images."""
    files = [item for item in message.items if _is_file(item)]
    if message.role != USER or not files:
        return message
    note = " ".join(_PHRASES[language, item.kind].format(_name(str(item.value))) for item in files)
    rest = tuple(item for item in message.items if item.kind != "file")
    if all(item.kind == "text" for item in rest):
        return replace(message, content=f"{note} {message.text}".rstrip())
    return replace(message, content=(ContentItem(text=f"{note} "), *rest))


def _is_file(item: ContentItem) -> bool:
    return item.kind == "file" or (item.kind == "image" and not str(item.value).startswith("data:"))


def _name(source: str) -> str:
    """Return the expected name of a file for the tools, before the file is fetched."""
    parts = urlsplit(source) if "://" in source else None
    return safe_name(unquote(parts.path) or parts.hostname or "file" if parts else source)
