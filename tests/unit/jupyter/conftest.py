"""A kernel whose sandbox is a plain process, and clients of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import zmq
from jupyter_core.utils import ensure_event_loop

from agent_tools.jupyter.connection import SCHEME, ConnectionInfo, make_private_folder
from agent_tools.jupyter.served_kernel import ServedKernel
from agent_tools.machine.removal import remove_tree
from agent_tools.runtime.runtime import Runtime
from tests.unit.jupyter.talking import Talk, talking


@pytest.fixture(scope="session", autouse=True)
def what_libraries_keep() -> None:
    """Jupyter's event loop with its thread, and ZeroMQ's collector of messages, are there before a test is watched."""
    ensure_event_loop().run_until_complete(asyncio.to_thread(int))
    with zmq.Context() as context, context.socket(zmq.PUB) as socket:
        socket.send(bytes(100_000), copy=False)


@pytest.fixture
def info(process_runtime: Runtime) -> Iterator[ConnectionInfo]:
    """A connection by private sockets."""
    folder = make_private_folder()
    yield ConnectionInfo.private(folder, b"a key", SCHEME)
    remove_tree(folder)


@pytest.fixture
def kernel(process_runtime: Runtime, info: ConnectionInfo) -> Iterator[ServedKernel]:
    """A kernel that has started."""
    served = ServedKernel({}, process_runtime)
    served.start(info)
    yield served
    served.close()


@pytest.fixture
def talk(kernel: ServedKernel, info: ConnectionInfo) -> Iterator[Talk]:
    """A client of it."""
    with talking(info.as_dict()) as talk:
        yield talk
