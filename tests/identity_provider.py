"""A scripted identity provider: metadata, keys, and tokens that it would never give."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from functools import cache
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.recorder import Answer, Recorder, Seen

AUDIENCE = "https://code.example.org"


@cache
def rsa_key(number: int) -> rsa.RSAPrivateKey:
    """Making one is slow, so tests share them."""
    return rsa.generate_private_key(65537, 2048)


class IdentityProvider(Recorder):
    """Serves in a thread. `keys` are published, by their id; it answers 500 while it `is_down`."""

    def __init__(self) -> None:
        super().__init__(self._answered)
        self.keys: dict[str, Any] = {"rsa": rsa_key(1), "ec": ec.generate_private_key(ec.SECP256R1())}
        self.is_down = False
        self.asked: dict[str, str] = {}
        self.metadata: dict[str, Any] = {}
        self.issuer = self.base_url.removesuffix("/v1")

    def token(
        self, subject: str = "ann", key: Any = None, algorithm: str = "RS256", kid: str | None = "rsa", **claims: Any
    ) -> str:
        """Sign a token, with the claims that one has and these; a claim of None is left out."""
        now = time.time()
        usual = {"iss": self.issuer, "aud": AUDIENCE, "sub": subject, "iat": int(now), "exp": int(now) + 300}
        found = {name: value for name, value in {**usual, **claims}.items() if value is not None}
        headers = {} if kid is None else {"kid": kid}
        return jwt.encode(found, key or self.keys["rsa"], algorithm, headers)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a server that accepts its tokens."""
        return {"oidc_issuer": self.issuer, "oidc_audience": (AUDIENCE,)}

    def _answered(self, seen: Seen) -> Answer:
        path, query = urlsplit(seen.target).path, parse_qs(urlsplit(seen.target).query)
        if path == "/authorize":
            self.asked = {name: value for name, (value,) in query.items()}
            back = urlencode({"code": "the-code", "state": self.asked["state"], "iss": self.issuer})
            return Answer(status=302, headers={"Location": f"{self.asked['redirect_uri']}?{back}"})
        if path == "/token":
            return self._exchanged({name: value for name, (value,) in parse_qs(seen.body.decode()).items()})
        if self.is_down or path not in ("/.well-known/openid-configuration", "/keys"):
            return Answer(status=500 if self.is_down else 404)
        if path == "/keys":
            return Answer(json.dumps({"keys": [_public(id_, key) for id_, key in self.keys.items()]}).encode())
        places = {"authorization_endpoint": f"{self.issuer}/authorize", "token_endpoint": f"{self.issuer}/token"}
        about = {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys", **places, **self.metadata}
        return Answer(json.dumps(about).encode())

    def _exchanged(self, sent: dict[str, str]) -> Answer:
        """The token for a code; the page proves that it asked for the code (RFC 7636)."""
        digest = hashlib.sha256(sent["code_verifier"].encode()).digest()
        assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == self.asked["code_challenge"]
        assert {**self.asked, **sent, "code": "the-code", "resource": AUDIENCE} == {**self.asked, **sent}
        token = json.dumps({"access_token": self.token(), "token_type": "Bearer"}).encode()
        return Answer(token, headers={"Access-Control-Allow-Origin": "*"})


def _public(id_: str, key: Any) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPrivateKey):
        found = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        found = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        found = key
    return {**found, "kid": id_}
