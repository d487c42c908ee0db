"""Stand-ins for modules: there while a kernel is imported, and never in the way of code that wants the module."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

BOOTED = """
import sys
from agent_tools.guest import lazy_modules

with lazy_modules.stand_ins():
    from agent_tools.guest import startup
"""
FORKING = """
import json, os

for line in sys.stdin:
    ours, theirs = os.pipe()
    if pid := os.fork():
        os.close(theirs)
        with open(ours) as answer:
            told = answer.read()
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), told]), flush=True)
    else:
        os.dup2(theirs, 1)
        sys.stdin = open(os.devnull)
        exec(json.loads(line), {"__name__": "__main__", "sys": sys, "lazy_modules": lazy_modules, "startup": startup})
        sys.exit()
"""
"""Runs each line's code in a fork of what has booted, and tells its exit code and its stdout."""


@pytest.fixture(scope="module")
def booted() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", BOOTED + FORKING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin
        process.stdin.close()


Said = Callable[[str], str]


@pytest.fixture
def said(booted: subprocess.Popen[str]) -> Said:
    def said(code: str) -> str:
        assert booted.stdin
        assert booted.stdout
        print(json.dumps(code), file=booted.stdin, flush=True)
        exit_code, told = json.loads(booted.stdout.readline())
        assert exit_code == 0, told
        return str(told).strip()

    return said


def said_by_itself(code: str) -> str:
    """What a process says that has only imported the stand-ins."""
    code = f"from agent_tools.guest import lazy_modules\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_kernel_is_imported_without_what_it_does_not_need(said: Said) -> None:
    code = (
        "print([name for name in lazy_modules.STAND_INS if name in sys.modules], 'ipykernel.kernelbase' in sys.modules)"
    )
    assert said(code) == "[] True"


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("import zmq; print(zmq.Context.__module__)", "zmq.sugar.context"),
        ("import zmq.asyncio; print(zmq.asyncio.Context.__name__)", "Context"),
        ("from tornado.ioloop import IOLoop; print(IOLoop.current.__name__)", "current"),
        ("import dateutil.parser; print(dateutil.parser.isoparse('2020-02-03').day)", "3"),
        ("import jupyter_client; print(jupyter_client.KernelManager.__name__)", "KernelManager"),
        ("from jupyter_client import BlockingKernelClient as c; print(c.__module__)", "jupyter_client.blocking.client"),
        ("import ssl; print(ssl.create_default_context().check_hostname)", "True"),
        ("import ipykernel; print(ipykernel.get_connection_file.__name__)", "get_connection_file"),
        ("import ipykernel.debugger as d; print(d._is_debugpy_available, d.Debugger.__name__)", "False Debugger"),
        ("from logging.config import dictConfig as d; print(d({'version': 1}))", "None"),
        ("import asyncio.sslproto as s; print(s.SSLProtocol.__name__)", "SSLProtocol"),
        ("import asyncio; print(asyncio.sslproto.SSLProtocol.__name__)", "SSLProtocol"),
    ],
)
def test_code_that_imports_a_module_gets_it(said: Said, code: str, answer: str) -> None:
    assert said(code) == answer


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("from jupyter_client import session; print(session.zmq.Socket.__name__)", "Socket"),
        ("from jupyter_client import session; print(session.IOLoop.current.__name__)", "current"),
        ("from ipykernel import kernelbase; print(kernelbase.ioloop.IOLoop.__name__)", "IOLoop"),
        ("from jupyter_client import jsonutil; print(jsonutil.parse_date('2020-02-03T04:05:06Z').day)", "3"),
        ("from traitlets.config import application; application.dictConfig({'version': 1}); print(1)", "1"),
        ("from jupyter_client import session; print(isinstance(3, session.IOLoop))", "False"),
        ("from jupyter_client import session\nclass L(session.IOLoop): pass\nprint(L.__mro__[1].__name__)", "IOLoop"),
    ],
)
def test_who_has_taken_a_stand_in_reaches_the_module_through_it(said: Said, code: str, answer: str) -> None:
    assert said(code) == answer


def test_connections_over_tls_work(said: Said) -> None:
    """As far as the handshake: a server that speaks in the clear is told from one that speaks TLS."""
    code = """
import asyncio, ssl

async def main():
    async def answer(reader, writer):
        writer.write(b"in the clear\\r\\n" * 10)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        try:
            await asyncio.open_connection("127.0.0.1", port, ssl=ssl.create_default_context())
        except ssl.SSLError as exc:
            print(type(exc).__mro__[1].__name__ if type(exc) is not ssl.SSLError else "SSLError")

asyncio.run(main())
"""
    assert said(code) == "SSLError"


def test_what_is_used_at_once_cannot_be_put_off() -> None:
    code = """
with lazy_modules.stand_ins():
    import ssl
    try:
        ssl.create_default_context()
    except ImportError as exc:
        print(exc)
"""
    assert said_by_itself(code) == "ssl is needed at once and cannot be put off"


def test_a_module_that_was_imported_before_stays() -> None:
    code = "import zmq\nwith lazy_modules.stand_ins():\n    import zmq as other\nprint(zmq is other, zmq.__name__)"
    assert said_by_itself(code) == "True zmq"
