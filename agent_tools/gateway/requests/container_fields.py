"""Fields that describe a new container, wherever a request has them."""

from __future__ import annotations

from agent_tools.gateway.requests.failures import invalid
from agent_tools.gateway.requests.fields import Fields

MAX_FILES = 100  # files that a new container is given


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


def refuse_network(given: Fields) -> None:
    """Refuse a request for a network, which containers do not have, instead of ignoring it.

    Raises:
        ApiError: 400.
    """
    policy = given.object("network_policy")
    if policy and policy.get("type") != "disabled":
        raise invalid(
            "Containers have no network here: network_policy can only be {'type': 'disabled'}.",
            given.param("network_policy"),
            "unsupported_value",
        )
