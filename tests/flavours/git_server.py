"""A server of repositories over HTTPS, as hosts of code run it: git's own `http-backend` behind it."""

from __future__ import annotations

import os
import ssl
import subprocess
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main")


class GitServer:
    """Serves a repository at `/greeting.git`, for anyone to read and write, and each of its files by its name.

    Args:
        folder: where the repository is made.
        context: of the server's certificate, which names localhost.
        files: what the repository's first commit holds, by name.
    """

    def __init__(self, folder: Path, context: ssl.SSLContext, files: Mapping[str, str]) -> None:
        _make_repository(folder, files)
        handler = type("_Handler", (_Handler,), {"folder": folder, "files": files})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.port = self._server.server_address[1]
        self.url = f"https://localhost:{self.port}"

    def __enter__(self) -> GitServer:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    folder: Path
    files: Mapping[str, str]
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds

    def do_GET(self) -> None:
        if (text := self.files.get(self.path[1:])) is None:
            return self._pass_on()
        return self._answer(200, {"Content-Type": "text/plain"}, text.encode())

    def do_POST(self) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        """Answer with what git says (RFC 3875: headers, a blank line, a body)."""
        path, _, query = self.path.partition("?")
        length = int(self.headers.get("Content-Length", 0))
        told = {
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(length),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "HTTP_GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "GIT_PROJECT_ROOT": str(self.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REMOTE_USER": "anyone",  # who may push
        }
        done = subprocess.run(
            ["git", "http-backend"], input=self.rfile.read(length), env={**os.environ, **told}, stdout=subprocess.PIPE
        )
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self._answer(int(fields.pop("Status", "200").split()[0]), fields, body)

    def _answer(self, status: int, fields: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {**fields, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def _make_repository(folder: Path, files: Mapping[str, str]) -> None:
    source = folder / "source"
    source.mkdir(parents=True)
    for name, text in files.items():
        (source / name).write_text(text)
    for command in (("init", "-q"), ("add", "."), ("commit", "-qm", "first")):
        subprocess.run(["git", *AUTHOR, *command], cwd=source, check=True)
    subprocess.run(["git", "clone", "-q", "--bare", source, folder / "greeting.git"], check=True)
