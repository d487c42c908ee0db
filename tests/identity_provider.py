"""A scripted identity provider: metadata, keys, and tokens that it would never give."""

from __future__ import annotations

import json
import time
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.recorder import Answer, Recorder, Seen

AUDIENCE = "https://code.example.org"


@cache
def rsa_key(number: int) -> rsa.RSAPrivateKey:
    """Making one is slow, so tests share them."""
    return rsa.generate_private_key(65537, 2048)


class IdentityProvider(Recorder):
    """Serves in a thread. `keys` are those that it publishes, by their id; it answers 500 while it `is_down`."""

    def __init__(self) -> None:
        super().__init__(self._answered)
        self.keys: dict[str, Any] = {"rsa": rsa_key(1), "ec": ec.generate_private_key(ec.SECP256R1())}
        self.is_down = False
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
        path = urlsplit(seen.target).path
        if self.is_down or path not in ("/.well-known/openid-configuration", "/keys"):
            return Answer(status=500 if self.is_down else 404)
        if path == "/keys":
            return Answer(json.dumps({"keys": [_public(id_, key) for id_, key in self.keys.items()]}).encode())
        about = {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys", **self.metadata}
        return Answer(json.dumps(about).encode())


def _public(id_: str, key: Any) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPrivateKey):
        found = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        found = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        found = key
    return {**found, "kid": id_}
