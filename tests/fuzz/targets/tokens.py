"""Tokens of users, as a client sends them.

The input is a program (see unfold.py) for the head or the claims: `H` as first byte makes the head of a token without a
signature, `C` claims that the provider has signed; else the input is the whole token.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent_tools.bodies.sign_on import MAX_GROUPS, MAX_SUBJECT, MAX_TOKEN, SignOn, SignOnSettings, TokenRefused
from tests.fuzz import unfold
from tests.fuzz.oracle import Bound, Parts, Target

ISSUER, AUDIENCE = "https://login.example.org", "https://code.example.org"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
WORDS = ("alg", "EdDSA", "none", "HS256", "RS256", "kid", "k", "typ", "JWT", "crit", "b64", "jwk", "x5c", "zip", "cty")
WORDS += ("iss", ISSUER, "aud", AUDIENCE, "sub", "ann", "exp", "nbf", "iat", "groups", "4102444800", "1e999", "NaN")
MOST = 2 * MAX_TOKEN


def unfold_token(data: bytes) -> Parts:
    """The token."""
    if data[:1] == b"H":
        return [b".".join([_base64(_json(data)), _base64(b'{"iss": "x"}'), b""])]
    if data[:1] == b"C":
        return [jwt.api_jws.encode(_json(data), KEY, "EdDSA", {"kid": "k"}).encode()]
    return [unfold.text(data, MOST)]


def read_token(parts: Parts) -> None:
    """Read it: a user who is known has what the provider signed."""
    user = _sign_on().user(parts[0].decode("utf-8", "replace"))
    assert 0 < len(user.subject) <= MAX_SUBJECT
    assert len(user.groups) <= MAX_GROUPS
    assert all(isinstance(each, str) for each in user.groups)


@cache
def _sign_on() -> SignOn:
    key = {**jwt.algorithms.OKPAlgorithm.to_jwk(KEY.public_key(), as_dict=True), "kid": "k", "alg": "EdDSA"}
    about: dict[str, Mapping[str, Any]] = {"/keys": {"keys": [key]}}

    def fetch(url: str) -> Mapping[str, Any]:
        return about.get(url.removeprefix(ISSUER), {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/keys"})

    sign_on = SignOn(SignOnSettings(oidc_issuer=ISSUER, oidc_audience=(AUDIENCE,)), "groups", fetch)
    asyncio.run(sign_on.ask())
    return sign_on


def _json(data: bytes) -> bytes:
    found = unfold.value(data[1:], WORDS)
    known: Any = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": 4102444800} if data[:1] == b"C" else {"kid": "k"}
    return unfold.as_json({**known, **found} if isinstance(found, dict) else found)[:MOST]


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


TARGET = Target(
    read_token,
    unfold_token,
    allowed=(TokenRefused,),
    bound=Bound(seconds_per_byte=20e-6, bytes_per_byte=128),
    vocabulary=WORDS,
    words=(b"eyJhbGciOiJFZERTQSIsImtpZCI6ImsifQ", b".", b"e30", b"W1tbW1s", b"=", b"-_", b"+/", b"\xff"),
)
