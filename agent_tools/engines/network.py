"""The egress allowlist: names and addresses that code may reach, and headers that the host adds to requests.

    {"allow": ["pypi", "api.example.com", "*.example.org:8443", "192.0.2.7:5432"],
     "headers": {"api.example.com": {"Authorization": "Bearer ..."}},
     "private": ["10.1.0.0/16"],
     "packages_cache": "/var/cache/wheels",
     "limits": {"max_connections": 8}}

A name means that host on port 443, or on the given port; `*.` in front means all names below it. Port 80 is plain HTTP;
every other port is TLS whose client names the host. An address means that address and port, with any protocol. `pypi`
means the package index: the one that PIP_INDEX_URL names on this machine, which may have a private address, else PyPI
and its file host.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Union
from urllib.parse import unquote, urlsplit

from agent_tools import settings
from agent_tools.errors import InvalidParams
from agent_tools.limits import EgressLimits, with_sizes
from agent_tools.machine.addresses import ascii_name, is_public

TLS_PORT, PLAIN_PORT = 443, 80
PACKAGE_INDEX = "pypi"
PACKAGE_HOSTS = ("pypi.org", "files.pythonhosted.org")
MAX_ENTRIES = 1_000
MAX_NAME = 253  # RFC 1035, 2.3.4
MAX_AUTHORITY = MAX_NAME + len("[]:65535")

_LABEL = r"(?!-)[a-z0-9_-]{1,63}(?<!-)"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")  # a last label that makes a URL's host an address, in any notation
_FIELD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
_OURS = frozenset(
    (
        *("host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "expect"),
        *("keep-alive", "proxy-authorization", "proxy-connection"),
    )
)
"""Headers for the length and the destination of a message, which the configuration may not set."""

Block = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]


@dataclass(frozen=True, slots=True)
class Target:
    """A host (a lower-case name, or an address in canonical form) and a port."""

    host: str
    port: int

    @property
    def is_address(self) -> bool:
        """True if the host is an address."""
        return is_address(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class PackageIndex:
    """The package index that the operator chose. `url` is the URL for pip in a sandbox, without credentials."""

    url: str
    target: Target
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_plain(self) -> bool:
        """True if its URL is plain HTTP."""
        return self.url.startswith("http:") and not self.headers

    @classmethod
    def read(cls, url: str) -> PackageIndex | None:
        """Read PIP_INDEX_URL; None if it is not set, or names PyPI.

        Raises:
            InvalidParams: a sandbox cannot use the URL. The message does not show it, since it may have a password.
        """
        try:
            parts = urlsplit(url)
            target = read_target(parts.netloc.rpartition("@")[2], TLS_PORT if parts.scheme == "https" else PLAIN_PORT)
        except ValueError:
            target = None
        if not url or (target and target.host in PACKAGE_HOSTS):
            return None
        if target is None or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
            raise InvalidParams("PIP_INDEX_URL is not usable for 'pypi': give an http:// or https:// URL.")
        address = str(target).removesuffix(f":{TLS_PORT if parts.scheme == 'https' else PLAIN_PORT}")
        if not parts.username:
            return cls(f"{parts.scheme}://{address}{parts.path}", target)
        if target.port != TLS_PORT or target.is_address:
            raise InvalidParams(
                "PIP_INDEX_URL with a user is usable for 'pypi' with https://, a name and port 443 only."
            )
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers = {"authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}
        return cls(f"http://{target.host}{parts.path}", target, headers)  # the host adds the header, and TLS


@dataclass(frozen=True)
class NetworkPolicy:
    """The egress allowlist of one sandbox. `read` makes and checks it.

    Attributes:
        allow: the entries as given.
        headers: header fields by name of host; never shown.
        packages_cache: a folder on the host with files of the package index; only the host reads and writes it.
        private: blocks of addresses beside the public internet in which listed names may lie.
        index: the package index for `pypi`; None for PyPI.
    """

    allow: tuple[str, ...]
    headers: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    private: tuple[Block, ...] = ()
    limits: EgressLimits = field(default_factory=EgressLimits)
    packages_cache: Path | None = None
    index: PackageIndex | None = None
    exact: frozenset[Target] = field(default_factory=frozenset, repr=False)
    below: frozenset[Target] = field(default_factory=frozenset, repr=False)

    @classmethod
    def read(cls, option: object) -> NetworkPolicy:
        """Check the option and return the policy.

        Raises:
            InvalidParams: it cannot be used; the message says which entry and why.
        """
        if not isinstance(option, Mapping):
            raise InvalidParams(f"network={option!r:.80} is not usable: give a dict such as {{'allow': ['pypi']}}.")
        if unknown := sorted(map(str, option.keys() - {"allow", "headers", "limits", "packages_cache", "private"})):
            raise InvalidParams(
                f"network has no entry {unknown[0]!r:.40}. Known: allow, headers, limits, packages_cache, private."
            )
        allow = _texts("allow", option.get("allow"))
        index = PackageIndex.read(settings.package_index()) if PACKAGE_INDEX in allow else None
        policy = cls(
            allow=allow,
            index=index,
            private=tuple(map(_block, _texts("private", option.get("private", ())))),
            limits=_limits(option.get("limits", {})),
            packages_cache=Path(option["packages_cache"]) if option.get("packages_cache") else None,
            exact=frozenset(
                target for entry in allow if not entry.startswith("*.") for target in _targets(entry, index)
            ),
            below=frozenset(_parent(entry) for entry in allow if entry.startswith("*.")),
        )
        if policy.packages_cache and not policy.has_packages:
            raise InvalidParams("network has a packages_cache, but does not allow 'pypi'.")
        if policy.packages_cache and index:
            raise InvalidParams("network has a packages_cache, which works only with PyPI: unset PIP_INDEX_URL.")
        return _with_headers(policy, option.get("headers", {}))

    @property
    def has_packages(self) -> bool:
        """True if the package index and its file host are listed."""
        return self.index is not None or all(self.permits(Target(host, TLS_PORT)) for host in PACKAGE_HOSTS)

    def permits(self, target: Target) -> bool:
        """Return whether a target is listed."""
        if target in self.exact:
            return True
        return not target.is_address and "." in target.host and self._has_below(_above(target))

    def _has_below(self, target: Target) -> bool:
        """Return whether the names below a target are listed by `*.`."""
        return target in self.below or ("." in target.host and self._has_below(_above(target)))

    def covers(self, other: NetworkPolicy) -> bool:
        """Return whether this policy lists everything that another policy lists."""
        return all(map(self.permits, other.exact)) and all(map(self._has_below, other.below))

    def may_lie_at(self, address: str, target: Target | None = None) -> bool:
        """Return whether a listed target may have this address; the operator's own index may have any."""
        ip = ipaddress.ip_address(address.split("%")[0])
        is_index = self.index is not None and target == self.index.target
        return is_index or is_public(address) or any(ip in block for block in self.private)


def _above(target: Target) -> Target:
    return Target(target.host.partition(".")[2], target.port)


def is_address(host: str) -> bool:
    """Return whether a host is an address in its usual form, and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def read_host(text: str) -> str | None:
    """Return a lower-case name, or an address in canonical form; None for anything else.

    Addresses in notations that only some programs know (`127.1`, `0x7f000001`, `2130706433`) return None.
    """
    if len(text) > MAX_NAME + 1 or not text.isascii():
        return None
    if text.startswith("[") and text.endswith("]"):
        return _address(text[1:-1], ipaddress.IPv6Address)
    if address := _address(text, ipaddress.IPv4Address):
        return address
    name = text.lower().removesuffix(".")
    if len(name) > MAX_NAME or not _NAME.fullmatch(name) or _NUMBER.fullmatch(name.rpartition(".")[2]):
        return None
    return name


def read_target(text: str, port: int | None = None) -> Target | None:
    """Return the target of `host:port`, or of `host` if there is a default port; None for anything else."""
    if len(text) > MAX_AUTHORITY + 1:
        return None
    host, colon, digits = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, digits = text, "" if port is None else str(port)
    known = read_host(host)
    if known is None or not digits.isascii() or not digits.isdecimal() or len(digits) > 5:
        return None
    return Target(known, int(digits)) if 0 < int(digits) < 65_536 else None


def _address(text: str, kind: type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address]) -> str | None:
    try:
        return str(kind(text)) if "%" not in text else None
    except ValueError:
        return None


def _texts(name: str, given: object) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, (list, tuple, set, frozenset)):
        raise InvalidParams(f"network has {name}={given!r:.80}: give a list of texts.")
    if len(given) > MAX_ENTRIES:
        raise InvalidParams(f"network has {len(given):,} entries in {name}; at most {MAX_ENTRIES:,} are taken.")
    for entry in given:
        if not isinstance(entry, str):
            raise InvalidParams(f"network has {entry!r:.80} in {name}, which is not a text.")
    return tuple(given)


def _parent(entry: str) -> Target:
    """Return the `name` of `*.name`."""
    (target,) = _targets(entry[2:]) if entry[2:] != PACKAGE_INDEX else (Target(PACKAGE_INDEX, TLS_PORT),)
    if target.is_address or "." not in target.host:
        raise InvalidParams(f"network allows {entry!r:.80}: '*.' stands before a name of two parts or more.")
    return target


def _targets(entry: str, index: PackageIndex | None = None) -> list[Target]:
    """Return the targets of one entry."""
    if entry == PACKAGE_INDEX and index:
        return [index.target]
    if entry == PACKAGE_INDEX:
        return [Target(host, TLS_PORT) for host in PACKAGE_HOSTS]
    host, colon, port = entry.partition(":")
    target = read_target(f"{ascii_name(host)}{colon}{port}", TLS_PORT)
    if target is None:
        raise InvalidParams(
            f"network allows {entry!r:.80}, which is neither a name nor an address: write 'example.org', "
            "'*.example.org', 'example.org:8443', '192.0.2.7:5432', '[2001:db8::7]:443' or 'pypi'."
        )
    return [target]


def _block(entry: str) -> Block:
    try:
        return ipaddress.ip_network(entry)
    except ValueError as exc:
        raise InvalidParams(
            f"network has {entry!r:.80} in private, which is not a block such as '10.1.0.0/16'."
        ) from exc


def _limits(given: object) -> EgressLimits:
    if isinstance(given, EgressLimits):
        return given
    known = {each.name for each in fields(EgressLimits)}
    if not isinstance(given, Mapping) or not set(given) <= known:
        raise InvalidParams(f"network has limits={given!r:.80}: give a dict of {', '.join(sorted(known))}.")
    given = with_sizes(given)
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise InvalidParams(f"network has {name}={value!r:.40} in limits, which is not a positive number.")
    return EgressLimits(**given)


def _with_headers(policy: NetworkPolicy, given: object) -> NetworkPolicy:
    """Return the policy with checked headers. No message shows a value."""
    if not isinstance(given, Mapping):
        raise InvalidParams("network has headers that are not a dict of hosts.")
    headers = {policy.index.target.host: policy.index.headers} if policy.index and policy.index.headers else {}
    for name, added in given.items():
        host = read_host(ascii_name(name)) if isinstance(name, str) else None
        if host is None or not policy.permits(Target(host, TLS_PORT)):
            raise InvalidParams(f"network has headers for {name!r:.80}, which it does not allow on port {TLS_PORT}.")
        if not isinstance(added, Mapping) or not all(_is_header(*pair) for pair in added.items()):
            raise InvalidParams(f"network has headers for {name!r:.80} that cannot be sent: give texts on one line.")
        headers[host] = {field_.lower(): value for field_, value in added.items()}
    return replace(policy, headers=headers)


def _is_header(name: object, value: object) -> bool:
    if not isinstance(name, str) or not isinstance(value, str) or name.lower() in _OURS:
        return False
    return bool(_FIELD.fullmatch(name) and _VALUE.fullmatch(value))
