"""Calls as text whose frames are damaged: a token is dropped, doubled or renamed, and the text comes in pieces.

The input: the number of a form, the size of the pieces, a number that says what the code is and whether prose follows,
and pairs of a mutation and a token.
What is read is the call that was written, whole; a text with words beside it is never read as a call.
"""

from __future__ import annotations

import json

from agent_tools.agents.turn.call_gate import MAX_UNDECIDED, CallGate
from agent_tools.agents.turn.call_reader import calls_in
from agent_tools.models.dialect.framing import TOKEN, is_closing
from tests.call_forms import TRICKY_CODES, bare_calls, written_calls
from tests.fuzz.oracle import Parts, Target

CODES = ("print('<b>', 6 * 7)\nx = [1]\nx", *TRICKY_CODES)
FORMS = [list(written_calls("python", code).values()) for code in CODES]
BARE = [list(bare_calls("python", code).values()) for code in CODES]
DECLARED = {"python": True, "f": False}
SCHEMAS = {"python": {"properties": {"code": {"type": "string"}}}}


def run(parts: Parts) -> None:
    """Read the mutated form as a round does."""
    data = b"".join(parts).ljust(4, b"\0")
    number = data[2] // 3 % len(CODES)
    code, forms, bare = CODES[number], FORMS[number], BARE[number]
    if (chosen := data[0] % (len(forms) + len(bare))) < len(forms):
        text, is_whole = mutated(forms[chosen], code, data[3:67])
        is_prose = data[2] % 3 == 0
    else:  # what stands beside bare code, or is missing, changes it
        text, is_whole, is_prose = bare[chosen - len(forms)], True, False
    text += " is how a call is written." if is_prose else ""
    size = data[1] or len(text)
    gate = CallGate(DECLARED)
    shown = "".join(gate.feed(text[at : at + size]) for at in range(0, len(text), size))
    assert shown + gate.rest() == text, "a part is lost"
    found = calls_in(gate.rest(), DECLARED, SCHEMAS)
    assert not (is_prose and found), "prose was read as a call"
    for call in found:
        assert code_of(call.arguments) in (code, None), "the call was changed"
    waits = len(text) <= MAX_UNDECIDED  # a longer row of tokens alone is let through
    assert found or is_prose or not is_whole or not waits, "a call with name and arguments is lost"


def code_of(arguments: str) -> str | None:
    """The code that is to run; None if there is none, which is refused."""
    value = json.loads(arguments) if arguments.startswith("{") else {"code": arguments}
    code = value.get("code") if isinstance(value, dict) else None
    return code.strip("\n") if isinstance(code, str) else None


def mutated(form: str, code: str, mutations: bytes) -> tuple[str, bool]:
    """The form with its mutations, and whether name and arguments are still told apart from each other."""
    is_whole = True
    for kind, place in zip(mutations[::2], mutations[1::2]):
        tokens = [each for each in TOKEN.finditer(form) if each[0] not in code]
        if not tokens or kind % 4 == 0:
            continue
        token = tokens[place % len(tokens)]
        is_frame = not any(
            word in token[0] for word in ("python", "code", "key", "value", "param", "sep", "ARGS", "ID", "esc")
        )
        is_last = token is tokens[-1] and is_closing(token[0])
        new = {1: "", 2: token[0] * (1 + place % 3), 3: token[0].replace("tool", "t00l").replace("call", "kall")}[
            kind % 4
        ]
        is_whole = is_whole and is_frame and (kind % 4 != 1 or is_last)
        form = form[: token.start()] + new + form[token.end() :]
    return form, is_whole


TARGET = Target(run, words=(b"\0\1", b"\1\3", b"\2\2", b"\3\1", bytes(3), b"\x02" * 40))
