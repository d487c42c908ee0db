"""Cuts what is too long before it is sent, so that honest code never meets the host's message limits.

A courtesy: the host trusts none of it and has limits of its own.
"""

from typing import Any

from jupyter_client.session import Session

MAX_MESSAGE_BYTES = 12 * 1024 * 1024  # one message, all parts
MAX_MESSAGE_MARKS = 400_000  # commas and opening brackets of its content: what makes JSON expensive to read
MAX_TEXT_CHARS = 256 * 1024  # text/plain of a display or result, and one traceback


class BoundedSession(Session):
    """The kernel's session, sending messages of bounded size."""

    def serialize(self, msg: dict[str, Any], ident: Any = None) -> list[bytes]:
        """Serialise a message; one that is too large is sent as a note of what it was."""
        content = msg.get("content")
        if isinstance(content, dict):
            _shorten(content)
        try:
            parts = super().serialize(msg, ident)
        except UnicodeEncodeError:
            parts = super().serialize({**msg, "content": _encodable(content)}, ident)
        if _is_too_large(parts):
            note = f"[{_describe(content)} left out: {sum(map(len, parts)):,} bytes are too much for one message]"
            parts = super().serialize(
                {**msg, "content": _replacement(content if isinstance(content, dict) else {}, note), "metadata": {}},
                ident,
            )
        return parts  # type: ignore[no-any-return]


def _encodable(value: Any) -> Any:
    """The same value, with lone surrogates, which UTF-8 does not have, written as escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, (list, tuple)) else value


def _is_too_large(parts: list[bytes]) -> bool:
    if sum(map(len, parts)) > MAX_MESSAGE_BYTES:
        return True
    content = parts[-1]
    return len(content) > MAX_MESSAGE_MARKS and sum(map(content.count, (b",", b"[", b"{"))) > MAX_MESSAGE_MARKS


def _describe(content: Any) -> str:
    data = content.get("data") if isinstance(content, dict) else None
    return " and ".join(data) if isinstance(data, dict) and data else "a message"


def _replacement(content: Any, note: str) -> dict[str, Any]:
    """The same content with its large parts replaced."""
    small: dict[str, Any] = {
        key: value for key, value in content.items() if isinstance(value, (int, float, bool, type(None)))
    }
    for key in ("status", "name", "ename", "evalue", "execution_state"):
        if isinstance(content.get(key), str):
            small[key] = content[key][:1000]
    if "data" in content:
        small.update(data={"text/plain": note}, metadata={}, transient=content.get("transient", {}))
    if "text" in content:
        small["text"] = note
    if "traceback" in content:
        small["traceback"] = [note]
    return small


def _shorten(content: dict[str, Any]) -> None:
    data = content.get("data")
    if isinstance(data, dict) and isinstance(data.get("text/plain"), str):
        content["data"] = {**data, "text/plain": _cut(data["text/plain"])}
    lines = content.get("traceback")
    if isinstance(lines, list) and sum(map(len, map(str, lines))) > MAX_TEXT_CHARS:
        content["traceback"] = [_cut("\n".join(map(str, lines)))]
    if isinstance(content.get("evalue"), str):
        content["evalue"] = _cut(content["evalue"])


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT_CHARS:
        return text
    half = MAX_TEXT_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
