"""The fields that describe a new container, in any request."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal, Union

from pydantic import AfterValidator, Field, Tag

from agent_tools.gateway.requests.fields import RequestModel, by_type, wrong, wrong_type
from agent_tools.skills.skill import one_line

MAX_FILES = 100  # files that a new container is given
MAX_DOMAINS = 100  # that one may reach
TOO_MANY_FILES = f"At most {MAX_FILES} files can be copied into a new container; send others later."
Needed = Annotated[str, Field(min_length=1)]


def _of_texts(values: list[Any]) -> list[Any]:
    if not all(isinstance(each, str) for each in values):
        raise wrong_type("an array of strings")
    return values


def _unsupported(value: Any) -> Any:
    if value:
        raise wrong("'{name}' is not supported here.", "unsupported_parameter")
    return value


OneLine = Annotated[Needed, AfterValidator(one_line)]
Texts = Annotated[list[Any], AfterValidator(_of_texts)]
Unsupported = Annotated[Any, AfterValidator(_unsupported)]


def _files(ids: list[str]) -> list[str]:
    if len(ids) > MAX_FILES:
        raise wrong(TOO_MANY_FILES, None)
    return list(dict.fromkeys(ids))


def _domains(listed: list[str]) -> list[str]:
    if not 0 < len(listed) <= MAX_DOMAINS:
        raise wrong(f"Between 1 and {MAX_DOMAINS} domains can be listed.", None)
    return listed


class _NoNetwork(RequestModel):
    allowed_domains: tuple[str, ...] = ()


class _Allowlist(RequestModel):
    domain_secrets: Unsupported = None
    allowed_domains: Annotated[Texts, AfterValidator(_domains)] = Field(default=[], validate_default=True)


_Network = Annotated[
    Union[Annotated[_NoNetwork, Tag("\0disabled")], Annotated[_Allowlist, Tag("\0allowlist")]],
    by_type("Invalid value: expected 'disabled' or 'allowlist'."),
]


class SkillReference(RequestModel):
    """An uploaded skill: its default version, the version of a number, or the `latest`."""

    skill_id: Needed
    version: Annotated[str, Field(max_length=9)] = ""

    @property
    def key(self) -> str:
        """The reference as the client sent it, even if `latest` means another version now."""
        return f"{self.skill_id}@{self.version}"


class _ZipSource(RequestModel):
    type: Literal["base64"]
    media_type: Literal["application/zip"]
    data: Needed


class InlineSkill(RequestModel):
    """A skill in the request itself."""

    name: Needed
    description: Needed
    source: _ZipSource

    @property
    def key(self) -> str:
        """The digest of the skill's data."""
        return hashlib.sha256(self.source.data.encode()).hexdigest()


GivenSkill = Annotated[
    Union[Annotated[SkillReference, Tag("\0skill_reference")], Annotated[InlineSkill, Tag("\0inline")]],
    by_type("Invalid value: expected 'skill_reference' or 'inline'."),
]


class LocalSkill(RequestModel):
    """A skill on the client's machine, in whose shell the model reads it; `path` is its folder there."""

    name: OneLine
    description: OneLine
    path: OneLine


class ContainerFields(RequestModel):
    """A new container: memory tier, ids of files that are put into it, skills, and the domains that it may reach."""

    memory_limit: str | None = None
    skills: Annotated[list[GivenSkill], Field(max_length=20)] = Field(default_factory=list)
    file_ids: Annotated[Texts, AfterValidator(_files)] = Field(default_factory=list)
    network_policy: _Network | None = None

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains, none without a policy that lists some."""
        return tuple(self.network_policy.allowed_domains) if self.network_policy else ()


def scrubbed(value: Any) -> Any:
    """Replace lone surrogates in a JSON value in place, since they cannot be encoded; return the value."""
    found = [value]
    left: list[Any] = [found]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            for key in [key for key in part if not key.isascii()]:
                part[_whole(key)] = part.pop(key)
        for key, each in part.items() if isinstance(part, dict) else enumerate(part):
            if isinstance(each, str):
                part[key] = each if each.isascii() else _whole(each)
            elif isinstance(each, (list, dict)):
                left.append(each)
    return found[0]


def _whole(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
