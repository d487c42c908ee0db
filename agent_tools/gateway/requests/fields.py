"""Reading a request's fields: a value of the wrong type is refused by name, an unknown field is ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_tools.gateway.requests.failures import ApiError, invalid

MAX_NOTES, MAX_NOTE_NAME, MAX_NOTE = 16, 64, 512  # pairs of metadata, characters of a name and of a value
_NAMES = {str: "a string", bool: "a boolean", int: "an integer", float: "a number", dict: "an object", list: "an array"}


class Fields:
    """The fields of an object in a request; `path` names the object in errors."""

    def __init__(self, given: Mapping[str, Any], path: str = "") -> None:
        self.given = given
        self.path = path

    def param(self, name: str) -> str:
        """Return a field's path."""
        return f"{self.path}.{name}" if self.path else name

    def text(self, name: str) -> str | None:
        """Return a string, or None."""
        value: str | None = self._of(name, str)
        return value

    def needed(self, name: str) -> str:
        """Return a string that is required.

        Raises:
            ApiError: it is missing.
        """
        value = self.text(name)
        if not value:
            param = self.param(name)
            raise invalid(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
        return value

    def choice(self, name: str, allowed: Sequence[str]) -> str | None:
        """Return one of some words, or None.

        Raises:
            ApiError: it is another one.
        """
        value = self.text(name)
        if value is not None and value not in allowed:
            param = self.param(name)
            raise invalid(f"Invalid value for '{param}': expected one of {', '.join(allowed)}.", param, "invalid_value")
        return value

    def flag(self, name: str) -> bool | None:
        """Return a boolean, or None."""
        value: bool | None = self._of(name, bool)
        return value

    def number(self, name: str, least: float, most: float) -> float | None:
        """Return a number within bounds, or None."""
        value: float | None = self._within(name, self._of(name, float), least, most)
        return value

    def integer(self, name: str, least: int, most: int = 2**53) -> int | None:
        """Return a whole number within bounds, or None."""
        value: int | None = self._within(name, self._of(name, int), least, most)
        return value

    def object(self, name: str) -> dict[str, Any] | None:
        """Return an object, or None."""
        value: dict[str, Any] | None = self._of(name, dict)
        return value

    def array(self, name: str) -> list[Any]:
        """Return an array; an empty one if it is missing."""
        value: list[Any] | None = self._of(name, list)
        return value or []

    def notes(self, name: str) -> dict[str, str]:
        """Return metadata: names and texts; nothing if it is missing."""
        notes = self.object(name) or {}
        is_good = all(isinstance(text, str) and len(text) <= MAX_NOTE for text in notes.values())
        if not is_good or len(notes) > MAX_NOTES or any(len(each) > MAX_NOTE_NAME for each in notes):
            bounds = f"at most {MAX_NOTES} pairs, names of {MAX_NOTE_NAME} characters and texts of {MAX_NOTE}"
            param = self.param(name)
            raise invalid(f"Invalid '{param}': expected {bounds}.", param, "invalid_value")
        return notes

    def wrong(self, name: str, wanted: str) -> ApiError:
        """Return the error for a field of the wrong type."""
        kind = type(self.given.get(name)).__name__
        param = self.param(name)
        return invalid(f"Invalid type for '{param}': expected {wanted}, but got {kind} instead.", param, "invalid_type")

    def _of(self, name: str, kind: type) -> Any:
        value = self.given.get(name)
        if value is None:
            return None
        fits = isinstance(value, (int, float) if kind is float else kind)
        if not fits or (isinstance(value, bool) and kind is not bool):
            raise self.wrong(name, _NAMES[kind])
        return value

    def _within(self, name: str, value: Any, least: float, most: float) -> Any:
        if value is None or least <= value <= most:
            return value
        below = value < least
        code = f"integer_{'below_min' if below else 'above_max'}_value"
        word = f">= {least:g}" if below else f"<= {most:g}"
        param = self.param(name)
        raise invalid(f"Invalid '{param}': expected a value {word}, but got {value!r:.20} instead.", param, code)


def scrubbed(value: Any) -> Any:
    """Replace halves of characters in a JSON value, in place, since no encoding can carry them; return the value."""
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


# Fields that describe a new container, wherever a request has them.


MAX_FILES = 100  # files that a new container is given
MAX_DOMAINS = 100  # that one may reach


def read_file_ids(given: Fields) -> tuple[str, ...]:
    """Return the ids of the files that are put into a new container.

    Raises:
        ApiError: 400.
    """
    file_ids = given.array("file_ids")
    if not all(isinstance(each, str) for each in file_ids):
        raise given.wrong("file_ids", "an array of strings")
    if len(file_ids) > MAX_FILES:
        param = given.param("file_ids")
        raise invalid(f"At most {MAX_FILES} files are put into a container at once; send others later.", param)
    return tuple(dict.fromkeys(file_ids))


def read_domains(given: Fields) -> tuple[str, ...]:
    """Return the domains that a new container may reach; none without a policy that lists some.

    Raises:
        ApiError: 400.
    """
    policy = Fields(given.object("network_policy") or {"type": "disabled"}, given.param("network_policy"))
    match policy.needed("type"):
        case "disabled":
            return ()
        case "allowlist":
            return _listed(policy)
        case _:
            raise invalid("Invalid value: expected 'disabled' or 'allowlist'.", policy.param("type"), "invalid_value")


def _listed(policy: Fields) -> tuple[str, ...]:
    if policy.given.get("domain_secrets"):
        raise invalid(
            "'domain_secrets' is not supported here.", policy.param("domain_secrets"), "unsupported_parameter"
        )
    domains = policy.array("allowed_domains")
    if not all(isinstance(each, str) for each in domains):
        raise policy.wrong("allowed_domains", "an array of strings")
    if not 0 < len(domains) <= MAX_DOMAINS:
        raise invalid(f"Between 1 and {MAX_DOMAINS} domains can be listed.", policy.param("allowed_domains"))
    return tuple(domains)
