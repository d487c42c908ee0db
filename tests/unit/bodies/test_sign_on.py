"""Tokens of an identity provider: which are accepted, and what asking for its keys costs."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from agent_tools.bodies.sign_on import (
    ASK_EVERY,
    FRESH,
    LEEWAY,
    MAX_TOKEN,
    STALE,
    ProviderUnavailable,
    SignedOnUser,
    SignOn,
    SignOnSettings,
    TokenRefused,
)
from agent_tools.errors import InvalidParams
from tests.identity_provider import AUDIENCE, IdentityProvider, rsa_key


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as made:
        yield made


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def made(provider: IdentityProvider, clock: Callable[[], float] = time.monotonic, **settings: Any) -> SignOn:
    return SignOn(SignOnSettings(**{**provider.settings, **settings}), "groups", clock=clock)


def user(sign_on: SignOn, token: str, door: str = "") -> SignedOnUser:
    asyncio.run(sign_on.prepare(token))
    return sign_on.user(token, door)


def test_a_user_is_known_by_issuer_and_subject(provider: IdentityProvider) -> None:
    sign_on = made(provider)
    ann, again = user(sign_on, provider.token(groups=["a", 5, "b"])), user(sign_on, provider.token())
    bob = user(sign_on, provider.token("bob", provider.keys["ec"], "ES256", "ec", aud=[AUDIENCE, "other"], groups="a"))
    assert (ann.subject, ann.groups, bob.groups, again.groups) == ("ann", ("a", "b"), ("a",), ())
    assert ann.owner == again.owner != bob.owner
    assert len(ann.owner) == 32
    with IdentityProvider() as other:
        assert user(made(other), other.token()).owner != ann.owner
    assert [each.target for each in provider.seen] == ["/.well-known/openid-configuration", "/keys"]


def unsigned(provider: IdentityProvider) -> str:
    head = base64.urlsafe_b64encode(b'{"alg":"none","kid":"rsa"}').rstrip(b"=").decode()
    return f"{head}.{provider.token().split('.')[1]}."


def with_public_key_as_secret(provider: IdentityProvider) -> str:
    public = (
        provider.keys["rsa"]
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"rsa"}').rstrip(b"=").decode()
    signed = f"{head}.{provider.token().split('.')[1]}"
    signature = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    code = signature.sign(signed.encode(), public)
    return f"{signed}.{base64.urlsafe_b64encode(code).rstrip(b'=').decode()}"


def with_its_own_key(provider: IdentityProvider) -> str:
    own = jwt.algorithms.RSAAlgorithm.to_jwk(rsa_key(2).public_key(), as_dict=True)
    return jwt.encode({"sub": "ann"}, rsa_key(2), "RS256", {"jwk": own, "jku": "http://127.0.0.1:1/", "kid": "rsa"})


REFUSED: dict[str, tuple[Callable[[IdentityProvider], str], str]] = {
    "expired": (lambda of: of.token(exp=int(time.time() - LEEWAY) - 2), "expired"),
    "not valid yet": (lambda of: of.token(nbf=int(time.time() + LEEWAY) + 60), "not valid yet"),
    "another audience": (lambda of: of.token(aud=AUDIENCE + ".evil"), "another server"),
    "the audience of a door": (lambda of: of.token(aud=AUDIENCE + "/mcp"), "another server"),
    "another issuer": (lambda of: of.token(iss=of.issuer + "/"), "another provider's"),
    "no expiry": (lambda of: of.token(exp=None), "lacks"),
    "no subject": (lambda of: of.token(sub=None), "lacks"),
    "an empty subject": (lambda of: of.token(""), "subject"),
    "a number as subject": (lambda of: of.token(sub=5), "malformed"),
    "no audience": (lambda of: of.token(aud=None), "lacks"),
    "no algorithm": (unsigned, "algorithm"),
    "the public key as a secret": (with_public_key_as_secret, "algorithm"),
    "the algorithm of another key": (lambda of: of.token(algorithm="PS256"), "algorithm"),
    "another's signature": (lambda of: of.token(key=rsa_key(2)), "signature"),
    "a key of its own": (with_its_own_key, "signature"),
    "an unknown key": (lambda of: of.token(kid="other"), "no such signing key"),
    "no key's name, where there are two": (lambda of: of.token(kid=None), "no such signing key"),
    "a changed body": (lambda of: ".".join([*of.token().split(".")[:1], of.token("eve").split(".")[1], "AA"]), "signa"),
    "a critical extension": (
        lambda of: jwt.encode({}, rsa_key(1), "RS256", {"kid": "rsa", "crit": ["x"]}),
        "malformed",
    ),
    "an expiry that is none": (lambda of: of.token(exp="soon"), "malformed"),
    "malformed base64": (lambda of: "!!!." + of.token().partition(".")[2], "malformed"),
    "deep JSON": (lambda of: base64.b64encode(b"[" * 9_000).decode() + ".e30.AA", "malformed"),
    "nothing": (lambda of: "..", "malformed"),
    "too much": (lambda of: of.token(more="a" * MAX_TOKEN), "characters"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_tokens_are_refused_with_the_reason(provider: IdentityProvider, name: str) -> None:
    forged, reason = REFUSED[name]
    sign_on = made(provider)
    user(sign_on, provider.token())
    token = forged(provider)
    with pytest.raises(TokenRefused, match=reason) as refused:
        user(sign_on, token)
    assert token[:40] not in str(refused.value)


def test_a_secret_that_the_provider_publishes_verifies_nothing(provider: IdentityProvider) -> None:
    provider.keys["secret"] = {"kty": "oct", "k": base64.urlsafe_b64encode(b"s" * 32).decode()}
    provider.keys["sealing"] = {**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(rsa_key(2).public_key())), "use": "enc"}
    for token in (
        provider.token(key=b"s" * 32, algorithm="HS256", kid="secret"),
        provider.token(key=rsa_key(2), kid="sealing"),
    ):
        with pytest.raises(TokenRefused, match="no such signing key"):
            user(made(provider), token)


def test_a_token_for_a_door_opens_that_door_alone(provider: IdentityProvider) -> None:
    sign_on, token = made(provider), provider.token(aud=f"{AUDIENCE}/mcp")
    assert user(sign_on, token, "/mcp") == user(sign_on, provider.token(), "/mcp")
    for door in ("", "/e2b", "/mcp/x"):
        with pytest.raises(TokenRefused, match="another server"):
            user(sign_on, token, door)


def test_a_flood_of_unknown_keys_is_no_flood_of_questions(provider: IdentityProvider) -> None:
    clock = Clock()
    sign_on = made(provider, clock)
    user(sign_on, provider.token())

    async def flood() -> None:
        await asyncio.gather(*(sign_on.prepare(provider.token(kid=f"k{number}")) for number in range(50)))

    for _ in range(2):
        asyncio.run(flood())
    assert len(provider.seen) == 2
    clock.now += ASK_EVERY
    for _ in range(2):
        asyncio.run(flood())
    assert len(provider.seen) == 4


def test_a_new_key_is_known_and_an_old_one_is_not(provider: IdentityProvider) -> None:
    clock = Clock()
    sign_on = made(provider, clock)
    old = provider.token()
    user(sign_on, old)
    provider.keys = {"new": rsa_key(2)}
    clock.now += ASK_EVERY
    assert user(sign_on, provider.token(key=rsa_key(2), kid="new")).subject == "ann"
    with pytest.raises(TokenRefused, match="no such signing key"):
        user(sign_on, old)
    assert user(sign_on, provider.token(key=rsa_key(2), kid=None)).subject == "ann"


def test_a_withdrawn_key_is_not_accepted_for_long(provider: IdentityProvider) -> None:
    clock = Clock()
    sign_on, token = made(provider, clock), provider.token()
    user(sign_on, token)
    provider.keys = {"new": rsa_key(2)}
    clock.now += FRESH + 1

    async def ask() -> None:
        await sign_on.prepare(token)
        await sign_on.ask()  # which waits for what that has begun

    asyncio.run(ask())
    with pytest.raises(TokenRefused, match="no such signing key"):
        sign_on.user(token)


def test_a_provider_that_is_down_is_not_the_clients_fault(provider: IdentityProvider) -> None:
    clock = Clock()
    sign_on, token = made(provider, clock), provider.token()
    provider.is_down = True
    for _ in range(3):
        with pytest.raises(ProviderUnavailable, match="does not answer"):
            user(sign_on, token)
    assert len(provider.seen) == 2  # two places, once
    provider.is_down = False
    clock.now += ASK_EVERY
    assert user(sign_on, token)
    provider.is_down = True
    clock.now += STALE

    async def later() -> None:
        await sign_on.prepare(token)
        await sign_on.ask()  # which waits for what that has begun

    asyncio.run(later())
    assert sign_on.user(token)
    with pytest.raises(ProviderUnavailable):
        user(sign_on, provider.token(kid="new"))
    clock.now += ASK_EVERY
    with pytest.raises(ProviderUnavailable):
        user(sign_on, token)


@pytest.mark.parametrize(
    "metadata",
    [{"issuer": "https://evil.example"}, {"jwks_uri": "http://evil.example/keys"}, {"jwks_uri": 5}, {"jwks_uri": None}],
)
def test_metadata_that_cannot_be_trusted_is_not_used(provider: IdentityProvider, metadata: dict[str, Any]) -> None:
    provider.metadata = metadata
    with pytest.raises(ProviderUnavailable):
        user(made(provider), provider.token())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"oidc_issuer": "http://login.example.org", "oidc_audience": ("a",)}, "https"),
        ({"oidc_issuer": "https://key@login.example.org", "oidc_audience": ("a",)}, "https"),
        ({"oidc_issuer": "login.example.org", "oidc_audience": ("a",)}, "https"),
        ({"oidc_issuer": "https://login.example.org"}, "oidc_audience"),
        ({"oidc_audience": ("a",)}, "oidc_issuer"),
        ({"oidc_issuer": "https://a.example", "oidc_audience": ("a",), "oidc_resource": "code"}, "oidc_resource"),
    ],
)
def test_settings_that_would_let_others_in_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidParams, match=says):
        SignOnSettings(**settings)


def test_clients_find_the_provider(provider: IdentityProvider) -> None:
    sign_on = made(provider, oidc_audience=("code", f"{AUDIENCE}/below/"), oidc_scopes=("openid",))
    assert sign_on.resource_metadata("/mcp") == {
        "resource": f"{AUDIENCE}/below/mcp",
        "authorization_servers": [provider.issuer],
        "bearer_methods_supported": ["header"],
        "scopes_supported": ["openid"],
    }
    where = f'resource_metadata="{AUDIENCE}/.well-known/oauth-protected-resource/below/mcp"'
    assert sign_on.challenge("/mcp") == f"Bearer {where}"
    assert sign_on.challenge("/mcp", has_token=True) == f'Bearer error="invalid_token", {where}'
    doors = ["/mcp"]
    found = {path: sign_on.door_of(path, doors) for path in ("", "/below", "/below/mcp", "/mcp", "/other", "/below/x")}
    assert found == {"": "", "/below": "", "/below/mcp": "/mcp", "/mcp": "/mcp", "/other": None, "/below/x": None}
    without = made(provider, oidc_audience=("code",))
    assert (without.challenge(), without.door_of("", doors)) == ("Bearer", None)
