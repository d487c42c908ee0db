"""A cluster, and the client's credentials."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Cluster:
    """One cluster, and the client's credentials.

    Attributes:
        server: the URL of its API server.
        namespace: of the context, or of this process's own pod.
        authorities: the file of certificates to trust; None for those of this machine.
        certificate: the files of the client's certificate and its key.
        server_name: the name in the server's certificate, if it differs from the URL.
        authorization: returns the current value of that header, '' for none; a token may have been renewed.
    """

    server: str
    namespace: str
    authorities: str | None = None
    is_verified: bool = True
    certificate: tuple[str, str] | None = None
    server_name: str | None = None
    authorization: Callable[[], str] = lambda: ""

    def tls(self) -> ssl.SSLContext:
        """Return the TLS context for the server."""
        context = ssl.create_default_context(cafile=self.authorities)
        if not self.is_verified:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate:
            context.load_cert_chain(*self.certificate)
        return context
