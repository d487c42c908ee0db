"""Reasoning that travels through a client and comes back unchanged: `encrypted_content` of reasoning items.

AES-256-GCM with a key of this service, which lies in `data_dir` and is made when it is first needed. What is sealed for
one owner can be opened for that owner only.
"""

from __future__ import annotations

import base64
import binascii
import os
import threading
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from agent_tools.gateway.requests.api_errors import invalid

KEY_FILE = "sealing.key"  # in `data_dir`
KEY_BYTES, NONCE_BYTES = 32, 12
FORM = b"\x01"  # the first byte: the form of what follows


class ReasoningCipher:
    """Seals and opens text. Thread-safe; gateways that share `folder` share the key."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / KEY_FILE
        self._lock = threading.Lock()
        self._cipher: AESGCM | None = None

    def sealed(self, owner: str, text: str) -> str:
        """Return text that only `opened` for the same owner reads, in base64."""
        nonce = os.urandom(NONCE_BYTES)
        data = self._made().encrypt(nonce, text.encode("utf-8", "surrogatepass"), owner.encode())
        return base64.b64encode(FORM + nonce + data).decode()

    def opened(self, owner: str, sealed: str, param: str) -> str:
        """Return the text that was sealed; errors name the field `param`.

        Raises:
            ApiError: 400, it was not sealed here for this owner, or was changed.
        """
        with suppress(binascii.Error, ValueError, InvalidTag):  # ValueError: not even ASCII, or too short
            data = base64.b64decode(sealed, validate=True)
            if data[:1] == FORM and self._path.exists():
                nonce, rest = data[1 : 1 + NONCE_BYTES], data[1 + NONCE_BYTES :]
                return self._made().decrypt(nonce, rest, owner.encode()).decode("utf-8", "surrogatepass")
        message = "The encrypted content was changed, or comes from another key or service: send the item without it."
        raise invalid(message, param, "invalid_encrypted_content")

    def _made(self) -> AESGCM:
        with self._lock:
            if self._cipher is None:
                self._cipher = AESGCM(self._key())
            return self._cipher

    def _key(self) -> bytes:
        """Read the key, or create it: if several gateways do so at once, all use the first one's key."""
        if not self._path.exists():
            new = self._path.with_name(f"{KEY_FILE}.{os.getpid()}.{os.urandom(4).hex()}")
            try:
                with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(os.urandom(KEY_BYTES))
                    file.flush()
                    os.fsync(file.fileno())
                with suppress(FileExistsError):
                    os.link(new, self._path)
            finally:
                new.unlink(missing_ok=True)
        return self._path.read_bytes()
