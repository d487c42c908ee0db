"""Separates reasoning between tags from the answer while a reply arrives. Pure.

Theory of operation. A model's reasoning comes at the beginning of its reply, between a pair of tags of its training.
A server with a parser for it sends it in a field of its own; any other one sends it as text. The splitter is

    start    the first characters may still become an opening tag: nothing is let through yet
    inside   an opening tag has come: text is reasoning, but for a tail that may be the beginning of the closing tag
    between  the closing tag has come: white space is left out, as next to any tag, and more reasoning may follow
    over     everything else is the answer, but for end marks at its end

A reply of gpt-oss has sections, each with a heading and an end mark: reasoning, remarks before calls, the answer. After
the end of a remark the splitter is `between` again.

Every character is looked at a bounded number of times, however the reply is cut. Tags in the middle of an answer are
text: a model that writes about tags must not lose what it says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from agent_tools.errors import InvalidParams
from agent_tools.models.base import ReasoningDelta, TextDelta

# A server's dialect as a value: the needs of one server, and profiles that users name.

System = Literal["anywhere", "first"]
Reasoning = Literal["reasoning_content", "reasoning", "none"]
MaxTokens = Literal["max_tokens", "max_completion_tokens"]
Format = Literal["last", "always"]
Thinking = Literal["tagged", "opened", "text"]
Blanks = Literal["left_out", "filled"]
Limit = Literal["optional", "required"]
Roles = Literal["free", "merged"]
Empty = Literal["text", "none"]
Ids = Literal["any", "nine"]
Pictures = Literal["shown", "none"]
Calling = Literal["native", "prompted"]
Choice = Literal["any", "auto"]
Calls = Literal["parallel", "single"]


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
        pictures: `none`, the figures that code drew are not shown to the model. A user's own pictures are always sent.
        tools: `prompted`, for a server without tool calling: the prompt offers the functions, and calls are read from
            the text of the reply; see prompted.py.
        choice: `auto`, a `tool_choice` that forces a call is sent as `auto`: for servers that take nothing else.
        calls: `single`, several calls of one message are sent as a message each, with its result after it.
        left_out: fields that the server refuses, and a reply does without; `tools.` begins a keyword of tools' schemas.
        fixed: fields of the profile that were given, and are not learned.
    """

    system: System = "anywhere"
    reasoning: Reasoning = "reasoning_content"
    blanks: Blanks = "left_out"
    max_tokens: MaxTokens = "max_tokens"
    format: Format = "last"
    thinking: Thinking = "tagged"
    limit: Limit = "optional"
    roles: Roles = "free"
    empty: Empty = "text"
    ids: Ids = "any"
    pictures: Pictures = "shown"
    tools: Calling = "native"
    choice: Choice = "any"
    calls: Calls = "parallel"
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


_SECTION_END = "<|end|>"
_STARTS = ("", "<|start|>assistant")
PAIRS = (
    *(("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>")),
    *((f"{start}<|channel|>analysis<|message|>", _SECTION_END) for start in _STARTS),
    ("<|channel>thought", "<channel|>"),
)
"""Opening and closing tags, as models of Qwen, DeepSeek and others, Mistral, ByteDance, OpenAI, Google write them."""

HEADINGS = tuple(f"{start}<|channel|>{name}<|message|>" for start in _STARTS for name in ("final", "commentary"))
"""Headings of sections that are answers."""

END_MARKS = (
    *(
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|endoftext|>",
        "<|end_of_text|>",
    ),
    *("<end_of_turn>", "<turn|>", "<｜end▁of▁sentence｜>"),
)
"""Tokens with which models end a reply. They are left out at its end."""

_LONGEST_MARK = max(map(len, END_MARKS))
MAX_BLANK_CHARS = 200  # characters of white space that are held back while a tag may still come
_State = Literal["start", "inside", "between", "over"]
Said = TextDelta | ReasoningDelta


class ThinkingSplitter:
    """Splits the pieces of a reply's text into reasoning and answer.

    With `opened`, a reply begins inside the first pair of tags, whose opening stands in the prompt; one that has the
    opening all the same is read alike. With `text`, all is answer.
    """

    def __init__(self, mode: Thinking = "tagged") -> None:
        self._mode = mode
        self._state: _State = "start"
        self._closing = PAIRS[0][1]
        self._pending = ""
        self._marks: list[str] = []  # whole end marks, with white space between them, that may be at the end
        self._has_thought = False
        self._has_said = False
        self._in_section = False
        self._separator = ""

    @property
    def is_thinking(self) -> bool:
        """Return whether reasoning continues: a tag was opened, and no answer has begun."""
        return self._state in ("inside", "between")

    def feed(self, text: str) -> Iterator[Said]:
        """Take a piece, and yield the parts that are certain."""
        if self._mode == "text":
            yield from _answer(text)
            return
        self._pending += text
        seen: tuple[_State, int] | None = None
        while seen != (self._state, len(self._pending)):
            seen = (self._state, len(self._pending))
            if self._state == "inside":
                yield from self._think()
            elif self._state == "over":
                yield from self._say()
            else:
                self._start()

    def finish(self) -> Iterator[Said]:
        """Yield what is held back at the reply's end, unless it is only white space."""
        if self._state == "inside" and self._pending:
            yield ReasoningDelta(self._rest())
        elif self._pending.strip():  # blank lines are no answer: many models write some before a call
            yield from _answer(self._separator + "".join(self._marks) + self._rest())

    def _start(self) -> None:
        begun = self._pending.lstrip()
        if self._state == "between":
            self._pending = begun
        otherwise: _State = "inside" if self._mode == "opened" and self._state == "start" else "over"
        pair = next((pair for pair in PAIRS if begun.startswith(pair[0])), None)
        heading = next((heading for heading in HEADINGS if begun.startswith(heading)), "")
        if len(self._pending) - len(begun) > MAX_BLANK_CHARS:
            self._state = otherwise
        elif pair:
            self._state, self._closing = "inside", pair[1]
            self._pending = begun[len(pair[0]) :].lstrip()
        elif heading:
            self._state, self._in_section = "over", True
            self._pending = begun[len(heading) :]
        elif begun and not any(tag.startswith(begun) for tag in (*HEADINGS, *(pair[0] for pair in PAIRS))):
            self._state, self._in_section = otherwise, False

    def _think(self) -> Iterator[Said]:
        before, closing, after = self._pending.partition(self._closing)
        if closing:
            self._state, self._pending, before = "between", after, before.rstrip()
        else:
            end = _start_of(before, self._closing)
            before, self._pending = before[:end], before[end:]
        if not self._has_thought:
            before = before.lstrip()
        if before:
            self._has_thought = True
            yield ReasoningDelta(before)

    def _say(self) -> Iterator[Said]:
        text, end, after = self._pending.partition(_SECTION_END) if self._in_section else (self._pending, "", "")
        start, partial = _marks_at(text, are_pending=bool(self._marks))
        if end and partial < len(text):  # no beginning of a mark after all
            start = partial = len(text)
        if start:
            yield TextDelta(self._separator + "".join(self._marks) + text[:start])
            self._separator, self._marks, self._has_said = "", [], True
        self._marks += filter(None, [text[start:partial]])
        self._pending = text[partial:]
        if end:
            self._state, self._pending, self._marks = "between", after, []
            self._separator = "\n\n" if self._has_said else ""

    def _rest(self) -> str:
        rest, self._pending = self._pending, ""
        return rest


def _answer(text: str) -> Iterator[Said]:
    if text:
        yield TextDelta(text)


def _marks_at(text: str, *, are_pending: bool) -> tuple[int, int]:
    """Return the places from which a text consists of end marks, and of the beginning of one; its length for none.

    With `are_pending`, end marks stand right before the text.
    """
    place = text.rfind("<", -_LONGEST_MARK)
    partial = place if place >= 0 and any(mark.startswith(text[place:]) for mark in END_MARKS) else len(text)
    if partial < len(text) and text[partial:] in END_MARKS:
        partial = len(text)
    start = end = partial
    while True:
        while end and text[end - 1].isspace():
            end -= 1
        mark = next((mark for mark in END_MARKS if text.endswith(mark, 0, end)), "")
        if not mark:
            return (0 if are_pending and not end else start), partial
        start = end = end - len(mark)


def _start_of(text: str, tag: str) -> int:
    """Return the place from which a text's end may be the beginning of a tag, with the white space before it."""
    longest = min(len(text), len(tag) - 1)
    end = len(text) - next((length for length in range(longest, 0, -1) if tag.startswith(text[-length:])), 0)
    start = max(0, end - MAX_BLANK_CHARS)
    seen = text[start:end].rstrip()
    return start + len(seen) if seen or not start else end
