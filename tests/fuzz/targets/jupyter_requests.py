"""Messages of clients of Jupyter's: signed with the key or not.

The input is the parts of a message with MARK between them; with `S` as first byte they are signed with the key.
"""

from __future__ import annotations

from jupyter_client.session import DELIM

from agent_tools.jupyter.connection import SCHEME
from agent_tools.jupyter.wire import BadRequest, SignedFrames
from tests.fuzz import unfold
from tests.fuzz.oracle import Bound, Parts, Target

MARK = b"<|>"
KEY = b"a key"
HEADER = b'{"msg_id": "1", "msg_type": "execute_request", "date": "2020-01-01T00:00:00Z", "session": "s"}'


def unfold_frames(data: bytes) -> Parts:
    """The frames as a socket has them."""
    parts = [unfold.text(part) for part in data[1:].split(MARK)[:200]]
    if data[:1] != b"S":
        return parts
    signed = [part.replace(b"HEADER", HEADER) for part in parts]
    return [b"identity", DELIM, SignedFrames(KEY, SCHEME)._session.sign(signed[:4]), *signed]


def take(frames: Parts) -> None:
    """Read them as a kernel would."""
    request = SignedFrames(KEY, SCHEME).read("shell", [bytes(frame) for frame in frames])
    assert len(request.parts) >= 4
    assert request.size == sum(map(len, request.parts))
    assert isinstance(request.reply_kind, str)


TARGET = Target(
    take,
    unfold_frames,
    allowed=(BadRequest,),
    bound=Bound(bytes_per_byte=64),
    words=(MARK, b"S", b"HEADER", DELIM, b"{}", b'{"code": "', b'"date": "2020-99-99T00:00:00Z"', unfold.repeat(1, 12)),
)
