"""Cuts what is too long before it is sent, so that honest code never meets the host's message limit.

A courtesy: the host trusts none of it and has limits of its own.
"""

from typing import Any

from jupyter_client.session import Session

MAX_MIME_CHARS = 12 * 1024 * 1024  # one MIME entry of a display; a larger picture is replaced by a note
MAX_TEXT_CHARS = 1024 * 1024  # text/plain of a display or result, and one traceback


class BoundedSession(Session):
    """The kernel's session, sending bounded displays and tracebacks."""

    def send(self, stream: Any, msg_or_type: Any, content: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Send a message whose displays and tracebacks are bounded."""
        if isinstance(msg_or_type, dict):
            _bound_content(msg_or_type["header"]["msg_type"], msg_or_type["content"])
        elif isinstance(content, dict):
            _bound_content(msg_or_type, content)
        return super().send(stream, msg_or_type, content, *args, **kwargs)


def _bound_content(kind: str, content: dict[str, Any]) -> None:
    if kind in {"execute_result", "display_data", "update_display_data"}:
        content["data"] = _bound_bundle(content.get("data") or {})
    elif kind in {"error", "execute_reply"} and content.get("traceback"):
        content["traceback"] = _bound_lines(content["traceback"])
        content["evalue"] = _cut(str(content.get("evalue", "")), MAX_TEXT_CHARS)


def _bound_bundle(data: dict[str, Any]) -> dict[str, Any]:
    bounded: dict[str, Any] = {}
    for mime, value in data.items():
        if mime == "text/plain":
            bounded[mime] = _cut(str(value), MAX_TEXT_CHARS)
        elif isinstance(value, (str, bytes)) and len(value) > MAX_MIME_CHARS:
            note = f"[{mime} of {len(value)} bytes left out: larger than {MAX_MIME_CHARS}]"
            bounded["text/plain"] = f"{bounded.get('text/plain', '')}\n{note}".lstrip()
        else:
            bounded[mime] = value
    return bounded


def _bound_lines(lines: list[str]) -> list[str]:
    text = "\n".join(lines)
    return lines if len(text) <= MAX_TEXT_CHARS else [_cut(text, MAX_TEXT_CHARS)]


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
