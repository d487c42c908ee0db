from __future__ import annotations

import os
import threading
from pathlib import Path
from socket import SHUT_RDWR, create_connection, create_server, socketpair

import pytest

from agent_tools.guest import proxy
from agent_tools.guest.wire.framing import pack
from agent_tools.guest.wire.mux import WORDS


def _greet(certificates: bytes, *where: str) -> bytes:
    """Start a proxy's end, hand certificates to it, and hang up; what it said."""
    host, guest = socketpair()
    with host, guest, create_server(("127.0.0.1", 0)) as listener:
        serve = threading.Thread(target=proxy.serve, args=(guest.fileno(), listener.dup(), *where))
        serve.start()
        host.sendall(pack(WORDS, certificates))
        said = host.recv(1)
        host.shutdown(2)
        serve.join(10)
    assert not serve.is_alive()
    return said


def test_what_the_host_trusts_is_written_where_it_is_told_to_be(tmp_path: Path) -> None:
    path = tmp_path / "certificates.pem"
    path.symlink_to(tmp_path / "the code's")
    assert _greet(b"PEM" * 100_000, str(path)) == proxy.READY
    assert path.read_bytes() == b"PEM" * 100_000
    assert not (tmp_path / "the code's").exists()


def test_no_file_that_the_environment_names_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path / "of the machine"
    theirs.write_bytes(b"kept")
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE"):
        monkeypatch.setenv(name, str(theirs))
    assert not os.path.exists(os.path.dirname(proxy.CERTIFICATES))
    assert _greet(b"PEM") == proxy.READY
    assert theirs.read_bytes() == b"kept"


def test_connections_end_with_the_host_s_whether_they_have_spoken_or_not(tmp_path: Path) -> None:
    host, guest = socketpair()
    with host, guest, create_server(("127.0.0.1", 0)) as listener:
        serve = threading.Thread(
            target=proxy.serve, args=(guest.fileno(), listener.dup(), str(tmp_path / "certificates.pem"))
        )
        serve.start()
        host.sendall(pack(WORDS, b""))
        assert host.recv(1) == proxy.READY
        with (
            create_connection(listener.getsockname(), 10) as silent,
            create_connection(silent.getpeername(), 10) as spoke,
        ):
            spoke.sendall(b"GET")
            assert host.recv(100).endswith(b"GET")
            host.shutdown(SHUT_RDWR)
            serve.join(10)
            assert (silent.recv(1), spoke.recv(1)) == (b"", b"")
