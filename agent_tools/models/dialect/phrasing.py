"""Converts a request to one server's dialect: the same conversation and fields. Pure.

A request comes with an assistant's reasoning in `reasoning_content`, the limit on tokens under either name, and all
system messages where they were said; see profile.py for what becomes of them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from agent_tools.messages import ASSISTANT, DEVELOPER, SYSTEM, TOOL, USER
from agent_tools.models.base import Json, JsonObject
from agent_tools.models.dialect.profile import UpstreamProfile

# Tools for servers that have no tool calling: the prompt offers them, and calls and results are text. Pure.
#
# The model is asked to write a call as `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, the form of the
# Hermes templates, which many open models know from their training. Calls in a reply's text are read where all calls in
# text are: agents/turn/round.py.


RESULT = "<tool_response>"
"""What a message with the results of calls begins with."""
_SHOWN = ("name", "description", "parameters")
_OFFER = """You can call functions. Here is one JSON definition per line:
<tools>
{tools}
</tools>

To call a function, end your reply with a block of this form for each call, and write nothing after it:
<tool_call>
{{"name": "the function's name", "arguments": {{"parameter": "value"}}}}
</tool_call>
The arguments are JSON: write a line break in a text as \\n and a quotation mark as \\". The result of each call is in \
the next message, between <tool_response> and </tool_response>; never write that block yourself. If no call is needed, \
just answer.{forced}"""


def prompted(request: Json) -> JsonObject:
    """Return a request without `tools`, which offers the same functions in its first message."""
    rest = {key: value for key, value in request.items() if key not in ("tools", "tool_choice", "parallel_tool_calls")}
    messages = [*_as_text(request["messages"])]
    tools, choice = request.get("tools") or (), request.get("tool_choice")
    if tools and choice != "none":
        messages = _led(messages, _offer(tools, choice))
    return {**rest, "messages": messages}


def _offer(tools: Iterable[Json], choice: Any) -> str:
    functions = [tool["function"] for tool in tools]
    lines = [json.dumps({key: each[key] for key in _SHOWN if key in each}, ensure_ascii=False) for each in functions]
    forced = "" if choice in (None, "auto") else "\nCall a function now, before you answer."
    if isinstance(choice, dict) and isinstance(choice.get("function"), dict):
        forced = f"\nCall the function {choice['function'].get('name')} now, before you answer."
    return _OFFER.format(tools="\n".join(lines), forced=forced)


def _led(messages: Sequence[JsonObject], offer: str) -> list[JsonObject]:
    first = messages[0] if messages else {}
    if first.get("role") not in (SYSTEM, DEVELOPER):
        return [{"role": SYSTEM, "content": offer}, *messages]
    return [{**first, "content": f"{_text(first.get('content'))}\n\n{offer}"}, *messages[1:]]


def _as_text(messages: Iterable[JsonObject]) -> Iterator[JsonObject]:
    """Yield messages with calls and results as text; the results of one message's calls are one message."""
    for are_results, group in itertools.groupby(messages, lambda each: each.get("role") == TOOL):
        if are_results:
            results = (f"{RESULT}\n{_text(each.get('content'))}\n</tool_response>" for each in group)
            yield {"role": USER, "content": "\n".join(results)}
            continue
        for each in group:
            yield _with_calls(each) if each.get("role") == ASSISTANT and each.get("tool_calls") else each


def _with_calls(message: JsonObject) -> JsonObject:
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    said = [_text(message.get("content"))] if message.get("content") else []
    return {**rest, "content": "\n".join([*said, *(_call(call) for call in message["tool_calls"])])}


def _call(call: Any) -> str:
    function = call["function"] if isinstance(call, dict) and isinstance(call.get("function"), dict) else {}
    arguments = function.get("arguments")
    with suppress(TypeError, ValueError, RecursionError):  # else unchanged
        arguments = json.loads(arguments or "{}")
    written = json.dumps({"name": function.get("name"), "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


def _text(content: Any) -> str:
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))


REASONING = "reasoning_content"
"""The field in which a conversation keeps an assistant's reasoning, whatever a server calls it."""
BLANK = " "
"""Reasoning that is not known: servers that insist on it take an empty string for none."""
DEFAULT_LIMIT = 8_192
"""Tokens of a reply, for servers that want a limit where the client has set none."""
BETWEEN = "I look at the result."
"""Words of an assistant between a tool's result and a user's message, for chat templates that want some there."""
_LIMITS = ("max_tokens", "max_completion_tokens")
_LEADS = (SYSTEM, DEVELOPER)
_OF_TOOLS = "tools."
"""Begins what a profile leaves out of tools' definitions."""
_NEEDED = frozenset(
    ("type", "function", "name", "description", "parameters", "properties", "items", "required", "enum")
)
_NAMED = frozenset(("properties", "$defs", "definitions"))
"""Keywords of JSON Schema whose objects have names as keys."""


def phrased(request: Json, profile: UpstreamProfile) -> JsonObject:
    """Return the request in a server's dialect; the given request is not changed."""
    fields = {name: value for name, value in request.items() if name not in profile.left_out}
    for name in _LIMITS:
        if name in fields and name != profile.max_tokens:
            value = fields.pop(name)
            fields.setdefault(profile.max_tokens, value)
    if profile.limit == "required":
        fields.setdefault(profile.max_tokens, DEFAULT_LIMIT)
    if profile.choice == "auto" and fields.get("tool_choice") not in (None, "none"):
        fields["tool_choice"] = "auto"
    fields["messages"] = _one_leading(request["messages"], profile)
    if keywords := frozenset(name.removeprefix(_OF_TOOLS) for name in profile.left_out if name.startswith(_OF_TOOLS)):
        fields.update({"tools": [_without(tool, keywords) for tool in fields["tools"]]} if "tools" in fields else {})
    return _with_messages(fields, profile)


def _with_messages(fields: JsonObject, profile: UpstreamProfile) -> JsonObject:
    """Return a request with its messages as the server wants them."""
    messages = [_with_reasoning(each, profile) for each in fields["messages"] if not _is_empty(each, profile)]
    if profile.pictures == "none":
        messages = _without_figures(messages)
    if profile.tools == "prompted" or (profile.tools == "declared" and not fields.get("tools")):
        fields = prompted({**fields, "messages": messages})
        messages = fields["messages"]
    if profile.roles == "merged":
        messages = _in_turns(messages)
    if profile.empty == "none":
        messages = [
            {**each, "content": each.get("content") or None} if each.get("tool_calls") else each for each in messages
        ]
    if profile.ids == "nine":
        messages = [_with_short_ids(each) for each in messages]
    if profile.calls == "single":
        messages = list(_one_call_each(messages))
    return {**fields, "messages": messages}


def _one_leading(messages: Sequence[JsonObject], profile: UpstreamProfile) -> list[JsonObject]:
    """Join the system messages at the beginning, or all of them, into one."""
    first = next((n for n, each in enumerate(messages) if each.get("role") not in _LEADS), len(messages))
    leading, rest = list(messages[:first]), list(messages[first:])
    if profile.system == "first":
        leading += [each for each in rest if each.get("role") in _LEADS]
        rest = [each for each in rest if each.get("role") not in _LEADS]
    if not leading:
        return rest
    role = SYSTEM if profile.system == "first" else leading[0]["role"]
    return [{**leading[0], "role": role, "content": _joined([each.get("content") for each in leading])}, *rest]


def _joined(contents: Iterable[Any]) -> Any:
    """Join the contents of messages: texts as paragraphs; if any has parts, all as parts."""
    said = [content for content in contents if content]
    if all(isinstance(content, str) for content in said):
        return "\n\n".join(said)
    if len(said) == 1:
        return said[0]
    parts: list[Any] = []
    for content in said:
        parts += content if isinstance(content, list) else [{"type": "text", "text": content}]
    found = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    texts = [text for text in found if isinstance(text, str)]
    return "\n\n".join(texts) if len(texts) == len(parts) else parts


def _is_empty(message: JsonObject, profile: UpstreamProfile) -> bool:
    """Return whether a message has only reasoning, which is not sent to this server."""
    if message.get("role") != ASSISTANT or REASONING not in message or profile.reasoning != "none":
        return False
    return not message.get("content") and not message.get("tool_calls")


def _with_reasoning(message: JsonObject, profile: UpstreamProfile) -> JsonObject:
    """Put an assistant's reasoning where the server looks for it."""
    if message.get("role") != ASSISTANT:
        return message
    reasoning = message.get(REASONING)
    if profile.blanks == "filled" and message.get("tool_calls") and not reasoning:
        reasoning = message.get(profile.reasoning) or BLANK
    if reasoning is None or (profile.reasoning == REASONING and reasoning == message.get(REASONING)):
        return message
    rest = {name: value for name, value in message.items() if name != REASONING}
    return rest if profile.reasoning == "none" else {**rest, profile.reasoning: reasoning}


def _without_figures(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Leave out the messages that show figures of code: those of a user right after a tool's result."""
    roles = [None, *(each.get("role") for each in messages)]
    return [
        each
        for before, each in zip(roles, messages)
        if not (before == TOOL and each.get("role") == USER and _shows(each))
    ]


def _shows(message: JsonObject) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") == "image_url" for part in content
    )


def _in_turns(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Put messages in the order that strict chat templates want: user, assistant (with its tools' results), user."""
    turns: list[JsonObject] = []
    for each in messages:
        message = {**each, "role": USER} if each.get("role") in _LEADS else each
        role, last = message.get("role"), turns[-1] if turns else {}
        if role == USER and last.get("role") == TOOL:
            turns.append({"role": ASSISTANT, "content": BETWEEN})
            turns.append(message)
        elif role in (USER, ASSISTANT) and role == last.get("role") and not (last.get("tool_calls")):
            turns[-1] = {**last, **message, "content": _joined([last.get("content"), message.get("content")])}
        else:
            turns.append(message)
    return turns


def _one_call_each(messages: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Yield a message for each call, followed by its result, where a message has several calls."""
    place = 0
    while place < len(messages):
        message, place = messages[place], place + 1
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            yield message
            continue
        results = [*itertools.takewhile(lambda each: each.get("role") == TOOL, messages[place:])]
        place += len(results)
        by_id = {each.get("tool_call_id"): each for each in results}
        for number, call in enumerate(calls):
            yield {**message, "content": "" if number else message.get("content"), "tool_calls": [call]}
            if (result := by_id.pop(call.get("id"), None)) is not None:
                yield result
        yield from by_id.values()


def _without(value: Any, keywords: frozenset[str]) -> Any:
    """Return a tool without these keywords of its definition; names of parameters are none."""
    if isinstance(value, list):
        return [_without(each, keywords) for each in value]
    if not isinstance(value, dict):
        return value
    found = {name: each for name, each in value.items() if name.lower() not in keywords}
    maps = {name for name, each in found.items() if isinstance(each, dict)}
    named = {name: {key: _without(each, keywords) for key, each in found[name].items()} for name in _NAMED & maps}
    return {name: named[name] if name in named else _without(each, keywords) for name, each in found.items()}


def _with_short_ids(message: JsonObject) -> JsonObject:
    """Replace the ids of calls and results alike: Mistral takes nine letters and digits only."""
    if "tool_call_id" in message:
        message = {**message, "tool_call_id": _short_id(message["tool_call_id"])}
    if calls := message.get("tool_calls"):
        message = {**message, "tool_calls": [{**call, "id": _short_id(call.get("id"))} for call in calls]}
    return message


def _short_id(id_: Any) -> str:
    return hashlib.sha256(str(id_).encode("utf-8", "surrogatepass")).hexdigest()[:9]


# The lesson of a refusal: the change that a server wants after a 400, read from its message. Pure, with limited cost.
#
# Each lesson answers a sentence that a server is known to say, and applies only to something that was sent. A request
# that is refused for another reason teaches nothing. Sources: OpenAI's `unsupported_parameter`, the chat templates of
# Qwen 3.5 and later, of Gemma and of Mistral, DeepSeek's thinking mode, the validation of Anthropic, Groq, Cerebras,
# Mistral and vLLM.


REFUSALS = (400, 422)
"""The statuses of a request that would have to be another one, where the words do not say so."""
MAX_READ_CHARS = 4_000  # characters of a server's words that are looked at
MAX_LESSONS = 8  # refusals after which a request has failed

OPTIONAL = (
    *("stream_options", "service_tier", "prompt_cache_key", "safety_identifier", "verbosity"),
    *("parallel_tool_calls", "user", "metadata", "reasoning_effort"),
)
"""Fields that a reply does without: a server that refuses one is asked without it."""
_REFUSED = re.compile(
    r"unsupported|not supported|not support|unknown|unrecogni[sz]ed|unexpected|not permitted|not allowed"
    r"|extra_forbidden|extra inputs|extra fields|invalid (?:argument|field|parameter)|does not exist"
)
_OF_A_VALUE = re.compile(
    r"\bvalues?\b|at most|at least|must be|\brange\b|less than|greater than|maximum|minimum|exceed"
    r"|too (?:large|long|many)"
)
"""Words on what a field holds: another request may give it something else, so nothing is learned of the server."""
_MISPLACED = re.compile(
    r"system message must be|system (?:role|messages?) (?:is |are )?only (?:allowed|supported|at)"
    r"|unexpected (?:message )?role"
    r"|(?:unknown|incorrect|invalid) (?:message )?role|only one system|multiple system|conversation roles must"
)
_ROLE = r"['\"`]?(?:system|developer|user|assistant|tool|function)['\"`]?"
_ROLES = re.compile(
    rf"\b(?:only|expected|must be|should be|one of|values are)[^.!\n]{{0,20}}? "
    rf"({_ROLE}(?:(?:,? (?:and|or) |, ?|[/|]){_ROLE}){{1,5}})"
)
"""A list of the roles that a server knows."""
_ONE_VALUE = re.compile(r"only the default")
_SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
"""Fields that reasoning models take with their default value only: a reply does without them, too."""
_AFTER_TOOL = re.compile(r"role ['\"`]?user['\"`]? after role ['\"`]?tool")
_IN_TURNS = re.compile(
    r"system role (?:is )?not supported|roles? must alternate|alternate user/assistant"
    r"|consecutive (?:user |assistant )?messages"
)
_EMPTY = re.compile(
    r"content blocks? must be non-?empty|content:? (?:must|should|can|may) ?not be (?:an )?empty|non-empty content"
    r"|(?:text|content)[^!\n]{0,80} is (?:blank|empty)|at least 1 character[^!\n]{0,80}content"
)
_ONE_CALL = re.compile(
    r"(?:only|single|one)[^.!\n]{0,30} (?:tool|function)[- _]?calls?\b[^.!\n]{0,40}(?:at once|at a time|per)"
    r"|(?:parallel|multiple) (?:tool|function)[- _]?calls? (?:is|are) not"
)
_NINE = re.compile(r"length of 9\b")
_NO_PICTURES = re.compile(
    r"not a multimodal model|(?:does not|doesn't|do not) support (?:image|vision|multimodal)|at most 0 image"
    r"|image (?:input|content)s? (?:is|are) not|no endpoints found that support image|image_url.{0,40}not supported"
)
_NO_TOOLS = re.compile(
    r"enable-auto-tool-choice|tool-call-parser|requires --jinja|extra inputs are not permitted: body\.tools(?![.\w])"
    r"|(?:does not|doesn't|do not|not) support (?:the )?(?:use of )?(?:tool|function)"
    r"|no endpoints found that support tool"
    r"|(?:tool|function)[ -]?(?:s|use|calls?|calling)?`? (?:is|are) not (?:support|enabl|avail)"
)
_UNDECLARED = re.compile(r"toolconfig|without `?tools|must define `?tools")
_NOT_FORCED = re.compile(
    r"tool_choice.{0,80}(?:not support|only support|must be .?auto)|only .{0,12}auto.{0,60}tool_choice"
)
_MISSING = re.compile(r"missing|required|must be (?:passed|provided)|must contain|passed back")


def lesson(profile: UpstreamProfile, request: Json, words: str) -> UpstreamProfile | None:
    """Return the lesson of a server's refusal; None if it has nothing new.

    Args:
        profile: the dialect that is assumed so far.
        request: the request it refused, before it was phrased.
        words: its message.
    """
    sent, said = phrased(request, profile), words[:MAX_READ_CHARS].lower()
    taught = profile.learned(tools="prompted") if "tools" in sent and lacks_tools(words) else None
    if "tools" not in sent and _UNDECLARED.search(said):
        taught = profile.learned(tools="declared")
    if taught is None and sent.get("tool_choice") not in (None, "none", "auto") and _NOT_FORCED.search(said):
        taught = profile.learned(choice="auto")
    taught = taught or _of_limits(profile, sent, said) or _of_roles(profile, sent, said)
    taught = taught or _of_reasoning(profile, sent, said) or _of_messages(profile, said)
    taught = taught or _of_optional(profile, sent, said) or _of_tools(profile, sent, said)
    return taught if taught and phrased(request, taught) != sent else None


def lacks_tools(words: str) -> bool:
    """Return whether a server's message says that it, or its model, has no tool calling."""
    return _NO_TOOLS.search(words[:MAX_READ_CHARS].lower()) is not None


def _of_limits(profile: UpstreamProfile, sent: Json, said: str) -> UpstreamProfile | None:
    if profile.max_tokens not in sent and _names(said, profile.max_tokens) and _MISSING.search(said):
        return profile.learned(limit="required")
    for refused, wanted in (("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")):
        if refused in sent and profile.max_tokens == refused and _names(said, refused) and _REFUSED.search(said):
            return None if _OF_A_VALUE.search(said) else profile.learned(max_tokens=wanted)
    return None


def _of_roles(profile: UpstreamProfile, sent: Json, said: str) -> UpstreamProfile | None:
    if _AFTER_TOOL.search(said):
        return profile.learned(roles="merged")
    later = [each.get("role") for each in sent["messages"][1:]]
    roles = {each.get("role") for each in sent["messages"]}
    listed = _ROLES.search(said) if "role" in said or DEVELOPER in said else None
    refused = {role for role in roles if isinstance(role, str) and role not in listed[1]} if listed else set()
    if refused & {TOOL, "function"}:
        return profile.learned(tools="prompted")
    is_lead = bool(refused & {SYSTEM, DEVELOPER})
    is_told = is_lead or _MISPLACED.search(said) or (DEVELOPER in said and "role" in said)
    if is_told and (SYSTEM in later or (DEVELOPER in roles and not _IN_TURNS.search(said))):
        return profile.learned(system="first")
    return profile.learned(roles="merged") if is_lead or _IN_TURNS.search(said) else None


def _of_messages(profile: UpstreamProfile, said: str) -> UpstreamProfile | None:
    """Read the required form of messages of an assistant and of its tools."""
    if _NINE.search(said) and "call" in said:
        return profile.learned(ids="nine")
    if _ONE_CALL.search(said):
        return profile.learned(calls="single")
    if _EMPTY.search(said):
        return profile.learned(empty="none")
    return profile.learned(pictures="none") if _NO_PICTURES.search(said) else None


def _of_reasoning(profile: UpstreamProfile, sent: Json, said: str) -> UpstreamProfile | None:
    """Read which field for reasoning is refused, or asked for."""
    spoken = [each for each in sent["messages"] if each.get("role") == ASSISTANT]
    was_sent = any(profile.reasoning in each for each in spoken)
    if was_sent and any(_names(said, name) for name in (profile.reasoning, REASONING)) and _REFUSED.search(said):
        return profile.learned(reasoning="reasoning" if profile.reasoning == "reasoning_content" else "none")
    wanted = next((name for name in ("reasoning_content", "reasoning") if _names(said, name)), "")
    if spoken and wanted and _MISSING.search(said):
        return profile.learned(reasoning=wanted, blanks="filled")
    return None


def _of_optional(profile: UpstreamProfile, sent: Json, said: str) -> UpstreamProfile | None:
    if _ONE_VALUE.search(said):
        refused = frozenset(name for name in _SAMPLING if name in sent and _names(said, name))
        return profile.learned(left_out=profile.left_out | refused) if refused else None
    if not _REFUSED.search(said) or _OF_A_VALUE.search(said):
        return None
    refused = frozenset(name for name in OPTIONAL if name in sent and _names(said, name))
    return profile.learned(left_out=profile.left_out | refused) if refused else None


def _of_tools(profile: UpstreamProfile, sent: Json, said: str) -> UpstreamProfile | None:
    """Read which keyword of a tool's definition is refused, such as one of JSON Schema."""
    if "tools" not in sent or not _REFUSED.search(said):
        return None
    used = {name.lower() for name in _used_keywords(sent["tools"])} - _NEEDED
    refused = frozenset(f"{_OF_TOOLS}{name}" for name in used if re.search(rf"['\"`:] ?{re.escape(name)}\b", said))
    return profile.learned(left_out=profile.left_out | refused) if refused else None


def _used_keywords(value: Any) -> Iterator[str]:
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, dict):
            for name, inner in each.items():
                yield name
                inner = list(inner.values()) if name in _NAMED and isinstance(inner, dict) else inner
                yield from _used_keywords(inner) if isinstance(inner, (dict, list)) else ()


def _names(said: str, name: str) -> bool:
    """Return whether a message names a field, and not only a longer name that contains it."""
    return re.search(rf"(?<![a-z_]){name.replace('_', '_?')}(?![a-z_])", said) is not None
