"""The ids of the upstream's models, which clients choose, so only plain ones become part of a path."""

from __future__ import annotations

import re
from urllib.parse import quote

from agent_tools.gateway.requests.api_errors import ApiError

MAX_MODEL_ID = 256  # characters
_PLAIN = re.compile(r"[A-Za-z0-9._:@+-]+(?:/[A-Za-z0-9._:@+-]+)*")


def model_path(id_: str) -> str:
    """Return the path of a model below the upstream's base URL; its id is one segment that cannot lead upwards.

    Raises:
        ApiError: 404, the id cannot be a model's.
    """
    is_plain = _PLAIN.fullmatch(id_) and not {".", ".."}.intersection(id_.split("/"))
    if not is_plain or len(id_) > MAX_MODEL_ID:
        raise unknown_model(id_)
    return f"models/{quote(id_, safe='')}"


def unknown_model(id_: str) -> ApiError:
    """Return the error for a model that does not exist."""
    plain = f"at most {MAX_MODEL_ID} letters, digits and ._:@+-, in parts joined by '/'"
    message = f"The model {id_[:80]!r} does not exist: an id is {plain}."
    return ApiError(404, message, param="model", code="model_not_found")
