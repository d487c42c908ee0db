"""Messages of a kernel that sends what it likes, as clients of Jupyter's are told of them.

The input is that of `kernel_messages`.
"""

from __future__ import annotations

import json

from agent_tools.errors import ProtocolViolation
from agent_tools.guest.wire.framing import FrameError
from agent_tools.guest.wire.messages import MessageReader
from agent_tools.jupyter.answers import read_answer
from agent_tools.jupyter.plain import plainly
from agent_tools.runtime.kernel.protocol import read_message
from tests.fuzz.oracle import Bound, Parts, Target
from tests.fuzz.targets.kernel_messages import LIMITS, MARK, WORDS, unfold_message


def tell_clients(parts: Parts) -> None:
    """Every reader of JSON can read what clients are told, and it is an object."""
    reader = MessageReader(LIMITS.max_message_bytes)
    for each in parts:
        for channel, found in reader.feed(each):
            answer = read_answer(read_message(channel, found), found)
            for told in filter(None, (answer, answer and plainly(answer))):
                for packed in (told.content, told.metadata):
                    assert isinstance(json.loads(packed.decode(), parse_constant=_refuse), dict)
                assert len(told.content) <= 2 * len(found[3]) + 1000


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


TARGET = Target(
    tell_clients,
    unfold_message,
    allowed=(ProtocolViolation, FrameError),
    bound=Bound(bytes_per_byte=64),
    vocabulary=(*WORDS, "NaN", "comm_id", "target_name", "execution_state", "busy", "idle"),
    words=(MARK, b"NaN", b"\\ud800", b'{"execution_state": "idle"}'),
)
