"""Serves on a free port of this machine, says its URL, and ends when its stdin does; then no container is left."""

from __future__ import annotations

import socket
import sys
import threading

import uvicorn

from tests.fake_cluster import pods
from tests.fake_cluster.server import FakeCluster


def main() -> None:
    cluster = FakeCluster()
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(cluster.app(), ws="websockets-sansio", log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)

    def end_with_stdin() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=end_with_stdin, daemon=True).start()
    cluster.kubelet.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    print(cluster.kubelet.url, flush=True)
    server.run(sockets=[listening])
    for pod in cluster.pods.selected():
        pods.remove(pod)


if __name__ == "__main__":
    main()
