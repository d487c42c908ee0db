"""The lessons of a refusal: what a server that answered 400 wants instead, read off its words. Pure, and bounded.

Each lesson answers a sentence that a server is known to say, and applies only to something that was sent. A request
that is refused for another reason teaches nothing. Sources: OpenAI's `unsupported_parameter`, the chat templates of
Qwen 3.5 and later, of Gemma and of Mistral, DeepSeek's thinking mode, the validation of Anthropic, Groq, Cerebras,
Mistral and vLLM.
"""

from __future__ import annotations

import re

from agent_tools.messages import ASSISTANT, DEVELOPER, SYSTEM
from agent_tools.models.base import Json
from agent_tools.models.dialect.phrasing import phrased
from agent_tools.models.dialect.profile import UpstreamProfile

REFUSALS = (400, 422)
"""The statuses of a request that would have to be another one."""
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
    r"system message must be|system messages? (?:is |are )?only (?:allowed )?at|unexpected (?:message )?role"
    r"|unknown (?:message )?role|only one system|multiple system|conversation roles must"
)
_ONE_VALUE = re.compile(r"only the default")
_SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
"""Fields that reasoning models take with their default value only: a reply does without them, too."""
_AFTER_TOOL = re.compile(r"role ['\"`]?user['\"`]? after role ['\"`]?tool")
_IN_TURNS = re.compile(r"system role (?:is )?not supported|roles? must alternate|alternate user/assistant")
_EMPTY = re.compile(
    r"content blocks? must be non-?empty|content (?:must|should|can|may) ?not be empty|non-empty content"
)
_NINE = re.compile(r"length of 9\b")
_NO_PICTURES = re.compile(
    r"not a multimodal model|(?:does not|doesn't|do not) support (?:image|vision|multimodal)|at most 0 image"
    r"|image (?:input|content)s? (?:is|are) not|no endpoints found that support image|image_url.{0,40}not supported"
)
_NO_TOOLS = re.compile(
    r"enable-auto-tool-choice|tool-call-parser|requires --jinja"
    r"|(?:does not|doesn't|do not|not) support (?:the )?(?:use of )?(?:tool|function)"
    r"|no endpoints found that support tool"
    r"|(?:tool|function)[ -]?(?:s|use|calls?|calling)?`? (?:is|are) not (?:support|enabl|avail)"
)
_NOT_FORCED = re.compile(
    r"tool_choice.{0,80}(?:not support|only support|must be .?auto)|only .{0,12}auto.{0,60}tool_choice"
)
_MISSING = re.compile(r"missing|required|must be (?:passed|provided)|must contain|passed back")


def lesson(profile: UpstreamProfile, request: Json, words: str) -> UpstreamProfile | None:
    """Return what a refusal teaches about a server; None if it teaches nothing new.

    Args:
        profile: what the server was taken for.
        request: the request it refused, before it was phrased.
        words: its message.
    """
    sent, said = phrased(request, profile), words[:MAX_READ_CHARS].lower()
    taught = profile.learned(tools="prompted") if "tools" in sent and lacks_tools(words) else None
    if taught is None and sent.get("tool_choice") not in (None, "none", "auto") and _NOT_FORCED.search(said):
        taught = profile.learned(choice="auto")
    taught = taught or _of_limits(profile, sent, said) or _of_roles(profile, sent, said)
    taught = taught or _of_reasoning(profile, sent, said) or _of_messages(profile, said)
    taught = taught or _of_optional(profile, sent, said)
    return taught if taught and phrased(request, taught) != sent else None


def lacks_tools(words: str) -> bool:
    """Return whether a server says that it, or its model, has no tool calling."""
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
    is_told = _MISPLACED.search(said) or (DEVELOPER in said and "role" in said)
    if is_told and (SYSTEM in later or any(each.get("role") == DEVELOPER for each in sent["messages"])):
        return profile.learned(system="first")
    return profile.learned(roles="merged") if _IN_TURNS.search(said) else None


def _of_messages(profile: UpstreamProfile, said: str) -> UpstreamProfile | None:
    """Read how the messages of an assistant and of its tools have to look."""
    if _NINE.search(said) and "call" in said:
        return profile.learned(ids="nine")
    if _EMPTY.search(said):
        return profile.learned(empty="none")
    return profile.learned(pictures="none") if _NO_PICTURES.search(said) else None


def _of_reasoning(profile: UpstreamProfile, sent: Json, said: str) -> UpstreamProfile | None:
    """Read which field for reasoning is refused, or asked for."""
    spoken = [each for each in sent["messages"] if each.get("role") == ASSISTANT]
    was_sent = any(profile.reasoning in each for each in spoken)
    if was_sent and _names(said, profile.reasoning) and _REFUSED.search(said):
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


def _names(said: str, name: str) -> bool:
    """Tell whether a message names a field, and not a longer name that it is part of."""
    return re.search(rf"(?<![a-z_]){name}(?![a-z_])", said) is not None
