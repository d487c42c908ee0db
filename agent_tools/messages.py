"""The messages of a conversation, as values. The shape is Qwen-Agent's `qwen_agent.llm.schema`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Union

SYSTEM = "system"
USER = "user"
ASSISTANT = "assistant"
FUNCTION = "function"
TOOL = "tool"
DEVELOPER = "developer"
ROLES = (SYSTEM, USER, ASSISTANT, FUNCTION, TOOL, DEVELOPER)

CALL_ID = "function_id"
"""The key in a message's `extra` that ties a function's result to its call."""

FIGURES = "figures"
"""The key in a message's `extra` for the paths of the figures that its call drew."""

SERVER_FIELDS = "server_fields"
"""The key in a message's `extra` for fields that only the model's server knows, as it sent them: `message` has those of
the message, `call` those of its call. They go back to the server with the message."""

_KINDS = ("text", "image", "file", "audio", "video")


class _Fields:
    """Lets a value be read like a dict: `m['role']`, `m.get('name')`, `'name' in m`."""

    def __getitem__(self, key: str) -> Any:
        if key not in self.keys():
            raise KeyError(key)
        return getattr(self, key)

    def __contains__(self, key: object) -> bool:
        return key in self.keys() and getattr(self, str(key)) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a field; `default` if it is None or does not exist."""
        value = getattr(self, key) if key in self.keys() else None
        return default if value is None else value

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        """Return the names of the fields."""
        return tuple(each.name for each in fields(cls))  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are set, as plain dicts and lists."""
        return {key: _plain(self[key]) for key in self.keys() if self[key] is not None}

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """Return `to_dict()`, under the name that pydantic models use. All options are ignored."""
        return self.to_dict()


@dataclass(frozen=True)
class FunctionCall(_Fields):
    """A call that a model asks for. `arguments` is the text as the model wrote it, JSON or not."""

    name: str
    arguments: str

    @classmethod
    def of(cls, call: FunctionCall | Mapping[str, Any]) -> FunctionCall:
        """Read a call from a dict; arguments that are not text yet are written as JSON."""
        if isinstance(call, FunctionCall):
            return call
        arguments = call.get("arguments")
        return cls(
            str(call["name"]),
            arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False),
        )


@dataclass(frozen=True)
class ContentItem(_Fields):
    """A part of a message: exactly one of its fields is set. All but `text` are paths, URLs or data: URLs."""

    text: str | None = None
    image: str | None = None
    file: str | None = None
    audio: str | None = None
    video: Any = None

    def __post_init__(self) -> None:
        given = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"A content item is exactly one of {', '.join(_KINDS)}; this has {given or 'none'}.")

    @classmethod
    def of(cls, item: ContentItem | Mapping[str, Any] | str) -> ContentItem:
        """Read an item: a value, text, `{'image': ...}`, or a part in the shape of chat completions."""
        if isinstance(item, ContentItem):
            return item
        if isinstance(item, str):
            return cls(text=item)
        if not isinstance(item, Mapping):
            raise ValueError(f"A content item is text or a dict, not {type(item).__name__}.")
        if item.get("type") == "image_url":
            return cls(image=item["image_url"]["url"] if isinstance(item["image_url"], Mapping) else item["image_url"])
        return cls(**{kind: item[kind] for kind in _KINDS if item.get(kind) is not None})

    @property
    def kind(self) -> str:
        """The name of the field that is set."""
        return next(kind for kind in _KINDS if getattr(self, kind) is not None)

    @property
    def value(self) -> Any:
        """The value of the field that is set."""
        return getattr(self, self.kind)


Content = Union[str, tuple[ContentItem, ...]]


@dataclass(frozen=True)
class Message(_Fields):
    """One message. A model's reply with several calls is several messages, each with its `function_call`.

    `extra` holds all keys without a field of their own; `extra['function_id']` ties a result (role FUNCTION or TOOL) to
    its
    call.
    """

    role: str
    content: Content = ""
    reasoning_content: Content | None = None
    name: str | None = None
    function_call: FunctionCall | None = None
    extra: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"role={self.role!r} is not one of {', '.join(ROLES)}.")

    @classmethod
    def of(cls, message: Message | Mapping[str, Any]) -> Message:
        """Read one message from a dict; unknown keys are kept in `extra`.

        Raises:
            ValueError: its role is unknown, its content is malformed, or it has several calls (see `messages_of`).
        """
        found = list(_read(message))
        if len(found) != 1:
            raise ValueError("The message holds several calls: read it with messages_of().")
        return found[0]

    @property
    def call_id(self) -> str | None:
        """The id of the call that this message makes or answers."""
        return (self.extra or {}).get(CALL_ID)

    @property
    def text(self) -> str:
        """The text of the content, without its images and files."""
        return text_of(self.content)

    @property
    def items(self) -> tuple[ContentItem, ...]:
        """The content as items."""
        if isinstance(self.content, str):
            return (ContentItem(text=self.content),) if self.content else ()
        return self.content


def messages_of(messages: Iterable[Message | Mapping[str, Any]]) -> list[Message]:
    """Read a conversation, in this package's shape or that of chat completions (`tool_calls`, `tool_call_id`).

    Raises:
        ValueError: a message is malformed.
    """
    return [found for message in messages for found in _read(message)]


def text_of(content: Content | None) -> str:
    """Return the text in a content."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(item.text for item in content if item.text is not None)


def _read(message: Message | Mapping[str, Any]) -> Iterator[Message]:
    if isinstance(message, Message):
        yield message
        return
    if not isinstance(message, Mapping):
        raise ValueError(f"A message is a dict or a Message, not {type(message).__name__}.")
    whole = _read_one(message)
    calls = message.get("tool_calls") or ()
    if not calls:
        yield whole
        return
    for index, call in enumerate(calls):
        first = whole if index == 0 else replace(whole, content="", reasoning_content=None)
        extra = {**(whole.extra or {}), CALL_ID: call.get("id")}
        yield replace(first, function_call=FunctionCall.of(call["function"]), extra=extra)


def _read_one(message: Mapping[str, Any]) -> Message:
    known = {*Message.keys(), "tool_calls", "tool_call_id"}
    extra = {key: value for key, value in message.items() if key not in known} | dict(message.get("extra") or {})
    if message.get("tool_call_id"):
        extra[CALL_ID] = message["tool_call_id"]
    call = message.get("function_call")
    return Message(
        role=str(message.get("role")),
        content=_content(message.get("content")),
        reasoning_content=_content(message.get("reasoning_content")) or None,
        name=message.get("name"),
        function_call=FunctionCall.of(call) if call else None,
        extra=extra or None,
    )


def _content(content: object) -> Content:
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, (list, tuple)):
        return tuple(ContentItem.of(item) for item in content)
    raise ValueError(f"content is of type {type(content).__name__}: give text or a list of items.")


def _plain(value: Any) -> Any:
    if isinstance(value, _Fields):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value
