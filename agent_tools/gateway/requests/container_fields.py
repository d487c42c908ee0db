"""Fields that describe a new container, wherever a request has them."""

from __future__ import annotations

from agent_tools.gateway.requests.failures import invalid
from agent_tools.gateway.requests.fields import Fields

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
