"""The heads of requests to a sandbox's egress allowlist: what may be asked for is on the list, and nothing else is.

The first byte of the input is the size of a piece, 0 for all at once (see pieces.py); the rest is what is sent.
"""

from __future__ import annotations

import asyncio

import h11

from agent_tools.engines.network import NetworkPolicy, Target, read_target
from agent_tools.runtime.egress.forwarding import RequestTarget, request_for
from agent_tools.runtime.egress.http_exchange import HttpExchange
from agent_tools.runtime.egress.refusals import EgressRefused
from tests.fuzz import unfold
from tests.fuzz.oracle import Bound, Parts
from tests.fuzz.oracle import Target as FuzzTarget
from tests.fuzz.pieces import pieces_of

SECRET = "c0ffee"
POLICY = NetworkPolicy.read(
    {"allow": ["a.org", "*.b.org", "c.org:80", "192.0.2.7:81"], "headers": {"a.org": {"Authorization": SECRET}}}
)


class Piecewise:
    """Stands for a channel: gives what comes, then its end."""

    def __init__(self, parts: Parts) -> None:
        self.parts = list(parts)
        self.said = b""

    async def read(self) -> bytes:
        while self.parts:
            if part := self.parts.pop(0):
                return part
        return b""

    async def write(self, data: bytes) -> None:
        self.said += data


def ask(parts: Parts) -> None:
    """Read requests until the end; what would go out is one request, to a host of the list."""
    asyncio.run(_ask(Piecewise(parts)))


async def _ask(channel: Piecewise) -> None:
    exchange = HttpExchange(channel, 16 * 1024)  # type: ignore[arg-type]
    try:
        while request := await exchange.request():
            _look_at(request)
            async for _ in exchange.body():
                pass
            await exchange.answer(h11.Response(status_code=204, headers=[]))
            await exchange.answer(h11.EndOfMessage())
            if not exchange.begin_again():
                return
    except (EgressRefused, ConnectionResetError) as exc:
        if isinstance(exc, EgressRefused):
            await exchange.refuse(exc)
        assert channel.said.count(b"\r\n\r\n") <= channel.said.count(b"HTTP/1.1 ")


def _look_at(request: h11.Request) -> None:
    if request.method == b"CONNECT":
        target = read_target(request.target.decode("ascii"))
        assert target is None or not POLICY.permits(target) or _is_listed(target)
        if target is None:
            raise EgressRefused(400, "no host and port", "no host and port")
        return
    origin = RequestTarget.of(request, POLICY)
    sent = h11.Connection(h11.CLIENT).send(request_for(request, origin)) or b""
    head = sent.partition(b"\r\n\r\n")
    assert head[2] == b""
    assert head[0].lower().count(b"\r\nhost:") == 1
    assert (SECRET.encode() in sent) == origin.is_tls == (origin.target == Target("a.org", 443))


def _is_listed(target: Target) -> bool:
    return target.host in ("a.org", "c.org", "192.0.2.7") or target.host.endswith(".b.org")


TARGET = FuzzTarget(
    ask,
    pieces_of,
    allowed=(h11.LocalProtocolError,),
    bound=Bound(seconds_per_byte=40e-6),
    words=(
        *(b"CONNECT ", b"GET ", b"POST ", b"http://", b"a.org", b"x.b.org", b"c.org", b":443", b":80", b"192.0.2.7:81"),
        *(
            b" HTTP/1.1\r\n",
            b"Host: a.org\r\n",
            b"\r\n\r\n",
            b"Content-Length: 3\r\n",
            b"Transfer-Encoding: chunked\r\n",
        ),
        *(
            b"Connection: close, x\r\n",
            b"Authorization: mine\r\n",
            b"Expect: 100-continue\r\n",
            b"3\r\nabc\r\n0\r\n\r\n",
        ),
        *(b"@", b"#", b"\\", b"[::1]", b"\0", b"\n", unfold.repeat(6, 10), unfold.repeat(1, 12)),
    ),
)
