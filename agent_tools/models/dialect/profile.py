"""A server's dialect as a value: the needs of one server, and profiles that users name."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from agent_tools.errors import InvalidParams

Thinking = Literal["tagged", "opened", "text"]


@dataclass(frozen=True)
class UpstreamProfile:
    """A server's dialect. The defaults are what most servers take.

    Attributes:
        system: `first`, every system message is part of the leading one; `anywhere`, later ones stay where they are.
        reasoning: the field of an assistant's message that its reasoning goes back in; `none`, it stays here.
        blanks: `filled`, calls whose reasoning is not known are sent with a blank in its place.
        max_tokens: the name of the limit on a reply's tokens.
        format: `last`, a `response_format` goes out only where no call can come; `always`, also beside tools.
        thinking: `tagged`, a reply that opens with a tag such as `<think>` is reasoning up to its end; `opened`, so is
            one that lacks the opening tag, since the prompt has it; `text`, tags are text.
        limit: `required`, a request without a limit on tokens is sent with one of DEFAULT_LIMIT.
        roles: `merged`, for chat templates in which user and assistant take turns: system messages are part of the
            user's first message, messages of one role in a row are one, and an assistant speaks between a tool's result
            and a user.
        empty: `none`, the content of an assistant's message that has only calls is null and not an empty text.
        ids: `nine`, ids of calls are sent as nine letters and digits.
        pictures: `none`, the figures that code drew are not shown to the model, nor other pictures right after a tool's
            result; a note says so where the message has a text. A user's own pictures elsewhere are always sent.
        tools: `prompted`, for a server without tool calling: the prompt offers the functions, and calls are read from
            the text of the reply; see phrasing.py. `declared`, earlier calls are text in requests without functions.
        choice: `auto`, a `tool_choice` that forces a call is sent as `auto`: for servers that take nothing else.
        calls: `single`, several calls of one message are sent as a message each, with its result after it.
        left_out: fields that the server refuses, and a reply does without; `tools.` begins a keyword of tools' schemas.
        fixed: fields of the profile that were given, and are not learned.
    """

    system: Literal["anywhere", "first"] = "anywhere"
    reasoning: Literal["reasoning_content", "reasoning", "none"] = "reasoning_content"
    blanks: Literal["left_out", "filled"] = "left_out"
    max_tokens: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    format: Literal["last", "always"] = "last"
    thinking: Thinking = "tagged"
    limit: Literal["optional", "required"] = "optional"
    roles: Literal["free", "merged"] = "free"
    empty: Literal["text", "none"] = "text"
    ids: Literal["any", "nine"] = "any"
    pictures: Literal["shown", "none"] = "shown"
    tools: Literal["native", "declared", "prompted"] = "native"
    choice: Literal["any", "auto"] = "any"
    calls: Literal["parallel", "single"] = "parallel"
    left_out: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()

    def learned(self, **wants: Any) -> UpstreamProfile:
        """Return the profile with what was learned; fixed fields stay as they are."""
        return replace(self, **{name: value for name, value in wants.items() if name not in self.fixed})


AUTO = "auto"
_GIVEN = tuple(field.name for field in fields(UpstreamProfile) if field.name not in ("left_out", "fixed"))
_NAMED: dict[str, dict[str, str]] = {
    AUTO: {},
    "openai": {
        "system": "anywhere",
        "reasoning": "none",
        "max_tokens": "max_completion_tokens",
        "format": "always",
        "thinking": "text",
    },
    "deepseek": {"reasoning": "reasoning_content", "blanks": "filled"},
    "qwen": {"system": "first"},
}
PROFILES = tuple(_NAMED)


def read_profile(text: str) -> UpstreamProfile:
    """Read a profile from a name, from `field=value` pairs, or both: `qwen,thinking=opened`.

    What is not given is learned.

    Raises:
        InvalidParams: a name, field or value is unknown; the message lists the unknown ones.
    """
    given: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, is_pair, value = (each.strip() for each in part.partition("="))
        if not is_pair:
            given.update(_named(name))
            continue
        if name not in _GIVEN:
            raise InvalidParams(f"A profile has no {name!r:.40}; its fields are {', '.join(_GIVEN)}.")
        known = get_args(get_type_hints(UpstreamProfile)[name])
        if value not in known:
            raise InvalidParams(f"{name}={value!r:.40} is unknown in a profile: give one of {', '.join(known)}.")
        given[name] = value
    wants: dict[str, Any] = dict(given)
    return UpstreamProfile(**wants, fixed=frozenset(given))


def _named(name: str) -> dict[str, str]:
    if name not in _NAMED:
        known = f"give one of {', '.join(PROFILES)}, or pairs such as system=first"
        raise InvalidParams(f"No upstream profile is called {name!r:.40}: {known}.")
    return _NAMED[name]
