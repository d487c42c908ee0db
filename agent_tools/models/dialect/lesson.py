"""The lesson of a refusal: the change that a server wants after a 400, read from its message. Pure, of limited cost.

Each lesson answers a sentence that a server is known to say, and applies only to something that was sent. A request
that is refused for another reason teaches nothing. Sources: OpenAI's `unsupported_parameter`, the chat templates of
Qwen 3.5 and later, of Gemma and of Mistral, DeepSeek's thinking mode, the validation of Anthropic, Groq, Cerebras,
Mistral and vLLM.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from agent_tools.messages import ASSISTANT, DEVELOPER, SYSTEM, TOOL
from agent_tools.models.base import Json
from agent_tools.models.dialect.phrasing import BY_NAME, OF_TOOLS, REASONING, phrased
from agent_tools.models.dialect.profile import UpstreamProfile

_NEEDED = frozenset(
    ("type", "function", "name", "description", "parameters", "properties", "items", "required", "enum")
)


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
    refused = frozenset(f"{OF_TOOLS}{name}" for name in used if re.search(rf"['\"`:] ?{re.escape(name)}\b", said))
    return profile.learned(left_out=profile.left_out | refused) if refused else None


def _used_keywords(value: Any) -> Iterator[str]:
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, dict):
            for name, inner in each.items():
                yield name
                inner = list(inner.values()) if name in BY_NAME and isinstance(inner, dict) else inner
                yield from _used_keywords(inner) if isinstance(inner, (dict, list)) else ()


def _names(said: str, name: str) -> bool:
    """Return whether a message names a field, and not only a longer name that contains it."""
    return re.search(rf"(?<![a-z_]){name.replace('_', '_?')}(?![a-z_])", said) is not None
