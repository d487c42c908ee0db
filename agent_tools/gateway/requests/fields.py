"""Reads the fields of requests with pydantic models; an error names the wrong field by its path.

A null counts as a missing field, an unknown field is ignored, and no value is converted: "1" is not a number.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, Union

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    FailFast,
    Field,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from agent_tools.gateway.requests.failures import ApiError, invalid, missing
from agent_tools.skills.skill import one_line

MAX_NOTES, MAX_NOTE_NAME, MAX_NOTE = 16, 64, 512  # pairs of metadata, characters of a name and of a value
MAX_FILES = 100  # files that a new container is given
MAX_DOMAINS = 100  # that one may reach
_MISSING = ("missing", "string_too_short", "too_short")
_TYPES = {
    "string_type": "a string",
    "bool_type": "a boolean",
    "int_type": "an integer",
    "float_type": "a number",
    "dict_type": "an object",
    "model_type": "an object",
    "list_type": "an array",
}
"""What was expected, by the kind of error."""
_BOUNDS = {"greater_than_equal": "ge", "less_than_equal": "le"}
_WRONG_TYPE, _WRONG_KIND, _NO_CODE = "wrong_type", "wrong_kind", "no_code"  # errors of ours
_Model = TypeVar("_Model", bound="Given")


class Given(BaseModel):
    """The base of all models of requests."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, (dict, Mapping)) or None not in given.values():
            return given
        return {name: value for name, value in given.items() if value is not None}


def read(model: type[_Model], given: Any, path: str = "") -> _Model:
    """Read an object of a request; `path` names it in errors.

    Raises:
        ApiError: 400; `param` names the field.
    """
    try:
        return model.model_validate(given)
    except ValidationError as exc:
        raise _failure(exc.errors(include_url=False)[0], path) from None


def _failure(error: ErrorDetails, path: str) -> ApiError:
    """Return the error for clients."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    names = [each for each in error["loc"] if not str(each).startswith("\0")]
    param = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in [path, *names] if each != "")[1:]
    if kind == _WRONG_KIND and isinstance(value, dict):
        kind, value, param = "literal_error", value.get("type"), f"{param}.type"
        if value in (None, ""):
            return missing(param)
    if kind in _MISSING:
        return missing(param)
    if kind == "literal_error" and not isinstance(value, str):
        kind = "string_type"
    if wanted := error["msg"] if kind == _WRONG_TYPE else "an object" if kind == _WRONG_KIND else _TYPES.get(kind):
        got = type(value).__name__
        return invalid(f"Invalid type for '{param}': expected {wanted}, but got {got} instead.", param, "invalid_type")
    if kind in _BOUNDS:
        return out_of_bounds(param, value, context[_BOUNDS[kind]], is_below=kind == "greater_than_equal")
    if error["type"] == "literal_error":
        words = ", ".join(re.findall(r"'([^']*)'", context["expected"]))
        return invalid(f"Invalid value for '{param}': expected one of {words}.", param, "invalid_value")
    message = error["msg"].replace("{param}", param).replace("{name}", str(names[-1] if names else ""))
    codes = {"literal_error": "invalid_value", _NO_CODE: None}
    return invalid(message, param, codes.get(kind, kind))


def out_of_bounds(param: str, value: float, bound: float, *, is_below: bool) -> ApiError:
    """Return the error for a number outside its limits."""
    sign, code = (">=", "below_min") if is_below else ("<=", "above_max")
    message = f"Invalid '{param}': expected a value {sign} {bound:g}, but got {value!r:.20} instead."
    return invalid(message, param, f"integer_{code}_value")


def wrong(message: str, code: str | None = "invalid_value") -> PydanticCustomError:
    """Return the error that a validator raises; `{param}` and `{name}` in the message mean the field."""
    return PydanticCustomError(code or _NO_CODE, message)


def wrong_type(wanted: str) -> PydanticCustomError:
    """Return the error that a validator raises for a value of the wrong type."""
    return PydanticCustomError(_WRONG_TYPE, wanted)


def at_most(characters: int, what: str) -> AfterValidator:
    """Return the check of a text's length; `what` begins the sentence of the error."""

    def check(text: str) -> str:
        if len(text) > characters:
            raise wrong(f"{what} has at most {characters:,} characters.")
        return text

    return AfterValidator(check)


def by_shape(wanted: str, code: str = _WRONG_TYPE) -> Discriminator:
    """Choose a model of a union by the value's shape: one of the tags TEXT, OBJECT and ARRAY."""
    return Discriminator(_shape, custom_error_type=code, custom_error_message=wanted)


def by_type(message: str) -> Discriminator:
    """Choose a model of a union by the object's `type`, whose values are the tags, each after a NUL."""
    return Discriminator(_type, custom_error_type=_WRONG_KIND, custom_error_message=message)


TEXT, OBJECT, ARRAY = Tag("\0str"), Tag("\0dict"), Tag("\0list")


def _shape(value: Any) -> str:
    return f"\0{type(value).__name__}"


def _type(value: Any) -> str:
    return f"\0{value.get('type')}" if isinstance(value, dict) else "\0"


def _of_texts(values: list[Any]) -> list[Any]:
    if not all(isinstance(each, str) for each in values):
        raise wrong_type("an array of strings")
    return values


def _notes(notes: dict[str, Any]) -> dict[str, Any]:
    is_good = all(isinstance(text, str) and len(text) <= MAX_NOTE for text in notes.values())
    if not is_good or len(notes) > MAX_NOTES or any(len(each) > MAX_NOTE_NAME for each in notes):
        bounds = f"at most {MAX_NOTES} pairs, names of {MAX_NOTE_NAME} characters and texts of {MAX_NOTE}"
        raise wrong(f"Invalid '{{param}}': expected {bounds}.")
    return notes


def _unsupported(value: Any) -> Any:
    if value:
        raise wrong("'{name}' is not supported here.", "unsupported_parameter")
    return value


Objects = Annotated[list[dict[str, Any]], FailFast()]
Needed = Annotated[str, Field(min_length=1)]
OneLine = Annotated[Needed, AfterValidator(one_line)]
Count = Annotated[int, Field(ge=1, le=2**53)]
Texts = Annotated[list[Any], AfterValidator(_of_texts)]
Notes = Annotated[dict[str, Any], AfterValidator(_notes)]
Unsupported = Annotated[Any, AfterValidator(_unsupported)]


# The fields that describe a new container, in any request.


def _files(ids: list[str]) -> list[str]:
    if len(ids) > MAX_FILES:
        raise wrong(f"At most {MAX_FILES} files can be copied into a new container; send others later.", None)
    return list(dict.fromkeys(ids))


def _domains(listed: list[str]) -> list[str]:
    if not 0 < len(listed) <= MAX_DOMAINS:
        raise wrong(f"Between 1 and {MAX_DOMAINS} domains can be listed.", None)
    return listed


class _NoNetwork(Given):
    allowed_domains: tuple[str, ...] = ()


class _Allowlist(Given):
    domain_secrets: Unsupported = None
    allowed_domains: Annotated[Texts, AfterValidator(_domains)] = Field(default=[], validate_default=True)


_Network = Annotated[
    Union[Annotated[_NoNetwork, Tag("\0disabled")], Annotated[_Allowlist, Tag("\0allowlist")]],
    by_type("Invalid value: expected 'disabled' or 'allowlist'."),
]


class SkillReference(Given):
    """An uploaded skill: its default version, the version of a number, or the `latest`."""

    skill_id: Needed
    version: Annotated[str, Field(max_length=9)] = ""

    @property
    def key(self) -> str:
        """The reference as the client sent it, even if `latest` means another version now."""
        return f"{self.skill_id}@{self.version}"


class _ZipSource(Given):
    type: Literal["base64"]
    media_type: Literal["application/zip"]
    data: Needed


class InlineSkill(Given):
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


class LocalSkill(Given):
    """A skill on the client's machine, in whose shell the model reads it; `path` is its folder there."""

    name: OneLine
    description: OneLine
    path: OneLine


class ContainerFields(Given):
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
