"""Pictures of a response's input, as the model gets them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_tools.gateway.requests.api_errors import invalid
from agent_tools.models.base import JsonObject

DETAILS = ("auto", "low", "high", "original")


def picture_part(url: str, part: Mapping[str, Any], param: str) -> JsonObject:
    """Return a picture as a part for the model, in the detail that the client asks for.

    Raises:
        ApiError: 400, there is no such detail.
    """
    detail = part.get("detail")
    if detail in (None, "auto"):
        return {"type": "image_url", "image_url": {"url": url}}
    if detail not in DETAILS:
        raise invalid(f"'{param}.detail' is one of {', '.join(DETAILS)}.", f"{param}.detail", "invalid_value")
    return {"type": "image_url", "image_url": {"url": url, "detail": detail}}
