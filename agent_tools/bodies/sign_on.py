"""Sign-on: the users of an identity provider, known by JSON Web Tokens that its published keys verify.

OpenID Connect Discovery 1.0 and RFC 8414 (the provider's metadata), RFC 7517 (keys), RFC 9068 (access tokens), and
RFC 9728 (the metadata of this server, by which clients find the provider).

Theory of operation
    `prepare` asks the provider for its keys if a token needs one that is not known, in a thread, and all who need
    it wait for the same answer. A stranger may name any key, so the provider is asked at most once in `ASK_EVERY`
    seconds, whatever is asked of us. `user` then reads a token by the keys that are known; it asks nobody, and costs as
    much as one signature of at most `MAX_TOKEN` bytes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass as plain_dataclass
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import jwt
import requests
from pydantic import ConfigDict, model_validator
from pydantic.dataclasses import dataclass

from agent_tools.containers.config import Texts
from agent_tools.containers.keys import LOOPBACK, digest, owner_of_digest
from agent_tools.errors import AgentToolsError, InvalidParams
from agent_tools.limits import KIB

MAX_TOKEN = 16 * KIB  # characters
MAX_DOCUMENT = 512 * KIB  # bytes of the provider's metadata, and of its keys
MAX_SUBJECT = 255  # characters, as OpenID Connect has it
MAX_GROUPS = 1_000  # of a user that are looked at
LEEWAY = 30.0  # seconds by which clocks may differ
TIMEOUT = 5.0  # seconds in which the provider answers each question
ASK_EVERY = 10.0  # seconds
FRESH = 600.0  # seconds; older keys are asked for again
STALE = 3_600.0  # seconds that keys are accepted while the provider, which may have withdrawn them, does not answer
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures whose verification needs no secret."""
WELL_KNOWN = "/.well-known/oauth-protected-resource"
_REASONS: dict[type[Exception], str] = {
    jwt.ExpiredSignatureError: "it has expired",
    jwt.ImmatureSignatureError: "it is not valid yet",
    jwt.InvalidAudienceError: "it is for another server (aud)",
    jwt.InvalidIssuerError: "it is another provider's (iss)",
    jwt.InvalidSignatureError: "its signature is wrong",
    jwt.InvalidAlgorithmError: "its algorithm is not the signing key's",
    jwt.MissingRequiredClaimError: "it lacks aud, exp, iss or sub",
}
_UNREADABLE = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)
_log = logging.getLogger(__name__)


class TokenRefused(AgentToolsError):
    """A token that is not accepted here."""


class ProviderUnavailable(AgentToolsError):
    """The identity provider does not answer, so no token can be checked."""


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class SignOnSettings:
    """The identity provider whose tokens are accepted beside keys: docs/sign-on.md.

    Raises:
        InvalidParams: a value cannot be used.
    """

    oidc_issuer: str = ""
    """The provider's issuer, exactly as in its tokens, e.g. https://login.example.org/realms/main."""
    oidc_audience: Texts = ()
    """The audiences of tokens for this server: an address such as https://code.example.org, or the provider's name."""
    oidc_resource: str = ""
    """The public URL of this server; by default the first audience that is one. Clients find the provider by it."""
    oidc_scopes: Texts = ()
    """Scopes that clients ask the provider for."""

    @model_validator(mode="after")
    def _check_sign_on(self) -> SignOnSettings:
        if not self.oidc_issuer:
            if given := [name for name in ("audience", "resource", "scopes") if getattr(self, f"oidc_{name}")]:
                raise InvalidParams(f"oidc_{given[0]} needs oidc_issuer, the URL of the identity provider.")
            return self
        _check_url("oidc_issuer", self.oidc_issuer)
        if self.oidc_resource:
            _check_url("oidc_resource", self.oidc_resource)
        if not self.oidc_audience:
            raise InvalidParams("oidc_issuer needs oidc_audience: tokens for other servers must not be accepted here.")
        return self


def _check_url(name: str, url: str) -> None:
    parts = urlsplit(url)
    if not _is_safe(url) or not parts.netloc or "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidParams(f"{name}={url!r:.80} is no https URL: give one such as https://login.example.org.")


def _is_safe(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)


@plain_dataclass(frozen=True)
class SignedOnUser:
    """The user of a valid token.

    Attributes:
        owner: the owner of everything that the user makes: a digest of issuer and subject.
        subject: the provider's name for the user.
        groups: the texts of the claim that holds them.
        expires_at: when the token ends (seconds since the epoch, the leeway included).
    """

    owner: str
    subject: str
    groups: tuple[str, ...]
    expires_at: float


class SignOn:
    """The tokens of one provider. `groups` is the claim of a user's groups. For one event loop."""

    def __init__(
        self,
        settings: SignOnSettings,
        groups: str = "",
        fetch: Callable[[str], Mapping[str, Any]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._issuer = settings.oidc_issuer
        self._audience = settings.oidc_audience
        self._scopes = settings.oidc_scopes
        self._groups = groups
        self._fetch = fetch or fetch_json
        self._clock = clock
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._read_at = self._asked_at = -float("inf")
        self._asking: asyncio.Future[None] | None = None
        self._has_failed = False  # the last time
        self.metadata: Mapping[str, Any] = {}  # of the provider
        urls = [each for each in settings.oidc_audience if each.startswith(("https://", "http://"))]
        self.resource = (settings.oidc_resource or next(iter(urls), "")).rstrip("/")

    async def prepare(self, token: str) -> None:
        """Read the provider's keys if the token needs an unknown one. If that fails, `user` raises the reason."""
        if len(token) > MAX_TOKEN:
            return
        try:
            key = jwt.get_unverified_header(token).get("kid", "")
        except _UNREADABLE:
            return
        if key not in self._keys or self._age > FRESH:
            await self.ask(waits=key not in self._keys or self._age > STALE)

    async def ask(self, *, waits: bool = True) -> None:
        """Ask the provider for its metadata and keys, unless it was asked just now; wait for the answer."""
        if self._asking is None and self._clock() - self._asked_at >= ASK_EVERY:
            self._asked_at = self._clock()
            self._asking = asyncio.ensure_future(self._ask())
        if waits and self._asking:
            await asyncio.shield(self._asking)

    def user(self, token: str, door: str = "") -> SignedOnUser:
        """Return the user of a token for this server, or for the part of it at the path `door`.

        Raises:
            TokenRefused: it is malformed, has ended, is another server's, or is not signed by the provider.
            ProviderUnavailable: the provider's keys are not known, or were read too long ago.
        """
        if len(token) > MAX_TOKEN:
            raise TokenRefused(f"The token has more than {MAX_TOKEN:,} characters.")
        audience = [*self._audience, *([f"{self.resource}{door}"] if door and self.resource else [])]
        try:
            claims = jwt.decode(
                token,
                self._key(jwt.get_unverified_header(token)),
                algorithms=ALGORITHMS,
                audience=audience,
                issuer=self._issuer,
                leeway=LEEWAY,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
            subject, expires_at = claims["sub"], float(claims["exp"]) + LEEWAY
        except _UNREADABLE as exc:
            raise TokenRefused(f"The token is not accepted: {_reason(exc)}.") from None
        if not 0 < len(subject) <= MAX_SUBJECT:
            raise TokenRefused(f"The token is not accepted: its subject has 0 or over {MAX_SUBJECT} characters.")
        owner = owner_of_digest(digest(json.dumps(["oidc", self._issuer, subject])))
        return SignedOnUser(owner, subject, _texts(claims.get(self._groups)), expires_at)

    def resource_metadata(self, door: str = "") -> dict[str, Any]:
        """Return the metadata of this server, or of its part at the path `door` (RFC 9728)."""
        scopes = {"scopes_supported": list(self._scopes)} if self._scopes else {}
        return {
            "resource": f"{self.resource}{door}",
            "authorization_servers": [self._issuer],
            "bearer_methods_supported": ["header"],
            **scopes,
        }

    async def sign_in(self, client: str) -> dict[str, str]:
        """Return what a page needs to sign its user in as this public client; {} if the provider does not say."""
        if not self.metadata:
            await self.ask()
        places = {name: self.metadata.get(f"{name}_endpoint") for name in ("authorization", "token")}
        found = {name: url for name, url in places.items() if isinstance(url, str) and _is_safe(url)}
        if len(found) < len(places):
            return {}
        wanted = {"resource": self.resource} if self.resource in self._audience else {}
        return {**found, **wanted, "issuer": self._issuer, "client": client, "scope": " ".join(self._scopes)}

    def challenge(self, door: str = "", *, has_token: bool = False) -> str:
        """Return the WWW-Authenticate of a refused request."""
        error = ['error="invalid_token"'] if has_token else []
        parts = urlsplit(self.resource)
        where = f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{parts.path}{door}"
        known = [f'resource_metadata="{where}"'] if self.resource else []
        return f"Bearer {', '.join([*error, *known])}".rstrip()

    def door_of(self, path: str, doors: Iterable[str]) -> str | None:
        """Return which of these paths of parts the path below `WELL_KNOWN` is about, '' for all; None for neither."""
        door = path.removeprefix(urlsplit(self.resource).path)
        return door if self.resource and door in ("", *doors) else None

    @property
    def _age(self) -> float:
        return self._clock() - self._read_at

    def _key(self, header: Mapping[str, Any]) -> jwt.PyJWK:
        """Return the key that a token's head names. Errors as for `user`."""
        id_ = header.get("kid", "")
        if not id_ and len(self._keys) == 1:
            (id_,) = self._keys
        if self._age > STALE or (self._has_failed and id_ not in self._keys):
            raise ProviderUnavailable("The identity provider does not answer, so the token cannot be checked.")
        if id_ not in self._keys:
            raise TokenRefused("The token is not accepted: the identity provider has no such signing key.")
        return self._keys[id_]

    async def _ask(self) -> None:
        try:
            with anyio.fail_after(2 * TIMEOUT):
                read = await anyio.to_thread.run_sync(self._read, abandon_on_cancel=True)
        except (ProviderUnavailable, TimeoutError) as exc:
            _log.warning("The identity provider cannot be asked for its keys: %s", str(exc) or "it is too slow")
            self._has_failed = True  # keys that are known stay in use until they are stale
        else:
            self.metadata, self._keys = read
            self._read_at, self._has_failed = self._clock(), False
        finally:
            self._asking = None

    def _read(self) -> tuple[Mapping[str, Any], Mapping[str, jwt.PyJWK]]:
        """Return the provider's metadata and keys. Blocking.

        Raises:
            ProviderUnavailable: it does not answer, or not as a provider does.
        """
        metadata = self._provider()
        where = metadata.get("jwks_uri")
        if not isinstance(where, str) or not _is_safe(where):
            raise ProviderUnavailable("its metadata has no jwks_uri with https.")
        found = self._fetch(where).get("keys")
        keys = {}
        for each in filter(lambda key: isinstance(key, dict), found if isinstance(found, list) else ()):
            with suppress(*_UNREADABLE):  # other kinds of keys
                key = jwt.PyJWK(each)
                if key.algorithm_name in ALGORITHMS and each.get("use", "sig") == "sig":
                    keys[str(key.key_id or "")] = key
        if not keys:
            raise ProviderUnavailable(f"{where:.200} has no key for signatures.")
        return metadata, keys

    def _provider(self) -> Mapping[str, Any]:
        """Return the provider's metadata, from either place. Errors as for `_read`."""
        parts = urlsplit(self._issuer)
        path = parts.path.rstrip("/")
        try:
            found = self._fetch(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
        except ProviderUnavailable:
            found = self._fetch(f"{parts.scheme}://{parts.netloc}/.well-known/oauth-authorization-server{path}")
        if found.get("issuer") != self._issuer:
            raise ProviderUnavailable(f"it calls itself {str(found.get('issuer'))!r:.200}, which is not oidc_issuer.")
        return found


def is_token(key: str) -> bool:
    """Return whether a key has the form of a token; a key may have it, too."""
    return key.count(".") == 2


def fetch_json(url: str) -> Mapping[str, Any]:
    """Return the JSON object at a URL. Blocking, for about `TIMEOUT` seconds at most.

    Raises:
        ProviderUnavailable: there is none, or it is too large or too slow.
    """
    began, body = time.monotonic(), bytearray()
    try:
        with (
            requests.Session() as session,
            session.get(url, timeout=TIMEOUT, allow_redirects=False, stream=True) as answer,
        ):
            for piece in answer.iter_content(None):
                body += piece
                if len(body) > MAX_DOCUMENT or time.monotonic() - began > TIMEOUT:
                    raise ProviderUnavailable(f"{url:.200} is too large or too slow.")
        found = json.loads(body)
    except (requests.RequestException, ValueError, RecursionError) as exc:
        raise ProviderUnavailable(f"{url:.200} does not answer with JSON ({type(exc).__name__}).") from exc
    if answer.status_code != 200 or not isinstance(found, dict):
        raise ProviderUnavailable(f"{url:.200} answers {answer.status_code}, or no object.")
    return found


def _texts(found: object) -> tuple[str, ...]:
    given = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    return tuple(each for each in given[:MAX_GROUPS] if isinstance(each, str))


def _reason(exc: Exception) -> str:
    """Return why a token is not accepted; the library's words may repeat parts of it."""
    return _REASONS.get(type(exc), "it is malformed")
