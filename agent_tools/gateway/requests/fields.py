"""Reads the fields of requests with pydantic models; an error names the wrong field by its path.

A null counts as a missing field, an unknown field is ignored, and no value is converted: "1" is not a number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from agent_tools.gateway.requests.api_errors import ApiError, invalid, missing

MAX_METADATA, MAX_METADATA_NAME, MAX_METADATA_VALUE = 16, 64, 512  # pairs, characters of a name, and of a value
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
_Model = TypeVar("_Model", bound="RequestModel")


class RequestModel(BaseModel):
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
    codes = {"literal_error": "invalid_value", "too_long": "invalid_value", _NO_CODE: None}
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


def _metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    is_good = all(isinstance(text, str) and len(text) <= MAX_METADATA_VALUE for text in metadata.values())
    if not is_good or len(metadata) > MAX_METADATA or any(len(each) > MAX_METADATA_NAME for each in metadata):
        sizes = f"names of {MAX_METADATA_NAME} characters and texts of {MAX_METADATA_VALUE}"
        raise wrong(f"Invalid '{{param}}': expected at most {MAX_METADATA} pairs, {sizes}.")
    return metadata


Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]  # FailFast() could not stand in a union
Count = Annotated[int, Field(ge=1, le=2**53)]
Metadata = Annotated[dict[str, Any], AfterValidator(_metadata)]
